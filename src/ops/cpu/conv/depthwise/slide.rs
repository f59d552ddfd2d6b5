//! Depthwise 3x3 with stride 1.

// Loops over constants become registers; iterators over two arrays at once would hide which.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;

use super::super::super::isa::{Isa, Kernel};
use super::super::super::simd::Simd;

/// Output rows that share the loads of their input rows, where there are 32 registers.
const TOGETHER: usize = 4;

/// Output rows `rows` of one image `[h, w, c]` into `y`, which holds these rows alone. `zeros` is a row of zeros.
#[allow(clippy::too_many_arguments)]
pub(super) fn rows(
    isa: Isa,
    (h, w, c): (usize, usize, usize),
    x: &[f32],
    weights: &[f32],
    zeros: &[f32],
    y: &mut [f32],
    rows: Range<usize>,
    add: bool,
) {
    assert!(x.len() == h * w * c && weights.len() == 9 * c && zeros.len() == w * c);
    assert!(y.len() == rows.len() * w * c && rows.end <= h);
    let together = if isa.registers() >= 32 { TOGETHER } else { 1 };
    let mut r = rows.start;
    while r < rows.end {
        let y = &mut y[(r - rows.start) * w * c..];
        let slide = |y| Args {
            size: (h, w, c),
            x,
            weights,
            zeros,
            y,
            row: r,
            add,
        };
        if together == TOGETHER && r + TOGETHER <= rows.end {
            isa.run(Rows::<TOGETHER>(slide(y)));
            r += TOGETHER;
        } else {
            isa.run(Rows::<1>(slide(y)));
            r += 1;
        }
    }
}

struct Args<'a> {
    size: (usize, usize, usize),
    x: &'a [f32],
    weights: &'a [f32],
    zeros: &'a [f32],
    y: &'a mut [f32],
    row: usize,
    add: bool,
}

struct Rows<'a, const R: usize>(Args<'a>);

/// Input row `r - 1 + i` of output row `r`, or the row of zeros outside the image.
#[inline(always)]
fn input_row(x: &[f32], zeros: &[f32], (h, row): (usize, usize), r: usize, i: usize) -> *const f32 {
    match (r + i).checked_sub(1) {
        Some(at) if at < h => x[at * row..].as_ptr(),
        _ => zeros.as_ptr(),
    }
}

impl<const R: usize> Kernel for Rows<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Args {
            size: (h, w, c),
            x,
            weights,
            zeros,
            y,
            row,
            add,
        } = self.0;
        assert!(R <= TOGETHER && y.len() >= R * w * c);
        let mut input = [std::ptr::null(); TOGETHER + 2];
        for (i, p) in input.iter_mut().enumerate().take(R + 2) {
            *p = input_row(x, zeros, (h, w * c), row, i);
        }
        let next = x.as_ptr().wrapping_add((row + R + 1) * w * c);
        let y = y.as_mut_ptr();
        for at in (0..c).step_by(S::N) {
            let n = (c - at).min(S::N);
            let full = n == S::N;
            // SAFETY: rows hold `w` pixels of `c` numbers, `at + n <= c`, and the output `R` such rows (asserted).
            unsafe {
                let load = |p: *const f32| if full { s.load(p) } else { s.load_first(p, n) };
                let store = |p: *mut f32, v| {
                    let v = match (add, full) {
                        (false, _) => v,
                        (true, true) => s.add(s.load(p), v),
                        (true, false) => s.add(s.load_first(p, n), v),
                    };
                    if full {
                        s.store(p, v)
                    } else {
                        s.store_first(p, v, n)
                    }
                };
                let mut f = [s.zero(); 9];
                for t in 0..9 {
                    f[t] = load(weights.as_ptr().add(t * c + at));
                }
                // Sums of the columns left of, at and right of the input's column.
                let mut acc = [[s.zero(); R]; 3];
                for q in 0..w {
                    acc[2] = [s.zero(); R];
                    // The next rows.
                    for i in 0..R {
                        s.prefetch(next.wrapping_add((i * w + q) * c + at));
                        s.prefetch(y.wrapping_add(((R + i) * w + q) * c + at));
                    }
                    for i in 0..R + 2 {
                        let v = load(input[i].add(q * c + at));
                        for kr in 0..3 {
                            if i >= kr && i - kr < R {
                                acc[0][i - kr] = s.fma(v, f[kr * 3 + 2], acc[0][i - kr]);
                                acc[1][i - kr] = s.fma(v, f[kr * 3 + 1], acc[1][i - kr]);
                                acc[2][i - kr] = s.fma(v, f[kr * 3], acc[2][i - kr]);
                            }
                        }
                    }
                    if q > 0 {
                        for r in 0..R {
                            store(y.add((r * w + q - 1) * c + at), acc[0][r]);
                        }
                    }
                    acc[0] = acc[1];
                    acc[1] = acc[2];
                }
                for r in 0..R {
                    store(y.add((r * w + w - 1) * c + at), acc[0][r]);
                }
            }
        }
    }
}

/// `out[t][c] = sum over output rows `rows` of x(shifted by tap t) * dy` for one image.
pub(super) fn weight(
    isa: Isa,
    (h, w, c): (usize, usize, usize),
    x: &[f32],
    dy: &[f32],
    zeros: &[f32],
    out: &mut [f32],
    rows: Range<usize>,
) {
    assert!(x.len() == h * w * c && dy.len() == x.len() && zeros.len() == w * c);
    assert!(out.len() == 9 * c && rows.end <= h);
    isa.run(Weight {
        size: (h, w, c),
        x,
        dy,
        zeros,
        out,
        rows,
    });
}

struct Weight<'a> {
    size: (usize, usize, usize),
    x: &'a [f32],
    dy: &'a [f32],
    zeros: &'a [f32],
    out: &'a mut [f32],
    rows: Range<usize>,
}

impl Kernel for Weight<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Weight {
            size: (h, w, c),
            x,
            dy,
            zeros,
            out,
            rows,
        } = self;
        out.fill(0.0);
        for r in rows {
            let mut input = [std::ptr::null(); 3];
            for (i, p) in input.iter_mut().enumerate() {
                *p = input_row(x, zeros, (h, w * c), r, i);
            }
            let dy = dy[r * w * c..(r + 1) * w * c].as_ptr();
            let next = x.as_ptr().wrapping_add((r + 2) * w * c);
            for at in (0..c).step_by(S::N) {
                let n = (c - at).min(S::N);
                let full = n == S::N;
                // SAFETY: rows hold `w` pixels of `c` numbers and `at + n <= c`; `out` holds 9 times `c`.
                unsafe {
                    let load = |p: *const f32| if full { s.load(p) } else { s.load_first(p, n) };
                    let out = out.as_mut_ptr().add(at);
                    let mut acc = [s.zero(); 9];
                    for t in 0..9 {
                        acc[t] = load(out.add(t * c));
                    }
                    // Columns left of, at and right of the output's column.
                    let mut v = [[s.zero(); 3]; 3];
                    for i in 0..3 {
                        v[1][i] = load(input[i].add(at));
                    }
                    for q in 0..w {
                        // The next row.
                        s.prefetch(dy.wrapping_add((w + q) * c + at));
                        s.prefetch(next.wrapping_add(q * c + at));
                        let d = load(dy.add(q * c + at));
                        for i in 0..3 {
                            v[2][i] = if q + 1 < w {
                                load(input[i].add((q + 1) * c + at))
                            } else {
                                s.zero()
                            };
                            for j in 0..3 {
                                acc[i * 3 + j] = s.fma(v[j][i], d, acc[i * 3 + j]);
                            }
                        }
                        v[0] = v[1];
                        v[1] = v[2];
                    }
                    for t in 0..9 {
                        if full {
                            s.store(out.add(t * c), acc[t]);
                        } else {
                            s.store_first(out.add(t * c), acc[t], n);
                        }
                    }
                }
            }
        }
    }
}
