//! Normalisation and activation.

use rayon::prelude::*;

use super::{Moments, chunk, row_width};
use crate::ops::Activation;
use crate::ops::cpu::aligned::Aligned;
use crate::ops::cpu::isa::{Isa, Kernel};
use crate::ops::cpu::simd::{Simd, sigmoid};

/// The affine map of a batch norm: `z = (y - centre) * scale + shift` for each channel.
///
/// `centre` is the mean rounded to float32 and the rest of the mean is in `shift`, so nothing is lost where the
/// mean is large beside the deviation.
#[derive(Debug, Clone, PartialEq)]
pub struct Affine {
    pub centre: Vec<f32>,
    pub scale: Vec<f32>,
    pub shift: Vec<f32>,
    /// `1 / sqrt(variance + eps)`
    pub inverse: Vec<f64>,
    /// `mean - centre`
    pub rest: Vec<f64>,
}

impl Affine {
    /// With the statistics of a batch.
    #[must_use]
    pub fn of_batch(moments: &Moments, gamma: &[f32], beta: &[f32], eps: f64) -> Self {
        Self::new(&moments.mean, &moments.variance(), gamma, beta, eps)
    }

    /// With given (running) statistics.
    #[must_use]
    pub fn fixed(mean: &[f32], variance: &[f32], gamma: &[f32], beta: &[f32], eps: f64) -> Self {
        let wide = |v: &[f32]| v.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
        Self::new(&wide(mean), &wide(variance), gamma, beta, eps)
    }

    fn new(mean: &[f64], variance: &[f64], gamma: &[f32], beta: &[f32], eps: f64) -> Self {
        let centre: Vec<f32> = mean.iter().map(|&m| m as f32).collect();
        let rest: Vec<f64> = mean
            .iter()
            .zip(&centre)
            .map(|(m, &c)| m - f64::from(c))
            .collect();
        let inverse: Vec<f64> = variance.iter().map(|v| 1.0 / (v + eps).sqrt()).collect();
        let scale = |i: usize| f64::from(gamma[i]) * inverse[i];
        let n = mean.len();
        Self {
            scale: (0..n).map(|i| scale(i) as f32).collect(),
            shift: (0..n)
                .map(|i| (f64::from(beta[i]) - rest[i] * scale(i)) as f32)
                .collect(),
            centre,
            inverse,
            rest,
        }
    }

    pub(super) fn channels(&self) -> usize {
        self.centre.len()
    }

    /// Centre, scale and shift, each repeated to `width`.
    pub(super) fn table(&self, width: usize) -> Aligned {
        Aligned::repeated(&[&self.centre, &self.scale, &self.shift], width)
    }
}

/// `out = act((y - centre) * scale + shift)`, `[.., channels]`.
///
/// # Panics
/// If `y` and `out` differ in length.
pub fn normalise(isa: Isa, y: &[f32], affine: &Affine, act: Activation, out: &mut [f32]) {
    assert_eq!(y.len(), out.len(), "input and output of a batch norm");
    let width = row_width(affine.channels(), isa.width());
    let table = affine.table(width);
    let chunk = chunk(width);
    let pairs = out.par_chunks_mut(chunk).zip(y.par_chunks(chunk));
    pairs.for_each(|(out, y)| {
        isa.run(Forward {
            y: y.as_ptr(),
            out,
            width,
            table: &table,
            act,
        })
    });
}

/// As [`normalise`], over `y` itself.
pub fn normalise_in_place(isa: Isa, y: &mut [f32], affine: &Affine, act: Activation) {
    let width = row_width(affine.channels(), isa.width());
    let table = affine.table(width);
    y.par_chunks_mut(chunk(width)).for_each(|out| {
        isa.run(Forward {
            y: out.as_mut_ptr(),
            out,
            width,
            table: &table,
            act,
        })
    });
}

/// `y` has the length of `out` and is `out` or lies apart from it.
struct Forward<'a> {
    y: *const f32,
    out: &'a mut [f32],
    width: usize,
    table: &'a [f32],
    act: Activation,
}

impl Kernel for Forward<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.act {
            Activation::Silu => self.rows::<S, true>(s),
            Activation::Identity => self.rows::<S, false>(s),
        }
    }
}

impl Forward<'_> {
    #[inline(always)]
    fn rows<S: Simd, const SILU: bool>(self, s: S) {
        let (w, t) = (self.width, self.table.as_ptr());
        debug_assert_eq!(self.table.len(), 3 * w);
        let y = self.y;
        for (r, row) in self.out.chunks_mut(w).enumerate() {
            let n = row.len();
            let out = row.as_mut_ptr();
            let mut j = 0;
            while j < n {
                // SAFETY: both have `r * w + n` floats from their start on and the table `3 w`.
                unsafe {
                    let y = y.add(r * w + j);
                    let left = n - j;
                    if left >= S::N {
                        let a = activated::<S, SILU>(s, affine_at(s, s.load(y), t.add(j), w).1);
                        s.store(out.add(j), a);
                    } else {
                        let y = s.load_first(y, left);
                        let a = activated::<S, SILU>(s, affine_at(s, y, t.add(j), w).1);
                        s.store_first(out.add(j), a, left);
                    }
                }
                j += S::N;
            }
        }
    }
}

/// `(y - centre, z)`
///
/// # Safety
/// `t`, `t + w` and `t + 2 w` each start a vector: centre, scale, shift.
#[inline(always)]
pub(super) unsafe fn affine_at<S: Simd>(s: S, y: S::V, t: *const f32, w: usize) -> (S::V, S::V) {
    // SAFETY: the caller's.
    unsafe {
        let d = s.sub(y, s.load(t));
        (d, s.fma(d, s.load(t.add(w)), s.load(t.add(2 * w))))
    }
}

#[inline(always)]
fn activated<S: Simd, const SILU: bool>(s: S, z: S::V) -> S::V {
    if SILU { s.mul(z, sigmoid(s, z)) } else { z }
}
