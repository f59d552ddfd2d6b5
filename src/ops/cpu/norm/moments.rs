//! Statistics of a batch.

use std::ops::Range;

use super::{Plan, ROWS, Statistic, fold};
use crate::ops::cpu::aligned::Aligned;
use crate::ops::cpu::isa::{Isa, Kernel};
use crate::ops::cpu::simd::Simd;

/// Rows that are added at once: a sum that was just stored is slow to load again.
const TOGETHER: usize = 4;
/// Pixels whose mean is the shift of a piece's sums.
const SHIFT_PIXELS: usize = 16;

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

impl Statistic for Moments {
    const WHAT: &'static str = "statistics";
    fn empty(channels: usize) -> Self {
        Self::empty(channels)
    }
    fn merge(self, other: Self) -> Self {
        self.merge(other)
    }
    fn width(channels: usize) -> usize {
        1 + 2 * channels
    }
    fn pack(&self, into: &mut Vec<f64>) {
        into.push(self.count);
        into.extend_from_slice(&self.mean);
        into.extend_from_slice(&self.m2);
    }
    fn unpack(numbers: &[f64], channels: usize) -> Self {
        let (count, rest) = numbers.split_at(1);
        let (mean, m2) = rest.split_at(channels);
        Self {
            count: count[0],
            mean: mean.to_vec(),
            m2: m2.to_vec(),
        }
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
            sum.fill(0.0);
            square.fill(0.0);
            let mut rows = piece[..full].chunks_exact(TOGETHER * w);
            for rows in rows.by_ref() {
                deviations::<S, TOGETHER>(s, rows, &shift, &mut sum, &mut square);
            }
            for row in rows.remainder().chunks_exact(w) {
                deviations::<S, 1>(s, row, &shift, &mut sum, &mut square);
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

/// Adds `x - shift` and its square to the sums, for `R` rows.
#[inline(always)]
fn deviations<S: Simd, const R: usize>(
    s: S,
    rows: &[f32],
    shift: &[f32],
    sum: &mut [f32],
    square: &mut [f32],
) {
    let w = shift.len();
    debug_assert!(rows.len() == R * w && sum.len() == w && square.len() == w);
    let mut j = 0;
    while j < w {
        // SAFETY: `j + N <= w`, the length of each row and of the others.
        unsafe {
            let m = s.load(shift.as_ptr().add(j));
            let (sum, square) = (sum.as_mut_ptr().add(j), square.as_mut_ptr().add(j));
            let (mut a, mut b) = (s.load(sum), s.load(square));
            for r in 0..R {
                let x = rows.as_ptr().add(r * w + j);
                // the hardware does not follow several rows at once
                s.prefetch(x.wrapping_add(2 * R * w));
                let d = s.sub(s.load(x), m);
                a = s.add(a, d);
                b = s.fma(d, d, b);
            }
            s.store(sum, a);
            s.store(square, b);
        }
        j += S::N;
    }
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
