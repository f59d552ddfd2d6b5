//! Depthwise with any filter and stride: the same loops for all sizes.

use std::ops::Range;

use super::super::super::isa::{Isa, Kernel};
use super::super::super::simd::Simd;
use super::super::ConvShape;

/// One image's output rows `rows` into `y`, which holds these rows alone.
pub(super) fn forward(
    isa: Isa,
    shape: &ConvShape,
    x: &[f32],
    w: &[f32],
    y: &mut [f32],
    rows: Range<usize>,
) {
    let s = shape.image();
    let (ow, c, p) = (s.out_w(), s.ci, s.k / 2);
    for (y, at) in y.chunks_mut(c).zip(rows.start * ow..rows.end * ow) {
        y.fill(0.0);
        let (r, q) = (at / ow * s.stride, at % ow * s.stride);
        for t in 0..s.k * s.k {
            if let Some(pixel) = inside(
                &s,
                (r + t / s.k).checked_sub(p),
                (q + t % s.k).checked_sub(p),
            ) {
                isa.run(MulAdd {
                    a: &x[pixel * c..][..c],
                    b: &w[t * c..][..c],
                    out: y,
                });
            }
        }
    }
}

/// One image's input rows `rows` of the gradient into `dx`, which holds these rows alone.
pub(super) fn backward_data(
    isa: Isa,
    shape: &ConvShape,
    dy: &[f32],
    w: &[f32],
    dx: &mut [f32],
    rows: Range<usize>,
    add: bool,
) {
    let s = shape.image();
    let (oh, ow, c, p) = (s.out_h(), s.out_w(), s.ci, s.k / 2);
    // Output position that meets input position `at` under the filter's index `j`.
    let meets = |at: usize, j: usize, out: usize| {
        let o = (at + p).checked_sub(j)?;
        (o.is_multiple_of(s.stride) && o / s.stride < out).then_some(o / s.stride)
    };
    for (dx, at) in dx.chunks_mut(c).zip(rows.start * s.w..rows.end * s.w) {
        if !add {
            dx.fill(0.0);
        }
        for t in 0..s.k * s.k {
            if let (Some(r), Some(q)) = (meets(at / s.w, t / s.k, oh), meets(at % s.w, t % s.k, ow))
            {
                isa.run(MulAdd {
                    a: &dy[(r * ow + q) * c..][..c],
                    b: &w[t * c..][..c],
                    out: dx,
                });
            }
        }
    }
}

/// One image's output rows `rows` of the weight gradient, `out` `[k, k, c]`, overwritten.
pub(super) fn backward_weight(
    isa: Isa,
    shape: &ConvShape,
    x: &[f32],
    dy: &[f32],
    out: &mut [f32],
    rows: Range<usize>,
) {
    let s = shape.image();
    let (ow, c, p) = (s.out_w(), s.ci, s.k / 2);
    out.fill(0.0);
    for (t, out) in out.chunks_mut(c).enumerate() {
        for at in rows.start * ow..rows.end * ow {
            let (r, q) = (at / ow * s.stride, at % ow * s.stride);
            if let Some(pixel) = inside(
                &s,
                (r + t / s.k).checked_sub(p),
                (q + t % s.k).checked_sub(p),
            ) {
                isa.run(MulAdd {
                    a: &x[pixel * c..][..c],
                    b: &dy[at * c..][..c],
                    out,
                });
            }
        }
    }
}

fn inside(s: &ConvShape, r: Option<usize>, q: Option<usize>) -> Option<usize> {
    match (r, q) {
        (Some(r), Some(q)) if r < s.h && q < s.w => Some(r * s.w + q),
        _ => None,
    }
}

/// `out += a * b`
struct MulAdd<'a> {
    a: &'a [f32],
    b: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for MulAdd<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let c = self.out.len();
        assert!(self.a.len() == c && self.b.len() == c);
        let out = self.out.as_mut_ptr();
        for at in (0..c).step_by(S::N) {
            let n = (c - at).min(S::N);
            // SAFETY: all three hold `c` numbers and `at + n <= c`.
            unsafe {
                let a = s.load_first(self.a.as_ptr().add(at), n);
                let b = s.load_first(self.b.as_ptr().add(at), n);
                s.store_first(out.add(at), s.fma(a, b, s.load_first(out.add(at), n)), n);
            }
        }
    }
}
