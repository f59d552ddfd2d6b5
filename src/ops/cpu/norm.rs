//! Batch norm and activation: statistics, normalisation, gradients.
//!
//! Forward: [`moments`] of each lane, merged by [`tree`] (and over a process group), [`Affine::of_batch`],
//! [`normalise`]. Backward: [`gradient_sums`] of each lane, merged likewise, [`GradientSums::finish`],
//! [`input_gradient`]. Sums have an order given by shapes alone: a lane's partial has the same bytes whether it is
//! computed alone or beside others, on any number of threads.
//!
//! Activations are seen as a matrix with rows of `W` floats, a common multiple of the channels and the vector's
//! width: per-channel values repeated to `W` floats then line up with whole vectors for any number of channels.

use std::ops::Range;

use rayon::prelude::*;

use super::aligned::Aligned;
use super::isa::{Isa, Kernel};
use super::simd::{Simd, sigmoid};
use crate::ops::Activation;

/// Rows of the matrix that are summed in float32 before the sum is carried to float64.
const ROWS: usize = 128;
/// Rows have at least this many vectors, so that a sum is not needed again before it has been stored.
const MIN_VECTORS: usize = 8;
/// About how many floats a task of a reduction has.
const TASK: usize = 1 << 16;
/// About how many floats a task of an elementwise pass has.
const CHUNK: usize = 1 << 14;
/// Pixels whose mean is the shift of a piece's sums.
const SHIFT_PIXELS: usize = 16;

/// Merges neighbours until one is left: with a power of two lanes on each rank, every rank's part is a subtree.
pub fn tree<T>(mut parts: Vec<T>, merge: impl Fn(T, T) -> T) -> Option<T> {
    while parts.len() > 1 {
        let mut rest = parts.into_iter();
        let mut next = vec![];
        while let Some(a) = rest.next() {
            next.push(match rest.next() {
                Some(b) => merge(a, b),
                None => a,
            });
        }
        parts = next;
    }
    parts.pop()
}

/// Count, mean and sum of squared deviations of each channel.
#[derive(Debug, Clone, PartialEq)]
pub struct Moments {
    /// Elements of each channel.
    pub count: f64,
    /// `[channels]`
    pub mean: Vec<f64>,
    /// Sum of `(x - mean)^2`, `[channels]`.
    pub m2: Vec<f64>,
}

impl Moments {
    /// Of no element.
    #[must_use]
    pub fn empty(channels: usize) -> Self {
        Self {
            count: 0.0,
            mean: vec![0.0; channels],
            m2: vec![0.0; channels],
        }
    }

    /// Of both sets of elements (Chan, Golub and LeVeque 1979).
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        self.absorb(&other);
        self
    }

    #[inline(always)]
    fn absorb(&mut self, other: &Self) {
        if other.count == 0.0 {
            return;
        }
        if self.count == 0.0 {
            self.clone_from(other);
            return;
        }
        let count = self.count + other.count;
        let part = other.count / count;
        let cross = self.count * part;
        let here = self.mean.iter_mut().zip(&mut self.m2);
        for ((mean, m2), (om, o2)) in here.zip(other.mean.iter().zip(&other.m2)) {
            let d = om - *mean;
            *mean += d * part;
            *m2 += o2 + d * d * cross;
        }
        self.count = count;
    }

    /// Biased variance of each channel.
    #[must_use]
    pub fn variance(&self) -> Vec<f64> {
        let n = self.count.max(1.0);
        self.m2.iter().map(|m| m / n).collect()
    }
}

/// Moments of each lane (a range of images) of `x` `[images, pixels, channels]`.
///
/// # Panics
/// If a lane reaches beyond the images of `x`.
#[must_use]
pub fn moments(
    isa: Isa,
    x: &[f32],
    pixels: usize,
    channels: usize,
    lanes: &[Range<usize>],
) -> Vec<Moments> {
    let plan = Plan::new(isa, pixels, channels);
    let parts = plan.tasks(lanes, |at| {
        isa.run(MomentsOf {
            x: &x[at],
            channels,
            width: plan.width,
        })
    });
    plan.per_lane(parts, lanes, Moments::empty(channels), |a, b| a.absorb(b))
}

/// How a reduction over `[images, pixels, channels]` is cut: a function of the shape and the vector's width.
struct Plan {
    /// Floats of a row of the matrix.
    width: usize,
    /// Floats of an image.
    image: usize,
    /// Floats of a task, whole pixels.
    task: usize,
}

impl Plan {
    fn new(isa: Isa, pixels: usize, channels: usize) -> Self {
        let width = row_width(channels, isa.width());
        Self {
            width,
            image: pixels * channels,
            task: ROWS * width * (TASK / (ROWS * width)).max(1),
        }
    }

    /// Runs `f` on the place of each task: lane by lane, image by image, in order.
    fn tasks<T: Send>(
        &self,
        lanes: &[Range<usize>],
        f: impl Fn(Range<usize>) -> T + Sync,
    ) -> Vec<T> {
        let each = self.image.div_ceil(self.task);
        let images: Vec<usize> = lanes.iter().flat_map(Range::clone).collect();
        (0..images.len() * each)
            .into_par_iter()
            .map(|t| {
                let first = images[t / each] * self.image;
                let at = t % each * self.task;
                f(first + at..first + (at + self.task).min(self.image))
            })
            .collect()
    }

    /// Adds up the results of [`Self::tasks`] of each lane.
    fn per_lane<T: Clone>(
        &self,
        parts: Vec<T>,
        lanes: &[Range<usize>],
        empty: T,
        add: impl Fn(&mut T, &T),
    ) -> Vec<T> {
        let each = self.image.div_ceil(self.task);
        let mut parts = parts.iter();
        let lane = |lane: &Range<usize>| {
            let mut total = empty.clone();
            for _ in lane.clone() {
                // an image is one summand: its bytes do not depend on what stands before it
                let mut image = empty.clone();
                parts.by_ref().take(each).for_each(|p| add(&mut image, p));
                add(&mut total, &image);
            }
            total
        };
        lanes.iter().map(lane).collect()
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The smallest common multiple of channels and vector that has `MIN_VECTORS`.
fn row_width(channels: usize, vector: usize) -> usize {
    let both = channels / gcd(channels, vector) * vector;
    both * (MIN_VECTORS * vector).div_ceil(both)
}

/// Adds the sums of a row to those of the channels.
#[inline(always)]
fn fold(row: &[f32], sums: &mut [f64]) {
    for pixel in row.chunks_exact(sums.len()) {
        for (s, &v) in sums.iter_mut().zip(pixel) {
            *s += f64::from(v);
        }
    }
}

/// `n <= N` floats from `p`, `fill` behind them.
///
/// # Safety
/// `p..p + n` can be read.
#[inline(always)]
unsafe fn load_or<S: Simd>(s: S, p: *const f32, n: usize, fill: S::V) -> S::V {
    const { assert!(S::N <= 16) };
    let mut v = [0.0f32; 16];
    // SAFETY: the array holds a vector, `n <= N` of it come from the caller's.
    unsafe {
        s.store(v.as_mut_ptr(), fill);
        std::ptr::copy_nonoverlapping(p, v.as_mut_ptr(), n);
        s.load(v.as_ptr())
    }
}

struct MomentsOf<'a> {
    x: &'a [f32],
    channels: usize,
    width: usize,
}

impl Kernel for MomentsOf<'_> {
    type Output = Moments;

    /// Sums of `d = x - shift` and `d^2` in pieces, where the shift is the mean of some pixels of the piece: the
    /// variance loses at most (1 + pixels / 16) units of rounding, however far the mean is from zero.
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Moments {
        let (c, w) = (self.channels, self.width);
        let mut total = Moments::empty(c);
        let mut part = Moments::empty(c);
        let [mut shift, mut sum, mut square] = [(); 3].map(|()| Aligned::zeros(w));
        for piece in self.x.chunks(ROWS * w) {
            let pixels = piece.len() / c;
            shift_of(piece, &mut shift, c);
            let full = piece.len() / w * w;
            let mut j = 0;
            while j < w {
                let at = (&piece[..full], &*shift, &mut *sum, &mut *square);
                // two sums for each vector stay in registers
                j += S::N
                    * match (w - j) / S::N {
                        8.. if S::REGISTERS >= 32 => deviations::<S, 8>(s, at, w, j),
                        4.. => deviations::<S, 4>(s, at, w, j),
                        _ => deviations::<S, 1>(s, at, w, j),
                    };
            }
            let row = &piece[full..];
            for j in (0..row.len()).step_by(S::N) {
                // SAFETY: the row has less than `w` floats, a multiple of the vector's width; the others `w`.
                unsafe {
                    let m = s.load(shift.as_ptr().add(j));
                    let left = (row.len() - j).min(S::N);
                    // the shift itself adds nothing
                    let d = s.sub(load_or(s, row.as_ptr().add(j), left, m), m);
                    let a = sum.as_mut_ptr().add(j);
                    s.store(a, s.add(s.load(a), d));
                    let a = square.as_mut_ptr().add(j);
                    s.store(a, s.fma(d, d, s.load(a)));
                }
            }
            part.count = pixels as f64;
            part.mean.fill(0.0);
            part.m2.fill(0.0);
            fold(&sum, &mut part.mean);
            fold(&square, &mut part.m2);
            for ((mean, m2), &shift) in part.mean.iter_mut().zip(&mut part.m2).zip(shift.iter()) {
                let d = *mean / part.count;
                // not max(0, .): that would hide what is not a number
                let centred = *m2 - *mean * d;
                *m2 = if centred < 0.0 { 0.0 } else { centred };
                *mean = f64::from(shift) + d;
            }
            total.absorb(&part);
        }
        total
    }
}

/// Sums of `x - shift` and of its square over the rows of `x`, in the columns `j..j + G * N`; returns `G`.
#[inline(always)]
fn deviations<S: Simd, const G: usize>(
    s: S,
    (x, shift, sum, square): (&[f32], &[f32], &mut [f32], &mut [f32]),
    w: usize,
    j: usize,
) -> usize {
    // SAFETY: `j + G * N <= w`, the length of all but `x`, which is whole rows of `w`.
    unsafe {
        let mut shifts = [s.zero(); G];
        for (i, m) in shifts.iter_mut().enumerate() {
            *m = s.load(shift.as_ptr().add(j + i * S::N));
        }
        let (mut a, mut b) = ([s.zero(); G], [s.zero(); G]);
        let mut p = x.as_ptr().wrapping_add(j);
        for _ in 0..x.len() / w {
            for i in 0..G {
                let d = s.sub(s.load(p.add(i * S::N)), shifts[i]);
                a[i] = s.add(a[i], d);
                b[i] = s.fma(d, d, b[i]);
            }
            p = p.wrapping_add(w);
        }
        for i in 0..G {
            s.store(sum.as_mut_ptr().add(j + i * S::N), a[i]);
            s.store(square.as_mut_ptr().add(j + i * S::N), b[i]);
        }
    }
    G
}

/// The mean of some pixels of a piece, for each channel, repeated over the row.
#[inline(always)]
fn shift_of(piece: &[f32], shift: &mut [f32], channels: usize) {
    let pixels = piece.len() / channels;
    let n = pixels.min(SHIFT_PIXELS);
    shift[..channels].fill(0.0);
    for i in 0..n {
        let at = i * pixels / n * channels;
        for (s, x) in shift[..channels].iter_mut().zip(&piece[at..]) {
            *s += x;
        }
    }
    let part = 1.0 / n as f32;
    shift[..channels].iter_mut().for_each(|s| *s *= part);
    let mut done = channels;
    while done < shift.len() {
        let n = done.min(shift.len() - done);
        shift.copy_within(..n, done);
        done += n;
    }
}

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

    fn channels(&self) -> usize {
        self.centre.len()
    }

    /// Centre, scale and shift, each repeated to `width`.
    fn table(&self, width: usize) -> Aligned {
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

/// Floats of a task of an elementwise pass, whole rows.
fn chunk(width: usize) -> usize {
    width * (CHUNK / width).max(1)
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
unsafe fn affine_at<S: Simd>(s: S, y: S::V, t: *const f32, w: usize) -> (S::V, S::V) {
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

/// Gradient with respect to `z` from that with respect to `act(z)`.
#[inline(always)]
fn through_act<S: Simd, const SILU: bool>(s: S, z: S::V, da: S::V) -> S::V {
    if SILU {
        let g = sigmoid(s, z);
        let one = s.splat(1.0);
        s.mul(da, s.mul(g, s.fma(z, s.sub(one, g), one)))
    } else {
        da
    }
}

/// Sums of the gradient `dz` with respect to `z`, over elements of each channel.
#[derive(Debug, Clone, PartialEq)]
pub struct GradientSums {
    /// Sum of `dz`: the gradient of beta, `[channels]`.
    pub dz: Vec<f64>,
    /// Sum of `dz (y - centre)`, `[channels]`.
    pub dz_centred: Vec<f64>,
}

impl GradientSums {
    /// Of no element.
    #[must_use]
    pub fn empty(channels: usize) -> Self {
        Self {
            dz: vec![0.0; channels],
            dz_centred: vec![0.0; channels],
        }
    }

    /// Of both sets of elements.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        self.absorb(&other);
        self
    }

    #[inline(always)]
    fn absorb(&mut self, other: &Self) {
        for (a, b) in self.dz.iter_mut().zip(&other.dz) {
            *a += b;
        }
        for (a, b) in self.dz_centred.iter_mut().zip(&other.dz_centred) {
            *a += b;
        }
    }

    /// Gradients of gamma and beta, and the map from `dz` to the gradient of the input.
    ///
    /// `count` is the number of elements of each channel that the statistics come from (all lanes, all ranks);
    /// `None` where they were given and are constants.
    #[must_use]
    pub fn finish(&self, affine: &Affine, count: Option<f64>) -> NormGradient {
        let c = affine.channels();
        let mut g = NormGradient {
            gamma: vec![0.0; c],
            beta: vec![0.0; c],
            scale: affine.scale.clone(),
            slope: vec![0.0; c],
            offset: vec![0.0; c],
        };
        for i in 0..c {
            let (inverse, rest) = (affine.inverse[i], affine.rest[i]);
            // sum of dz * xhat, where xhat = (y - centre - rest) * inverse
            let dz_hat = inverse * (self.dz_centred[i] - rest * self.dz[i]);
            g.gamma[i] = dz_hat as f32;
            g.beta[i] = self.dz[i] as f32;
            if let Some(n) = count {
                // dy = scale (dz - sum(dz) / n - xhat sum(dz xhat) / n)
                let scale = f64::from(affine.scale[i]);
                let slope = -scale * inverse * dz_hat / n;
                g.slope[i] = slope as f32;
                g.offset[i] = (-scale * self.dz[i] / n - slope * rest) as f32;
            }
        }
        g
    }
}

/// Gradients of a batch norm's parameters, and `dy = scale dz + slope (y - centre) + offset`.
#[derive(Debug, Clone, PartialEq)]
pub struct NormGradient {
    pub gamma: Vec<f32>,
    pub beta: Vec<f32>,
    pub scale: Vec<f32>,
    pub slope: Vec<f32>,
    pub offset: Vec<f32>,
}

/// Sums of each lane (a range of images) for the gradient `da` with respect to the activations;
/// `y` and `da` `[images, pixels, channels]`, `y` as it went into [`normalise`].
///
/// # Panics
/// If `y` and `da` differ in length or a lane reaches beyond their images.
#[must_use]
pub fn gradient_sums(
    isa: Isa,
    y: &[f32],
    da: &[f32],
    pixels: usize,
    affine: &Affine,
    act: Activation,
    lanes: &[Range<usize>],
) -> Vec<GradientSums> {
    assert_eq!(y.len(), da.len(), "input and gradient of a batch norm");
    let channels = affine.channels();
    let plan = Plan::new(isa, pixels, channels);
    let table = affine.table(plan.width);
    let parts = plan.tasks(lanes, |at| {
        isa.run(SumsOf {
            y: &y[at.clone()],
            da: &da[at],
            channels,
            width: plan.width,
            table: &table,
            act,
        })
    });
    plan.per_lane(parts, lanes, GradientSums::empty(channels), |a, b| {
        a.absorb(b);
    })
}

struct SumsOf<'a> {
    y: &'a [f32],
    da: &'a [f32],
    channels: usize,
    width: usize,
    table: &'a [f32],
    act: Activation,
}

impl Kernel for SumsOf<'_> {
    type Output = GradientSums;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> GradientSums {
        match self.act {
            Activation::Silu => self.rows::<S, true>(s),
            Activation::Identity => self.rows::<S, false>(s),
        }
    }
}

impl SumsOf<'_> {
    #[inline(always)]
    fn rows<S: Simd, const SILU: bool>(self, s: S) -> GradientSums {
        let (w, t) = (self.width, self.table.as_ptr());
        debug_assert_eq!(self.table.len(), 3 * w);
        let mut total = GradientSums::empty(self.channels);
        let (mut sum, mut centred) = (Aligned::zeros(w), Aligned::zeros(w));
        for (y, da) in self.y.chunks(ROWS * w).zip(self.da.chunks(ROWS * w)) {
            let full = y.len() / w * w;
            let mut j = 0;
            while j < w {
                let from = (&y[..full], &da[..full], self.table);
                let to = (&mut *sum, &mut *centred);
                j += S::N
                    * match (w - j) / S::N {
                        4.. if S::REGISTERS >= 32 => column_sums::<S, SILU, 4>(s, from, to, w, j),
                        2.. => column_sums::<S, SILU, 2>(s, from, to, w, j),
                        _ => column_sums::<S, SILU, 1>(s, from, to, w, j),
                    };
            }
            let (y, da) = (&y[full..], &da[full..]);
            for j in (0..y.len()).step_by(S::N) {
                // SAFETY: both rows have less than `w` floats, the sums `w`, the table `3 w`.
                unsafe {
                    let left = (y.len() - j).min(S::N);
                    // without a gradient nothing is added behind the end
                    let da = s.load_first(da.as_ptr().add(j), left);
                    let y = s.load_first(y.as_ptr().add(j), left);
                    let (d, z) = affine_at(s, y, t.add(j), w);
                    let dz = through_act::<S, SILU>(s, z, da);
                    let a = sum.as_mut_ptr().add(j);
                    s.store(a, s.add(s.load(a), dz));
                    let a = centred.as_mut_ptr().add(j);
                    s.store(a, s.fma(dz, d, s.load(a)));
                }
            }
            fold(&sum, &mut total.dz);
            fold(&centred, &mut total.dz_centred);
        }
        total
    }
}

/// Sums of `dz` and `dz (y - centre)` over the rows of `y` and `da`, in the columns `j..j + G * N`; returns `G`.
#[inline(always)]
fn column_sums<S: Simd, const SILU: bool, const G: usize>(
    s: S,
    (y, da, table): (&[f32], &[f32], &[f32]),
    (sum, centred): (&mut [f32], &mut [f32]),
    w: usize,
    j: usize,
) -> usize {
    // SAFETY: `j + G * N <= w`; `y` and `da` are equally many whole rows of `w`, the sums have `w`, the table `3 w`.
    unsafe {
        let t = table.as_ptr().add(j);
        let (mut a, mut b) = ([s.zero(); G], [s.zero(); G]);
        let (mut y_at, mut da_at) = (y.as_ptr().wrapping_add(j), da.as_ptr().wrapping_add(j));
        for _ in 0..y.len() / w {
            for i in 0..G {
                let (y, da) = (s.load(y_at.add(i * S::N)), s.load(da_at.add(i * S::N)));
                let (d, z) = affine_at(s, y, t.add(i * S::N), w);
                let dz = through_act::<S, SILU>(s, z, da);
                a[i] = s.add(a[i], dz);
                b[i] = s.fma(dz, d, b[i]);
            }
            y_at = y_at.wrapping_add(w);
            da_at = da_at.wrapping_add(w);
        }
        for i in 0..G {
            s.store(sum.as_mut_ptr().add(j + i * S::N), a[i]);
            s.store(centred.as_mut_ptr().add(j + i * S::N), b[i]);
        }
    }
    G
}

/// Gradient with respect to `y` from that with respect to the activations: `dy` may not overlap the others.
///
/// # Panics
/// If lengths differ.
pub fn input_gradient(
    isa: Isa,
    y: &[f32],
    da: &[f32],
    affine: &Affine,
    act: Activation,
    gradient: &NormGradient,
    dy: &mut [f32],
) {
    assert_eq!(y.len(), da.len(), "input and gradient of a batch norm");
    assert_eq!(y.len(), dy.len(), "gradients of a batch norm");
    let width = row_width(affine.channels(), isa.width());
    let table = gradient.table(affine, width);
    let chunk = chunk(width);
    let parts = dy.par_chunks_mut(chunk).zip(da.par_chunks(chunk));
    parts.zip(y.par_chunks(chunk)).for_each(|((dy, da), y)| {
        isa.run(Backward {
            y,
            da: da.as_ptr(),
            dy,
            width,
            table: &table,
            act,
        })
    });
}

/// As [`input_gradient`], over the gradient itself.
///
/// # Panics
/// If lengths differ.
pub fn input_gradient_in_place(
    isa: Isa,
    y: &[f32],
    da: &mut [f32],
    affine: &Affine,
    act: Activation,
    gradient: &NormGradient,
) {
    assert_eq!(y.len(), da.len(), "input and gradient of a batch norm");
    let width = row_width(affine.channels(), isa.width());
    let table = gradient.table(affine, width);
    let chunk = chunk(width);
    let parts = da.par_chunks_mut(chunk).zip(y.par_chunks(chunk));
    parts.for_each(|(dy, y)| {
        isa.run(Backward {
            y,
            da: dy.as_mut_ptr(),
            dy,
            width,
            table: &table,
            act,
        })
    });
}

impl NormGradient {
    fn table(&self, affine: &Affine, width: usize) -> Aligned {
        let (a, g) = (affine, self);
        let columns: [&[f32]; 6] = [&a.centre, &a.scale, &a.shift, &g.scale, &g.slope, &g.offset];
        Aligned::repeated(&columns, width)
    }
}

/// `y` and `da` have the length of `dy`; `da` is `dy` or lies apart from it.
struct Backward<'a> {
    y: &'a [f32],
    da: *const f32,
    dy: &'a mut [f32],
    width: usize,
    table: &'a [f32],
    act: Activation,
}

impl Kernel for Backward<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.act {
            Activation::Silu => self.rows::<S, true>(s),
            Activation::Identity => self.rows::<S, false>(s),
        }
    }
}

impl Backward<'_> {
    #[inline(always)]
    fn rows<S: Simd, const SILU: bool>(self, s: S) {
        let (w, t) = (self.width, self.table.as_ptr());
        debug_assert_eq!(self.table.len(), 6 * w);
        let da = self.da;
        for (r, (row, y)) in self.dy.chunks_mut(w).zip(self.y.chunks(w)).enumerate() {
            let n = row.len();
            let dy = row.as_mut_ptr();
            let mut j = 0;
            while j < n {
                // SAFETY: `da` has `r * w + n` floats, the rows `n`, the table `6 w`.
                unsafe {
                    let (left, t) = (n - j, t.add(j));
                    let (y, da) = (y.as_ptr().add(j), da.add(r * w + j));
                    if left >= S::N {
                        let v = input_gradient_at::<S, SILU>(s, s.load(y), s.load(da), t, w);
                        s.store(dy.add(j), v);
                    } else {
                        let (y, da) = (s.load_first(y, left), s.load_first(da, left));
                        let v = input_gradient_at::<S, SILU>(s, y, da, t, w);
                        s.store_first(dy.add(j), v, left);
                    }
                }
                j += S::N;
            }
        }
    }
}

/// # Safety
/// `t + i w` starts a vector for `i < 6`: centre, scale, shift, then scale, slope, offset of the gradient.
#[inline(always)]
unsafe fn input_gradient_at<S: Simd, const SILU: bool>(
    s: S,
    y: S::V,
    da: S::V,
    t: *const f32,
    w: usize,
) -> S::V {
    // SAFETY: the caller's.
    unsafe {
        let (d, z) = affine_at(s, y, t, w);
        let dz = through_act::<S, SILU>(s, z, da);
        let rest = s.fma(d, s.load(t.add(4 * w)), s.load(t.add(5 * w)));
        s.fma(dz, s.load(t.add(3 * w)), rest)
    }
}

#[cfg(test)]
#[path = "norm_tests.rs"]
mod tests;
