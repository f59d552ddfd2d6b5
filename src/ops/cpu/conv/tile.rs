//! The inner loop of forward and data gradient: a tile of `MR` pixels times `NV` vectors of channels in registers.

// Loops over constants become registers; iterators over two arrays at once would hide which.
#![allow(clippy::needless_range_loop)]

use std::mem::MaybeUninit;

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
    /// The panel holds two rows in one (see `Block`).
    pub pairs: bool,
    /// If 3: a run is three taps, each of a pixel of `xs` numbers.
    pub taps: usize,
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
struct Strip<'a, const MR: usize, const NV: usize, const PAIRS: bool> {
    line: &'a Line<'a>,
    first: usize,
    tiles: usize,
}

impl<const MR: usize, const NV: usize, const PAIRS: bool> Kernel for Strip<'_, MR, NV, PAIRS> {
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
                for (i, run) in self.line.runs.iter().enumerate() {
                    let mut xp = x.offset(run.x);
                    let each = if PAIRS { 2 } else { 1 };
                    let mut wp = self.line.w.add(run.k / each * NV * S::N);
                    let mut soon_x = Soon::none();
                    let mut soon_y = Soon::none();
                    if i < ahead.x_rows {
                        let at = x.wrapping_offset(ahead.x).wrapping_add(i * ahead.x_pitch);
                        soon_x = Soon::new(at, MR * xs, run.len / each);
                    }
                    if i == 0 && ahead.y > 0 {
                        soon_y = Soon::new(y.wrapping_add(ahead.y), MR * ys, run.len / each);
                    }
                    for _ in 0..run.len / each {
                        soon_x.ask(s);
                        soon_y.ask(s);
                        let mut w = [s.zero(); NV];
                        for v in 0..NV {
                            w[v] = s.load(wp.add(v * S::N));
                        }
                        for m in 0..MR {
                            let b = number::<S, PAIRS>(s, xp.add(m * xs));
                            for v in 0..NV {
                                acc[m][v] = s.fma(b, w[v], acc[m][v]);
                            }
                        }
                        xp = xp.add(each);
                        wp = wp.add(NV * S::N);
                    }
                }
                finish::<S, MR, NV, PAIRS>(s, y, ys, &acc, self.line);
            }
        }
    }
}

/// What multiplies a vector of the panel: a number, or two in turn.
///
/// # Safety
/// One or two numbers at `p` can be read.
#[inline(always)]
unsafe fn number<S: Simd, const PAIRS: bool>(s: S, p: *const f32) -> S::V {
    // SAFETY: the caller's.
    unsafe { if PAIRS { s.splat_pair(p) } else { s.splat(*p) } }
}

/// Stores the sums of a tile, pixels `ys` apart, or adds them.
///
/// # Safety
/// The line's channels of these pixels are the caller's alone.
#[inline(always)]
unsafe fn finish<S: Simd, const MR: usize, const NV: usize, const PAIRS: bool>(
    s: S,
    y: *mut f32,
    ys: usize,
    acc: &[[S::V; NV]; MR],
    line: &Line,
) {
    // SAFETY: the caller's; `kept` holds the tile.
    unsafe {
        if !PAIRS && !line.add && line.channels == NV * S::N {
            for m in 0..MR {
                for v in 0..NV {
                    s.store(y.add(m * ys + v * S::N), acc[m][v]);
                }
            }
            return;
        }
        // A loop of this size is not unrolled, and would have the sums in memory from the start: they are put there
        // only now.
        let mut kept = MaybeUninit::<[[S::V; NV]; MR]>::uninit();
        let kept = kept.as_mut_ptr().cast::<S::V>();
        for m in 0..MR {
            for v in 0..NV {
                kept.add(m * NV + v).write(acc[m][v]);
            }
        }
        for m in 0..MR {
            for v in 0..NV {
                let y = y.add(m * ys + v * S::N);
                let n = (line.channels - v * S::N).min(S::N);
                let mut sum = kept.add(m * NV + v).read();
                if PAIRS {
                    sum = s.add_pairs(sum);
                }
                if line.add {
                    sum = s.add(s.load_first(y, n), sum);
                }
                s.store_first(y, sum, n);
            }
        }
    }
}

/// As [`Strip`], for three taps along a row and one vector: a number of the input is read once for the three pixels
/// of the output that it meets. (One vector needs a load for each multiplication otherwise, as many as there are.)
struct Slide<'a, const MR: usize, const PAIRS: bool> {
    line: &'a Line<'a>,
    first: usize,
    tiles: usize,
}

/// Pixels of a tile of [`Slide`].
const fn pixels_of_slide(registers: usize) -> usize {
    if registers >= 32 { 16 } else { 10 }
}

impl<const MR: usize, const PAIRS: bool> Kernel for Slide<'_, MR, PAIRS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if MR > pixels_of_slide(S::REGISTERS) {
            unreachable!("a tile of {MR} pixels does not fit the registers");
        }
        let Line { xs, ys, ahead, .. } = *self.line;
        let each = if PAIRS { 2 } else { 1 };
        // Vectors of the panel between taps.
        let tap = xs / each * S::N;
        for t in 0..self.tiles {
            let pixel = self.first + t * MR;
            // SAFETY: as in `Strip`; a run is three taps of `xs` numbers, so the last pixel's run ends with the
            // number that is read last.
            unsafe {
                let x = self.line.x.add(pixel * xs);
                let y = self.line.y.add(pixel * ys);
                let mut acc = [[s.zero(); 1]; MR];
                for (i, run) in self.line.runs.iter().enumerate() {
                    let mut xp = x.offset(run.x);
                    let mut wp = self.line.w.add(run.k / each * S::N);
                    let mut soon_x = Soon::none();
                    let mut soon_y = Soon::none();
                    if i < ahead.x_rows {
                        let at = x.wrapping_offset(ahead.x).wrapping_add(i * ahead.x_pitch);
                        soon_x = Soon::new(at, MR * xs, xs / each);
                    }
                    if i == 0 && ahead.y > 0 {
                        soon_y = Soon::new(y.wrapping_add(ahead.y), MR * ys, xs / each);
                    }
                    for _ in 0..xs / each {
                        soon_x.ask(s);
                        soon_y.ask(s);
                        let w = [s.load(wp), s.load(wp.add(tap)), s.load(wp.add(2 * tap))];
                        // The numbers at and right of the pixel.
                        let mut b = [number::<S, PAIRS>(s, xp), number::<S, PAIRS>(s, xp.add(xs))];
                        for m in 0..MR {
                            let next = number::<S, PAIRS>(s, xp.add((m + 2) * xs));
                            acc[m][0] = s.fma(b[0], w[0], acc[m][0]);
                            acc[m][0] = s.fma(b[1], w[1], acc[m][0]);
                            acc[m][0] = s.fma(next, w[2], acc[m][0]);
                            b = [b[1], next];
                        }
                        xp = xp.add(each);
                        wp = wp.add(S::N);
                    }
                }
                finish::<S, MR, 1, PAIRS>(s, y, ys, &acc, self.line);
            }
        }
    }
}

macro_rules! strips {
    ($isa:ident, $line:ident, $first:ident, $tiles:ident, ($nv:ident, $mr:ident, $pairs:ident): $($v:literal $p:literal { $($m:literal)* })*) => {
        match ($nv, $mr, $pairs) {
            $($(($v, $m, $p) => $isa.run(Strip::<$m, $v, $p> { line: $line, first: $first, tiles: $tiles }),)*)*
            _ => unreachable!("no tile of {} pixels and {} vectors", $mr, $nv),
        }
    };
}

macro_rules! slides {
    ($isa:ident, $line:ident, $first:ident, $tiles:ident, ($mr:ident, $pairs:ident): $($m:literal)*) => {
        match ($mr, $pairs) {
            $(
                ($m, false) => $isa.run(Slide::<$m, false> { line: $line, first: $first, tiles: $tiles }),
                ($m, true) => $isa.run(Slide::<$m, true> { line: $line, first: $first, tiles: $tiles }),
            )*
            _ => unreachable!("no tile of {} pixels", $mr),
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
    let slides = nv == 1 && line.taps == 3;
    let most = if slides {
        pixels_of_slide(isa.registers())
    } else {
        pixels_of_tile(isa.registers(), nv)
    };
    let tiles = line.pixels.div_ceil(most);
    let (size, larger) = (line.pixels / tiles, line.pixels % tiles);
    for (size, first, tiles) in [
        (size + 1, 0, larger),
        (size, larger * (size + 1), tiles - larger),
    ] {
        match (tiles, slides) {
            (0, _) => {}
            (_, true) => slide(isa, size, line, first, tiles),
            (_, false) => strip(isa, nv, size, line, first, tiles),
        }
    }
}

fn strip(isa: Isa, nv: usize, mr: usize, line: &Line, first: usize, tiles: usize) {
    let pairs = line.pairs;
    strips!(isa, line, first, tiles, (nv, mr, pairs):
        1 false { 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 }
        1 true { 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 }
        2 false { 1 2 3 4 5 6 7 8 9 10 11 12 13 14 }
        3 false { 1 2 3 4 5 6 7 8 9 }
    );
}

fn slide(isa: Isa, mr: usize, line: &Line, first: usize, tiles: usize) {
    let pairs = line.pairs;
    slides!(isa, line, first, tiles, (mr, pairs):
        1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16
    );
}
