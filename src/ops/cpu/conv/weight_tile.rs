//! The inner loop of the weight gradient: `R` numbers of one side times `NV` vectors of the other, over pixels.

// Loops over constants become registers; iterators over two arrays at once would hide which.
#![allow(clippy::needless_range_loop)]

use super::super::isa::{Isa, Kernel};
use super::super::simd::Simd;

/// `dst[i][j] += sum over pixels of a[i] * b[j]`, pixels on an `outer` x `inner` grid.
#[derive(Clone, Copy)]
pub(super) struct Outer {
    pub a: *const f32,
    pub a_inner: usize,
    pub a_outer: usize,
    /// Numbers `a[..rows]` of a pixel.
    pub rows: usize,
    pub b: *const f32,
    pub b_inner: usize,
    pub b_outer: usize,
    /// Numbers `b[..columns]` of a pixel.
    pub columns: usize,
    /// Distance from a pixel's numbers to those that will be wanted soon, for either side; 0: none.
    pub a_ahead: usize,
    pub b_ahead: usize,
    pub inner: usize,
    pub outer: usize,
    /// `[rows][columns]`, rows `pitch` apart.
    pub dst: *mut f32,
    pub pitch: usize,
}

/// Rows of a tile with `nv` vectors.
pub(super) const fn rows_of_tile(registers: usize, nv: usize) -> usize {
    match (registers >= 32, nv) {
        (true, 1) => 24,
        (true, 2) => 14,
        (true, _) => 9,
        (false, 1) => 12,
        (false, 2) => 6,
        (false, _) => 4,
    }
}

/// `rows` of `o` is `R`, its columns fit `NV` vectors; with `TAIL` they do not fill the last one.
struct Tile<const R: usize, const NV: usize, const TAIL: bool>(Outer);

impl<const R: usize, const NV: usize, const TAIL: bool> Kernel for Tile<R, NV, TAIL> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if R > rows_of_tile(S::REGISTERS, NV) {
            unreachable!("a tile of {R} rows does not fit the registers");
        }
        let o = self.0;
        let last = o.columns - (NV - 1) * S::N;
        // SAFETY: `Outer`'s maker guarantees that all pixels of the grid lie inside both sides, and that the
        // destination is this call's alone; what a vector holds beyond `columns` is masked.
        unsafe {
            let load = |p: *const f32, v: usize| {
                if TAIL && v + 1 == NV {
                    s.load_first(p.add(v * S::N), last)
                } else {
                    s.load(p.add(v * S::N))
                }
            };
            let mut acc = [[s.zero(); NV]; R];
            for i in 0..R {
                for v in 0..NV {
                    acc[i][v] = load(o.dst.add(i * o.pitch), v);
                }
            }
            for r in 0..o.outer {
                let mut ap = o.a.add(r * o.a_outer);
                let mut bp = o.b.add(r * o.b_outer);
                for _ in 0..o.inner {
                    if o.a_ahead > 0 {
                        s.prefetch_far(ap.wrapping_add(o.a_ahead));
                    }
                    if o.b_ahead > 0 {
                        for v in 0..NV {
                            s.prefetch_far(bp.wrapping_add(o.b_ahead + v * S::N));
                        }
                    }
                    if S::REGISTERS < 32 {
                        // Small tiles wait for the second cache (measured: 70 to 89 % of the peak with AVX2); for
                        // large ones these are loads in vain.
                        const PIXELS: usize = 4;
                        s.prefetch(ap.wrapping_add(PIXELS * o.a_inner));
                        for i in (0..NV * S::N).step_by(16) {
                            s.prefetch(bp.wrapping_add(PIXELS * o.b_inner + i));
                        }
                    }
                    let mut b = [s.zero(); NV];
                    for v in 0..NV {
                        b[v] = load(bp, v);
                    }
                    for i in 0..R {
                        let a = s.splat(*ap.add(i));
                        for v in 0..NV {
                            acc[i][v] = s.fma(a, b[v], acc[i][v]);
                        }
                    }
                    ap = ap.add(o.a_inner);
                    bp = bp.add(o.b_inner);
                }
            }
            for i in 0..R {
                for v in 0..NV {
                    let p = o.dst.add(i * o.pitch + v * S::N);
                    if TAIL && v + 1 == NV {
                        s.store_first(p, acc[i][v], last);
                    } else {
                        s.store(p, acc[i][v]);
                    }
                }
            }
        }
    }
}

macro_rules! tiles {
    ($isa:ident, $outer:ident, ($nv:ident, $r:ident, $tail:ident): $($v:literal { $($m:literal)* })*) => {
        match ($nv, $r, $tail) {
            $($(
                ($v, $m, false) => $isa.run(Tile::<$m, $v, false>($outer)),
                ($v, $m, true) => $isa.run(Tile::<$m, $v, true>($outer)),
            )*)*
            _ => unreachable!("no tile of {} rows and {} vectors", $r, $nv),
        }
    };
}

fn tile(isa: Isa, nv: usize, o: Outer) {
    let (r, tail) = (o.rows, !o.columns.is_multiple_of(isa.width()));
    tiles!(isa, o, (nv, r, tail):
        1 { 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 }
        2 { 1 2 3 4 5 6 7 8 9 10 11 12 13 14 }
        3 { 1 2 3 4 5 6 7 8 9 }
    );
}

/// Accumulates an outer product, cut into tiles.
///
/// # Safety
/// All pixels of the grid lie inside both sides and the destination is this call's alone.
pub(super) unsafe fn outer(isa: Isa, o: &Outer) {
    if o.rows == 0 || o.inner == 0 || o.outer == 0 {
        return;
    }
    for block in super::pack::blocks(isa, o.columns) {
        let most = rows_of_tile(isa.registers(), block.vectors);
        let tiles = o.rows.div_ceil(most);
        let mut at = 0;
        for t in 0..tiles {
            let end = o.rows * (t + 1) / tiles;
            // SAFETY: parts of the caller's memory.
            let part = unsafe {
                Outer {
                    a: o.a.add(at),
                    rows: end - at,
                    b: o.b.add(block.start),
                    columns: block.channels,
                    a_ahead: if block.start == 0 { o.a_ahead } else { 0 },
                    b_ahead: if at == 0 { o.b_ahead } else { 0 },
                    dst: o.dst.add(at * o.pitch + block.start),
                    ..*o
                }
            };
            tile(isa, block.vectors, part);
            at = end;
        }
    }
}
