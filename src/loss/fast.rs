//! The loss of a head and its gradient in one pass over raw outputs on the host: the same numbers as
//! [`super::head_loss`], whose formulas see there.
//!
//! Classification runs in float32 vectors over all anchors and classes as if every target were 0; the few that are
//! not, and all of the boxes, follow in float64. Sums are formed in pieces of fixed size, then over the image, its
//! lane and the lanes' tree, in float64: the number of threads changes no byte.

use std::cell::{Cell, RefCell};
use std::f64::consts::PI;
use std::ops::Range;

use rayon::prelude::*;

use super::anchors::Anchors;
use super::assign::{GroundTruth, Positive, assign};
use super::criterion::{Components, Criterion};
use crate::ops::cpu::isa::{Isa, Kernel};
use crate::ops::cpu::simd::{Simd, exp};

/// Scores of a task.
const TASK: usize = 1 << 14;
/// Vectors that are summed in float32 before the sum is carried to float64.
const PIECE: usize = 64;
/// As in [`super::boxes`].
const EPS: f64 = 1e-7;

/// Raw outputs of a head for `n` images.
#[derive(Debug, Clone, Copy)]
pub struct RawHead<'a> {
    /// `[n, anchors, 4 * reg_max]`: distances left, top, right, bottom in stride units, or logits of their bins.
    pub boxes: &'a [f32],
    /// `[n, anchors, classes]` logits.
    pub scores: &'a [f32],
    pub classes: usize,
}

/// Loss of a head over some images, not normalised.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct FastLoss {
    /// Numerators without gains.
    pub sums: Components,
    /// Sum of the soft targets.
    pub score_sum: f64,
    /// Number of positive anchors.
    pub positives: usize,
}

impl FastLoss {
    /// Of both sets of images.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        self.sums.add(other.sums);
        self.score_sum += other.score_sum;
        self.positives += other.positives;
        self
    }
}

/// Loss of `out` against `truths` (one list per image), and the gradient of `weight` times its gained sum
/// (`sum of gain * numerator`) with respect to boxes and scores, which overwrites `d_boxes` and `d_scores`.
///
/// `lanes` are ranges of images that make up all of them; the result has one loss for each.
///
/// # Panics
/// If lengths do not fit the anchors and the number of lists.
#[allow(clippy::too_many_arguments)]
pub fn head_loss_and_gradient(
    isa: Isa,
    out: RawHead,
    truths: &[Vec<GroundTruth>],
    anchors: &Anchors,
    c: &Criterion,
    weight: f64,
    lanes: &[Range<usize>],
    d_boxes: &mut [f32],
    d_scores: &mut [f32],
) -> Vec<FastLoss> {
    let (boxes, scores) = (anchors.len() * 4 * c.reg_max, anchors.len() * out.classes);
    let n = truths.len();
    assert_eq!(out.boxes.len(), n * boxes, "box outputs of {n} images");
    assert_eq!(out.scores.len(), n * scores, "score outputs of {n} images");
    assert_eq!(d_boxes.len(), n * boxes, "gradient of box outputs");
    assert_eq!(d_scores.len(), n * scores, "gradient of score outputs");
    if n * scores == 0 {
        d_boxes.fill(0.0);
        return vec![FastLoss::default(); lanes.len()];
    }
    let by_score = c.class_weights.map(|w| by_score(w, out.classes));
    let outputs = out
        .boxes
        .par_chunks(boxes)
        .zip(out.scores.par_chunks(scores));
    let gradients = d_boxes
        .par_chunks_mut(boxes)
        .zip(d_scores.par_chunks_mut(scores));
    let images: Vec<FastLoss> = outputs
        .zip(gradients)
        .zip(truths)
        .map(|(((boxes, scores), (d_boxes, d_scores)), truths)| {
            let image = Image {
                isa,
                boxes,
                scores,
                classes: out.classes,
                truths,
                anchors,
                c,
                by_score: by_score.as_deref(),
                weight,
            };
            image.loss(d_boxes, d_scores)
        })
        .collect();
    let lane = |lane: &Range<usize>| {
        images[lane.clone()]
            .iter()
            .fold(FastLoss::default(), |a, b| a.merge(*b))
    };
    lanes.iter().map(lane).collect()
}

/// The classes' weights over and over, for the scores of a task that begins at any class.
fn by_score(class_weights: &[f64], classes: usize) -> Vec<f32> {
    assert_eq!(class_weights.len(), classes, "weights of {classes} classes");
    let narrow = class_weights.iter().map(|&w| w as f32);
    narrow.cycle().take(TASK + classes).collect()
}

/// One image of a head's outputs.
struct Image<'a> {
    isa: Isa,
    boxes: &'a [f32],
    scores: &'a [f32],
    classes: usize,
    truths: &'a [GroundTruth],
    anchors: &'a Anchors,
    c: &'a Criterion<'a>,
    /// As [`by_score`] gives them.
    by_score: Option<&'a [f32]>,
    weight: f64,
}

impl Image<'_> {
    fn loss(&self, d_boxes: &mut [f32], d_scores: &mut [f32]) -> FastLoss {
        let gains = self.c.gains;
        let scale = self.weight * gains.classes;
        let tasks = self
            .scores
            .par_chunks(TASK)
            .zip(d_scores.par_chunks_mut(TASK));
        let parts: Vec<f64> = tasks
            .enumerate()
            .map(|(i, (x, d))| {
                let first = i * TASK % self.classes;
                let weights = self.by_score.map(|w| &w[first..first + x.len()]);
                self.isa.run(Negatives {
                    x,
                    d,
                    weights,
                    scale: scale as f32,
                })
            })
            .collect();
        let mut loss = FastLoss::default();
        loss.sums.classes = parts.iter().sum();

        d_boxes.fill(0.0);
        let width = 4 * self.c.reg_max;
        let mut powers = vec![0.0; width];
        for p in self.positives() {
            let t = self.truths[p.truth];
            loss.score_sum += p.score;
            loss.positives += 1;
            let at = p.anchor * self.classes + t.class;
            let x = f64::from(self.scores[at]);
            let of_class = self.c.class_weights.map_or(1.0, |w| w[t.class]);
            loss.sums.classes -= x * p.score * of_class;
            d_scores[at] = ((sigmoid(x) - p.score) * (scale * of_class)) as f32;

            let at = p.anchor * width..(p.anchor + 1) * width;
            let (boxes, dist) = self.box_terms(
                &self.boxes[at.clone()],
                &p,
                &t,
                &mut powers,
                &mut d_boxes[at],
            );
            loss.sums.boxes += boxes * p.score;
            loss.sums.distances += dist * p.score;
        }
        loss
    }

    fn positives(&self) -> Vec<Positive> {
        let width = 4 * self.c.reg_max;
        let score = |anchor: usize, class: usize| {
            sigmoid(f64::from(self.scores[anchor * self.classes + class]))
        };
        let powers = RefCell::new(vec![0.0; width]);
        let decode = |anchor: usize| {
            let raw = &self.boxes[anchor * width..][..width];
            self.anchors.to_box(
                anchor,
                self.sides(raw, &mut powers.borrow_mut()).map(|s| s.mean),
            )
        };
        if self.c.reg_max == 1 {
            return assign(self.anchors, self.truths, self.c.topk, score, decode);
        }
        // a distribution is decoded once, also where many objects ask for it
        let decoded = vec![
            Cell::new(None);
            if self.truths.is_empty() {
                0
            } else {
                self.anchors.len()
            }
        ];
        assign(self.anchors, self.truths, self.c.topk, score, |anchor| {
            decoded[anchor].get().unwrap_or_else(|| {
                let b = decode(anchor);
                decoded[anchor].set(Some(b));
                b
            })
        })
    }

    /// The four distances of an anchor, `powers` as [`Sides`] leaves them.
    fn sides(&self, raw: &[f32], powers: &mut [f64]) -> [Side; 4] {
        if self.c.reg_max == 1 {
            return std::array::from_fn(|i| Side {
                mean: f64::from(raw[i]),
                ..Side::default()
            });
        }
        self.isa.run(Sides { raw, powers })
    }

    /// `1 - CIoU` and the distance term of a positive, without its target, and the gradient of its outputs `raw`.
    fn box_terms(
        &self,
        raw: &[f32],
        p: &Positive,
        t: &GroundTruth,
        powers: &mut [f64],
        d: &mut [f32],
    ) -> (f64, f64) {
        let (gains, bins) = (self.c.gains, self.c.reg_max);
        let ([x, y], s) = (self.anchors.xy[p.anchor], self.anchors.stride[p.anchor]);
        let weight = self.weight * p.score;
        // everything in units of the anchor's stride
        let target = t.xyxy.map(|v| v / s);
        let ltrb = [
            (x - t.xyxy[0]) / s,
            (y - t.xyxy[1]) / s,
            (t.xyxy[2] - x) / s,
            (t.xyxy[3] - y) / s,
        ];
        let centre = [x / s, y / s, x / s, y / s];
        let sign = [-1.0, -1.0, 1.0, 1.0];
        let sides = self.sides(raw, powers);
        let (ciou, slope) = ciou_gradient(
            std::array::from_fn(|i| centre[i] + sign[i] * sides[i].mean),
            target,
        );
        // of the box term with respect to the four distances
        let by_box: [f64; 4] = std::array::from_fn(|i| -slope[i] * sign[i] * gains.boxes * weight);
        let mut sum = 0.0;
        if bins == 1 {
            let size = self.anchors.size;
            for i in 0..4 {
                let unit = s / size[i % 2];
                let off = sides[i].mean - ltrb[i];
                sum += off.abs() * unit / 4.0;
                let side = if off == 0.0 { 0.0 } else { off.signum() };
                d[i] = (by_box[i] + side * unit / 4.0 * gains.distances * weight) as f32;
            }
        } else {
            for (i, side) in sides.iter().enumerate() {
                let at = i * bins..(i + 1) * bins;
                let (raw, powers, d) = (&raw[at.clone()], &powers[at.clone()], &mut d[at]);
                // cross entropy with the two bins around the target, linearly weighted
                let t = ltrb[i].clamp(0.0, bins as f64 - 1.01);
                let left = t.floor();
                let first = left as usize;
                let wanted = [left + 1.0 - t, t - left];
                for (b, (power, d)) in powers.iter().zip(&mut *d).enumerate() {
                    let q = power / side.sum;
                    let by_dist = q / 4.0 * gains.distances * weight;
                    *d = (by_box[i] * q * (b as f64 - side.mean) + by_dist) as f32;
                }
                for (b, w) in (first..).zip(wanted) {
                    let q = powers[b] / side.sum;
                    let log_q = f64::from(raw[b]) - side.max - side.sum.ln();
                    sum -= w * log_q / 4.0;
                    let by_dist = (q - w) / 4.0 * gains.distances * weight;
                    d[b] = (by_box[i] * q * (b as f64 - side.mean) + by_dist) as f32;
                }
            }
        }
        (1.0 - ciou, sum)
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// A distance: the mean of a softmax over its bins, as in [`super::anchors::distances`].
#[derive(Debug, Clone, Copy, Default)]
struct Side {
    max: f64,
    /// Of `exp(logit - max)`.
    sum: f64,
    mean: f64,
}

/// Logits of four distances; leaves `exp(logit - max)` in `powers`.
struct Sides<'a> {
    raw: &'a [f32],
    powers: &'a mut [f64],
}

impl Kernel for Sides<'_> {
    type Output = [Side; 4];
    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> [Side; 4] {
        let bins = self.raw.len() / 4;
        let mut maxima = [f32::NEG_INFINITY; 4];
        for (max, raw) in maxima.iter_mut().zip(self.raw.chunks_exact(bins)) {
            *max = raw.iter().fold(*max, |a, &b| if b > a { b } else { a });
            if raw.iter().any(|r| r.is_nan()) {
                *max = f32::NAN;
            }
        }
        let rows = self
            .powers
            .chunks_exact_mut(bins)
            .zip(self.raw.chunks_exact(bins));
        for ((powers, raw), &max) in rows.zip(&maxima) {
            for (p, r) in powers.iter_mut().zip(raw) {
                *p = exp_below_zero(f64::from(*r) - f64::from(max));
            }
        }
        let mut sides = [Side::default(); 4];
        for ((side, powers), &max) in sides
            .iter_mut()
            .zip(self.powers.chunks_exact(bins))
            .zip(&maxima)
        {
            let (mut sum, mut mean) = (0.0, 0.0);
            for (b, p) in powers.iter().enumerate() {
                sum += p;
                mean += p * b as f64;
            }
            *side = Side {
                max: f64::from(max),
                sum,
                mean: mean / sum,
            };
        }
        sides
    }
}

/// `e^x` for `x <= 0` to about 3e-16 relative (0 below -708), in a form that compilers turn into vectors: ln 2 in two
/// parts, then the power series.
#[inline(always)]
fn exp_below_zero(x: f64) -> f64 {
    /// Adding it rounds to a whole number, whose bits are then the last ones.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let bounded = if x < -708.0 { -708.0 } else { x };
    let shifted = bounded * std::f64::consts::LOG2_E + ROUND;
    let k = shifted - ROUND;
    let r = bounded - k * 6.931_471_803_691_238e-1 - k * 1.908_214_929_270_587_7e-10;
    let mut p = 1.0 / 6_227_020_800.0;
    for c in [
        1.0 / 479_001_600.0,
        1.0 / 39_916_800.0,
        1.0 / 3_628_800.0,
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5_040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        p = p * r + c;
    }
    let scale = f64::from_bits((shifted.to_bits() << 52).wrapping_add(1023 << 52));
    if x < -708.0 { 0.0 } else { p * scale }
}

/// CIoU of `p` with the target `t` and its gradient with respect to `p`; the weight of the aspect term is a constant.
fn ciou_gradient(p: [f64; 4], t: [f64; 4]) -> (f64, [f64; 4]) {
    let (w1, h1) = (p[2] - p[0], p[3] - p[1] + EPS);
    let (w2, h2) = (t[2] - t[0], t[3] - t[1] + EPS);
    let shared = [
        p[2].min(t[2]) - p[0].max(t[0]),
        p[3].min(t[3]) - p[1].max(t[1]),
    ];
    let [iw, ih] = shared.map(|v| v.max(0.0));
    let inter = iw * ih;
    let union = w1 * h1 + w2 * h2 - inter + EPS;
    let iou = inter / union;
    let (cw, ch) = (
        p[2].max(t[2]) - p[0].min(t[0]),
        p[3].max(t[3]) - p[1].min(t[1]),
    );
    let c2 = cw * cw + ch * ch + EPS;
    let off = [t[0] + t[2] - p[0] - p[2], t[1] + t[3] - p[1] - p[3]];
    let rho2 = (off[0] * off[0] + off[1] * off[1]) / 4.0;
    let k = 4.0 / (PI * PI);
    let turn = (w2 / h2).atan() - (w1 / h1).atan();
    let v = k * turn * turn;
    let alpha = v / (v - iou + (1.0 + EPS));

    let diagonal = w1 * w1 + h1 * h1;
    let slope = std::array::from_fn(|i| {
        let axis = i % 2;
        let far = i >= 2;
        let side = if far { 1.0 } else { -1.0 };
        let (other_shared, other_size) = if axis == 0 { (ih, h1) } else { (iw, w1) };
        // does this side bound the intersection, the enclosing box?
        let inner = shared[axis] > 0.0 && if far { p[i] < t[i] } else { p[i] > t[i] };
        let outer = if far { p[i] > t[i] } else { p[i] < t[i] };
        let d_inter = if inner { side * other_shared } else { 0.0 };
        let d_union = side * other_size - d_inter;
        let d_iou = (d_inter - iou * d_union) / union;
        let d_c2 = if outer {
            2.0 * side * if axis == 0 { cw } else { ch }
        } else {
            0.0
        };
        let d_rho2 = -off[axis] / 2.0;
        let d_angle = side * if axis == 0 { h1 } else { -w1 } / diagonal;
        let d_v = -2.0 * k * turn * d_angle;
        d_iou - (d_rho2 - rho2 / c2 * d_c2) / c2 - alpha * d_v
    });
    (iou - (rho2 / c2 + v * alpha), slope)
}

/// Binary cross entropy of logits with target 0, `ln(1 + e^x)`: its sum, and `scale` times its gradient, the sigmoid.
struct Negatives<'a> {
    x: &'a [f32],
    d: &'a mut [f32],
    /// Factors, as long as `x`.
    weights: Option<&'a [f32]>,
    scale: f32,
}

impl Kernel for Negatives<'_> {
    type Output = f64;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f64 {
        match self.weights {
            Some(weights) => negatives::<S, true>(s, self.x, self.d, weights, self.scale),
            None => negatives::<S, false>(s, self.x, self.d, &[], self.scale),
        }
    }
}

#[inline(always)]
fn negatives<S: Simd, const WEIGHTED: bool>(
    s: S,
    x: &[f32],
    d: &mut [f32],
    weights: &[f32],
    scale: f32,
) -> f64 {
    const { assert!(S::N <= 16) };
    assert!(d.len() == x.len() && (!WEIGHTED || weights.len() == x.len()));
    let scale = s.splat(scale);
    let mut total = 0.0;
    let mut lanes = [0.0f32; 16];
    let pieces = x.chunks(PIECE * S::N).zip(d.chunks_mut(PIECE * S::N));
    for (piece, (x, d)) in pieces.enumerate() {
        let mut sum = s.zero();
        for (i, (x, d)) in x.chunks(S::N).zip(d.chunks_mut(S::N)).enumerate() {
            let at = (piece * PIECE + i) * S::N;
            // SAFETY: both chunks have `x.len() <= N` elements, the lanes a vector; as many weights lie from `at`.
            unsafe {
                if x.len() == S::N {
                    let (mut value, mut g) = softplus(s, s.load(x.as_ptr()));
                    if WEIGHTED {
                        let w = s.load(weights.as_ptr().add(at));
                        (value, g) = (s.mul(value, w), s.mul(g, w));
                    }
                    s.store(d.as_mut_ptr(), s.mul(g, scale));
                    sum = s.add(sum, value);
                } else {
                    let (mut value, mut g) = softplus(s, s.load_first(x.as_ptr(), x.len()));
                    if WEIGHTED {
                        let w = s.load_first(weights.as_ptr().add(at), x.len());
                        (value, g) = (s.mul(value, w), s.mul(g, w));
                    }
                    s.store_first(d.as_mut_ptr(), s.mul(g, scale), x.len());
                    lanes.fill(0.0);
                    s.store_first(lanes.as_mut_ptr(), value, x.len());
                    sum = s.add(sum, s.load(lanes.as_ptr()));
                }
            }
        }
        // SAFETY: as above.
        unsafe { s.store(lanes.as_mut_ptr(), sum) };
        total += lanes[..S::N].iter().map(|&v| f64::from(v)).sum::<f64>();
    }
    total
}

/// `(ln(1 + e^x), 1 / (1 + e^-x))`, both to about 1e-7 relative also where they are small.
#[inline(always)]
fn softplus<S: Simd>(s: S, x: S::V) -> (S::V, S::V) {
    let (one, two) = (s.splat(1.0), s.splat(2.0));
    let size = s.abs(x);
    let e = exp(s, s.neg(size));
    let (e1, e2) = (s.add(one, e), s.add(two, e));
    let r = s.recip(s.mul(e1, e2));
    let high = s.mul(r, e2);
    let sigmoid = s.select(s.lt(x, s.zero()), s.mul(e, high), high);
    // ln(1 + e) = 2 artanh(t) with t = e / (2 + e) <= 1/3
    let t = s.mul(e, s.mul(r, e1));
    let u = s.mul(t, t);
    let mut p = s.splat(1.0 / 13.0);
    for c in [1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0] {
        p = s.fma(p, u, s.splat(c));
    }
    let log = s.mul(two, s.fma(s.mul(p, u), t, t));
    // max(x, 0) in a form that keeps what is not a number
    let positive = s.mul(s.splat(0.5), s.add(x, size));
    (s.add(positive, log), sigmoid)
}

#[cfg(test)]
#[path = "fast_tests.rs"]
mod tests;
