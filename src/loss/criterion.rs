//! The loss of a head: numerators as tensors, the normaliser as a number.
//!
//! The sums are not divided here: numerators and normaliser are added over the micro-batches of an optimizer
//! step (and over ranks), and divided once, at the step.

use super::anchors::{Anchors, distances};
use super::assign::{GroundTruth, Positive, TopK, assign};
use super::boxes::ciou_tensor;
use crate::model::HeadOutput;
use burn::tensor::{DType, Int, Tensor, TensorData, activation};

/// Assignment of the one-to-many head. 16 px is the stride of the second level.
pub const ONE_TO_MANY: TopK = TopK {
    first: 10,
    last: 10,
    min_side: 16.0,
};
/// Assignment of the one-to-one head.
pub const ONE_TO_ONE: TopK = TopK {
    first: 7,
    last: 1,
    min_side: 16.0,
};

/// Gains of the three components.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gains {
    pub boxes: f64,
    pub classes: f64,
    /// Distribution focal loss, or L1 where distances are direct.
    pub distances: f64,
}

/// Weights of the (one-to-many, one-to-one) heads in epoch `epoch` of `epochs`: from (0.8, 0.2) linearly to
/// (0.1, 0.9) in the last epoch. A network with one head has weight 1.
#[must_use]
pub fn head_weights(one_to_one: bool, epoch: usize, epochs: usize) -> (f64, f64) {
    if !one_to_one {
        return (1.0, 0.0);
    }
    let progress = epoch as f64 / (epochs.max(2) - 1) as f64;
    let many = 0.8 - 0.7 * progress.min(1.0);
    (many, 1.0 - many)
}

/// The three components as plain numbers: box, class, distance.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Components {
    pub boxes: f64,
    pub classes: f64,
    pub distances: f64,
}

impl Components {
    /// Adds component by component.
    pub fn add(&mut self, o: Components) {
        self.boxes += o.boxes;
        self.classes += o.classes;
        self.distances += o.distances;
    }
    /// Gained and normalised: what is printed.
    #[must_use]
    pub fn items(&self, gains: Gains, normaliser: f64) -> [f64; 3] {
        let n = normaliser.max(1.0);
        [
            self.boxes * gains.boxes / n,
            self.classes * gains.classes / n,
            self.distances * gains.distances / n,
        ]
    }
}

/// Loss of a head over a micro-batch, not normalised.
pub struct HeadLoss {
    /// Gained sum of the numerators, differentiable: `[1]`.
    pub total: Tensor<1>,
    /// Numerators without gains.
    pub sums: Components,
    /// Sum of the soft targets.
    pub score_sum: f64,
    /// Number of positive anchors.
    pub positives: usize,
}

/// What a [`HeadLoss`] needs besides outputs and truths.
#[derive(Debug, Clone, Copy)]
pub struct Criterion<'a> {
    pub reg_max: usize,
    pub gains: Gains,
    /// Factors of the classification terms by class, `[classes]`; otherwise all are 1. The normaliser has none.
    pub class_weights: Option<&'a [f64]>,
    pub topk: TopK,
}

enum Values {
    F32(Vec<f32>),
    F64(Vec<f64>),
}

impl Values {
    fn of<const D: usize>(t: &Tensor<D>) -> Self {
        let data = t.clone().inner().into_data();
        match data.dtype() {
            DType::F64 => Self::F64(data.try_to_vec().expect("float64 data")),
            _ => Self::F32(
                data.convert::<f32>()
                    .try_to_vec()
                    .expect("converted to float32"),
            ),
        }
    }
    fn at(&self, i: usize) -> f64 {
        match self {
            Self::F32(v) => f64::from(v[i]),
            Self::F64(v) => v[i],
        }
    }
}

/// Uploads constants with the type and device of `like`, outside the graph.
fn constant<const D: usize, const E: usize>(
    values: Vec<f64>,
    shape: [usize; D],
    like: &Tensor<E>,
) -> Tensor<D> {
    let device = like.device().inner();
    let dtype = like.dtype();
    let data = match dtype {
        DType::F64 => TensorData::new(values, shape),
        _ => TensorData::new(
            values.into_iter().map(|v| v as f32).collect::<Vec<_>>(),
            shape,
        ),
    };
    Tensor::from_data(data, (&device, dtype))
}

/// Loss of one head: outputs `[n, anchors, ...]` against `truths`, one list per image.
///
/// Classification is binary cross entropy over all anchors and classes against the soft targets, each class with its
/// weight; boxes are
/// `1 - CIoU`, distances distribution focal loss (Li et al. 2020) or, for `reg_max` 1, L1 in units of the image,
/// both weighted with the soft target.
pub fn head_loss(
    out: &HeadOutput,
    truths: &[Vec<GroundTruth>],
    anchors: &Anchors,
    c: &Criterion,
) -> HeadLoss {
    let [n, a, classes] = out.scores.dims();
    let raw = Values::of(&out.boxes);
    let logits = Values::of(&out.scores);
    let width = 4 * c.reg_max;
    let decode = |image: usize, anchor: usize| {
        let row = (image * a + anchor) * width;
        anchors.to_box(anchor, distances(|i| raw.at(row + i), c.reg_max))
    };
    let mut rows: Vec<Row> = vec![];
    for (image, t) in truths.iter().enumerate() {
        let probability = |anchor: usize, class: usize| {
            1.0 / (1.0 + (-logits.at((image * a + anchor) * classes + class)).exp())
        };
        let positives = assign(anchors, t, c.topk, probability, |anchor| {
            decode(image, anchor)
        });
        rows.extend(positives.into_iter().map(|p| (image, p, t[p.truth])));
    }
    let score_sum: f64 = rows.iter().map(|r| r.1.score).sum();

    let mut target = vec![0.0; n * a * classes];
    for (image, p, t) in &rows {
        target[(image * a + p.anchor) * classes + t.class] = p.score;
    }
    let target = constant(target, [n, a, classes], &out.scores);
    let x = out.scores.clone();
    let bce = x.clone().clamp_min(0.0) - x.clone() * target + x.abs().neg().exp().log1p();
    let bce = match c.class_weights {
        Some(w) => bce * constant(w.to_vec(), [1, 1, classes], &out.scores),
        None => bce,
    };
    let class_sum = bce.sum();

    let mut sums = Components {
        classes: scalar(&class_sum),
        ..Components::default()
    };
    let mut total = class_sum * c.gains.classes;
    if !rows.is_empty() {
        let (boxes, dist) = box_terms(out, &rows, anchors, c, width);
        sums.boxes = scalar(&boxes);
        sums.distances = scalar(&dist);
        total = total + boxes * c.gains.boxes + dist * c.gains.distances;
    }
    HeadLoss {
        total,
        sums,
        score_sum,
        positives: rows.len(),
    }
}

/// A positive anchor: image, anchor, object.
type Row = (usize, Positive, GroundTruth);

/// Numerators of the box and distance terms over the positives.
fn box_terms(
    out: &HeadOutput,
    rows: &[Row],
    anchors: &Anchors,
    c: &Criterion,
    width: usize,
) -> (Tensor<1>, Tensor<1>) {
    let [n, a, _] = out.boxes.dims();
    let p = rows.len();
    let index: Vec<i64> = rows
        .iter()
        .map(|(image, p, _)| (image * a + p.anchor) as i64)
        .collect();
    let index =
        Tensor::<1, Int>::from_data(TensorData::new(index, [p]), &out.boxes.device().inner());
    let raw = out.boxes.clone().reshape([n * a, width]).select(0, index);
    let like = &out.boxes;
    let weight = constant(rows.iter().map(|r| r.1.score).collect(), [p, 1], like);
    // everything in units of the anchor's stride
    let flat = |f: &dyn Fn(&Row) -> [f64; 4]| rows.iter().flat_map(f).collect::<Vec<_>>();
    let ltrb = |r: &Row| {
        let ([x, y], s, t) = (anchors.xy[r.1.anchor], anchors.stride[r.1.anchor], r.2.xyxy);
        [
            (x - t[0]) / s,
            (y - t[1]) / s,
            (t[2] - x) / s,
            (t[3] - y) / s,
        ]
    };
    let centre = flat(&|r| {
        let ([x, y], s) = (anchors.xy[r.1.anchor], anchors.stride[r.1.anchor]);
        [x / s, y / s, x / s, y / s]
    });
    let centre = constant(centre, [p, 4], like);
    let target_box = flat(&|r| r.2.xyxy.map(|v| v / anchors.stride[r.1.anchor]));
    let target_box = constant(target_box, [p, 4], like);
    let sign = constant(vec![-1.0, -1.0, 1.0, 1.0], [1, 4], like);

    let dist = if c.reg_max == 1 {
        raw.clone()
    } else {
        let bins = constant(
            (0..c.reg_max).map(|b| b as f64).collect(),
            [1, 1, c.reg_max],
            like,
        );
        let q = activation::softmax(raw.clone().reshape([p, 4, c.reg_max]), 2);
        (q * bins).sum_dim(2).reshape([p, 4])
    };
    let boxes = centre + dist.clone() * sign;
    let box_sum = ((ciou_tensor(boxes, target_box).neg() + 1.0) * weight.clone()).sum();

    let dist_sum = if c.reg_max == 1 {
        let [w, h] = anchors.size;
        let unit = flat(&|r| {
            let s = anchors.stride[r.1.anchor];
            [s / w, s / h, s / w, s / h]
        });
        let target = constant(flat(&ltrb), [p, 4], like);
        let l1 = ((dist - target).abs() * constant(unit, [p, 4], like)).mean_dim(1);
        (l1 * weight).sum()
    } else {
        // cross entropy with the two bins around the target, linearly weighted
        let mut bins = vec![0.0; p * 4 * c.reg_max];
        for (i, r) in rows.iter().enumerate() {
            for (side, t) in ltrb(r).into_iter().enumerate() {
                let t = t.clamp(0.0, c.reg_max as f64 - 1.01);
                let left = t.floor();
                let at = (i * 4 + side) * c.reg_max + left as usize;
                bins[at] = left + 1.0 - t;
                bins[at + 1] = t - left;
            }
        }
        let bins = constant(bins, [p, 4, c.reg_max], like);
        let log_q = activation::log_softmax(raw.reshape([p, 4, c.reg_max]), 2);
        let ce = (log_q * bins).sum_dim(2).reshape([p, 4]).mean_dim(1).neg();
        (ce * weight).sum()
    };
    (box_sum, dist_sum)
}

fn scalar(t: &Tensor<1>) -> f64 {
    t.clone().inner().into_scalar::<f64>()
}
