//! The inner loop of forward and data gradient: a tile of `MR` pixels times `NV` vectors of channels in registers.

use super::super::isa::{Isa, Kernel};
use super::super::simd::Simd;

/// Consecutive numbers of the input and the rows of the panel that they meet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    /// From the pixel's first number to the first of the run.
    pub x: isize,
    /// First row in the panel.
    pub k: usize,
    /// Numbers.
    pub len: usize,
}

/// What will be needed soon and is asked for, a little with each step of the inner loop.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ahead {
    /// From a pixel of the input to the first row's; as much as lies under the tile.
    pub x: isize,
    /// Between rows.
    pub x_pitch: usize,
    pub x_rows: usize,
    /// From a pixel of the output; 0 for none.
    pub y: usize,
}

/// A line of pixels, `xs` numbers apart in the input, `ys` in the output.
#[derive(Clone, Copy)]
pub(super) struct Line<'a> {
    pub x: *const f32,
    pub xs: usize,
    pub y: *mut f32,
    pub ys: usize,
    pub pixels: usize,
    pub runs: &'a [Run],
    /// Panel: rows of `nv` vectors, the last one padded with zeros.
    pub w: *const f32,
    /// Channels of the output that the panel is for, at most `nv` vectors.
    pub channels: usize,
    pub ahead: Ahead,
    /// Add to `y` instead of overwriting.
    pub add: bool,
}

/// Pixels of a tile with `nv` vectors, so that accumulators, weights and a pixel's number stay in registers.
pub(super) const fn pixels_of_tile(registers: usize, nv: usize) -> usize {
    match (registers >= 32, nv) {
        (true, 1) => 16,
        (true, 2) => 14,
        (true, _) => 9,
        (false, 1) => 12,
        (false, 2) => 6,
        (false, _) => 4,
    }
}

/// Numbers that are asked for in equal steps.
struct Soon {
    at: *const f32,
    step: usize,
}

impl Soon {
    #[inline(always)]
    fn none() -> Soon {
        Soon {
            at: std::ptr::null(),
            step: 0,
        }
    }

    /// `len` numbers in `steps` steps.
    #[inline(always)]
    fn new(at: *const f32, len: usize, steps: usize) -> Soon {
        Soon {
            at,
            step: len.div_ceil(steps),
        }
    }

    #[inline(always)]
    fn ask<S: Simd>(&mut self, s: S) {
        /// Numbers in a cache line.
        const LINE: usize = 16;
        let mut i = 0;
        while i < self.step {
            s.prefetch(self.at.wrapping_add(i));
            i += LINE;
        }
        self.at = self.at.wrapping_add(self.step);
    }
}

/// `tiles` tiles of a line.
struct Strip<'a, const MR: usize, const NV: usize> {
    line: &'a Line<'a>,
    first: usize,
    tiles: usize,
}

impl<const MR: usize, const NV: usize> Kernel for Strip<'_, MR, NV> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if MR > pixels_of_tile(S::REGISTERS, NV) {
            unreachable!("a tile of {MR} pixels does not fit the registers");
        }
        let Line { xs, ys, ahead, .. } = *self.line;
        for t in 0..self.tiles {
            let pixel = self.first + t * MR;
            // SAFETY: `Line`'s maker guarantees that all pixels of the line, with all of its runs, lie inside the
            // input, the output's inside the output, and the panel's rows inside the panel.
            unsafe {
                let x = self.line.x.add(pixel * xs);
                let y = self.line.y.add(pixel * ys);
                let mut acc = [[s.zero(); NV]; MR];
                if self.line.add {
                    for m in 0..MR {
                        for v in 0..NV {
                            let n = (self.line.channels - v * S::N).min(S::N);
                            acc[m][v] = s.load_first(y.add(m * ys + v * S::N), n);
                        }
                    }
                }
                for (i, run) in self.line.runs.iter().enumerate() {
                    let mut xp = x.offset(run.x);
                    let mut wp = self.line.w.add(run.k * NV * S::N);
                    let mut soon_x = Soon::none();
                    let mut soon_y = Soon::none();
                    if i < ahead.x_rows {
                        let at = x.wrapping_offset(ahead.x).wrapping_add(i * ahead.x_pitch);
                        soon_x = Soon::new(at, MR * xs, run.len);
                    }
                    if i == 0 && ahead.y > 0 {
                        soon_y = Soon::new(y.wrapping_add(ahead.y), MR * ys, run.len);
                    }
                    for _ in 0..run.len {
                        soon_x.ask(s);
                        soon_y.ask(s);
                        let mut w = [s.zero(); NV];
                        for v in 0..NV {
                            w[v] = s.load(wp.add(v * S::N));
                        }
                        for m in 0..MR {
                            let b = s.splat(*xp.add(m * xs));
                            for v in 0..NV {
                                acc[m][v] = s.fma(b, w[v], acc[m][v]);
                            }
                        }
                        xp = xp.add(1);
                        wp = wp.add(NV * S::N);
                    }
                }
                if self.line.channels == NV * S::N {
                    for m in 0..MR {
                        for v in 0..NV {
                            s.store(y.add(m * ys + v * S::N), acc[m][v]);
                        }
                    }
                } else {
                    for m in 0..MR {
                        for v in 0..NV {
                            let n = (self.line.channels - v * S::N).min(S::N);
                            s.store_first(y.add(m * ys + v * S::N), acc[m][v], n);
                        }
                    }
                }
            }
        }
    }
}

macro_rules! strips {
    ($isa:ident, $line:ident, $first:ident, $tiles:ident, ($nv:ident, $mr:ident): $($v:literal { $($m:literal)* })*) => {
        match ($nv, $mr) {
            $($(($v, $m) => $isa.run(Strip::<$m, $v> { line: $line, first: $first, tiles: $tiles }),)*)*
            _ => unreachable!("no tile of {} pixels and {} vectors", $mr, $nv),
        }
    };
}

/// Computes a line, cut into tiles of nearly the same size.
///
/// # Safety
/// All runs of all pixels of the line lie inside the input, the panel's rows inside the panel, and the output's
/// pixels are this call's alone. `nv` vectors of `isa` hold `channels`, and one less does not.
pub(super) unsafe fn line(isa: Isa, nv: usize, line: &Line) {
    if line.pixels == 0 {
        return;
    }
    let most = pixels_of_tile(isa.registers(), nv);
    let tiles = line.pixels.div_ceil(most);
    let (size, larger) = (line.pixels / tiles, line.pixels % tiles);
    strips(isa, nv, size + 1, line, 0, larger);
    strips(isa, nv, size, line, larger * (size + 1), tiles - larger);
}

fn strips(isa: Isa, nv: usize, mr: usize, line: &Line, first: usize, tiles: usize) {
    if tiles == 0 {
        return;
    }
    strips!(isa, line, first, tiles, (nv, mr):
        1 { 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 }
        2 { 1 2 3 4 5 6 7 8 9 10 11 12 13 14 }
        3 { 1 2 3 4 5 6 7 8 9 }
    );
}
