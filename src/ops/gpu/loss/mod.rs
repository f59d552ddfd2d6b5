//! The loss of a head and its gradient on the device, without a round trip to the host: the numbers of
//! [`crate::loss::head_loss_and_gradient`], whose formulas see there, in float32.
//!
//! Sums are formed in pieces of fixed size and then in trees, for each image by itself and then over the images of a
//! lane: they depend on shapes only.

mod assign;
mod boxes;
mod classes;
mod math;
pub(crate) mod sums;
mod truths;

pub use sums::SUMS;
pub use truths::{AnchorTable, LevelGrid, Object, Truths};

use super::flat;
use super::launch::{cubes, dense, vector_size};
use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::{CubeCount, CubeDim};
use std::ops::Range;

/// How many anchors an object gets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// Best anchors per object before conflicts are resolved, at most 10.
    pub first: usize,
    /// Best anchors per object that remain afterwards.
    pub last: usize,
    /// Sides shorter than this many pixels are enlarged to it when candidates are chosen.
    pub min_side: f32,
}

/// What a head is measured by.
#[derive(Debug, Clone)]
pub struct Measure {
    pub reg_max: usize,
    /// Gains of boxes, classes and distances.
    pub gains: [f64; 3],
    /// Factors of the classification terms, `[classes]` (see [`class_weights`]); otherwise all are 1.
    pub class_weights: Option<CubeTensor>,
    pub choice: Choice,
}

/// Weights of classes on the device.
#[must_use]
pub fn class_weights(weights: &[f32], device: &CubeDevice) -> CubeTensor {
    flat::upload_f32(device, weights)
}

/// Gradient and value of a head's loss.
#[derive(Debug, Clone)]
pub struct HeadGradients {
    /// Of the box outputs, with their shape and type, times weight and loss scale.
    pub d_boxes: CubeTensor,
    /// Of the scores.
    pub d_scores: CubeTensor,
    /// `[lanes, 4]` float32: numerators of boxes, classes and distances without gains, sum of target scores.
    pub sums: CubeTensor,
}

/// Loss of `boxes` `[n, a, 4 * reg_max]` and `scores` `[n, a, classes]`, of any float type, against `truths`, and the
/// gradient of `weight * loss_scale` times its gained sum.
///
/// `lanes` are ranges of images that make up all of them.
///
/// # Panics
/// If shapes do not fit each other, a class has no score, or more than 10 anchors are to be chosen.
#[must_use]
#[allow(clippy::too_many_arguments)]
pub fn head_loss(
    boxes: CubeTensor,
    scores: CubeTensor,
    truths: &Truths,
    anchors: &AnchorTable,
    m: &Measure,
    weight: f64,
    loss_scale: f32,
    lanes: &[Range<usize>],
) -> HeadGradients {
    let [n, a, width] = boxes.shape().dims::<3>();
    let [_, _, classes] = scores.shape().dims::<3>();
    assert_eq!(
        (n, a),
        (truths.images, anchors.len),
        "box outputs, images and anchors"
    );
    assert_eq!(scores.shape().dims::<3>()[..2], [n, a], "score outputs");
    assert_eq!(width, 4 * m.reg_max, "box outputs of an anchor");
    assert!(
        truths.classes <= classes,
        "class {} of {classes}",
        truths.classes.max(1) - 1
    );
    let k = m.choice.first;
    assert!(
        (1..=assign::MOST_FIRST).contains(&k),
        "{k} anchors of an object"
    );
    let (boxes, scores) = (dense(boxes), dense(scores));
    let device = boxes.device.clone();
    let run = Run {
        n,
        a,
        k,
        classes,
        device: &device,
        boxes: &boxes,
        scores: &scores,
        truths,
        anchors,
        m,
        scale: weight * f64::from(loss_scale),
    };
    let d_boxes = flat::empty(&device, [n, a, width], boxes.dtype);
    let d_scores = flat::empty(&device, [n, a, classes], scores.dtype);
    let sums = flat::empty(&device, [lanes.len(), SUMS], DType::F32);
    if lanes.is_empty() {
        return HeadGradients {
            d_boxes,
            d_scores,
            sums,
        };
    }
    let targets = run.decode(&d_boxes);
    let slots = run.assign(&targets);
    run.boxes(&targets, &slots, &d_boxes);
    let pieces = run.classes(&targets, &d_scores);
    run.sums(&slots, pieces, lanes, &sums);
    HeadGradients {
        d_boxes,
        d_scores,
        sums,
    }
}

/// A head's loss under way.
struct Run<'a> {
    n: usize,
    a: usize,
    k: usize,
    classes: usize,
    device: &'a CubeDevice,
    boxes: &'a CubeTensor,
    scores: &'a CubeTensor,
    truths: &'a Truths,
    anchors: &'a AnchorTable,
    m: &'a Measure,
    /// Factor of the gradient.
    scale: f64,
}

/// What anchors stand for.
struct Targets {
    /// `[n, a, 4]`
    distances: CubeTensor,
    /// `[n, a, 2]`: class, or [`truths::NONE`], and the bits of its target.
    targets: CubeTensor,
}

/// What objects have.
struct Slots {
    /// `[objects, k, 2]`: anchor, or [`truths::NONE`], and the bits of its target.
    slots: CubeTensor,
    /// `[objects, k, 4, 2]`
    terms: CubeTensor,
}

/// Sums of pieces of the classification terms, `[n, count]`.
struct Pieces {
    values: CubeTensor,
    count: usize,
}

impl Run<'_> {
    fn floats(&self, shape: &[usize]) -> CubeTensor {
        flat::empty(self.device, shape, DType::F32)
    }

    fn ints(&self, shape: &[usize]) -> CubeTensor {
        flat::empty(self.device, shape, DType::U32)
    }

    /// First record of `truths`.
    fn records(&self) -> u32 {
        self.n as u32 + 1
    }

    fn decode(&self, d_boxes: &CubeTensor) -> Targets {
        let t = Targets {
            distances: self.floats(&[self.n, self.a, 4]),
            targets: self.ints(&[self.n, self.a, 2]),
        };
        let sides = self.n * self.a * 4;
        if sides > 0 {
            let client = self.device.client();
            let dtype = self.boxes.dtype;
            let units = 256u32;
            assign::decode_kernel::launch(
                &client,
                cubes(sides.div_ceil(units as usize)),
                CubeDim::new_1d(units),
                vector_size(&client, dtype.size(), self.m.reg_max),
                self.boxes.clone().into_buffer_arg(),
                d_boxes.clone().into_buffer_arg(),
                t.distances.clone().into_buffer_arg(),
                t.targets.clone().into_buffer_arg(),
                sides as u32,
                self.m.reg_max,
                dtype_to_storage_type(dtype),
            );
        }
        t
    }

    fn assign(&self, t: &Targets) -> Slots {
        let (total, k) = (self.truths.total, self.k);
        let s = Slots {
            slots: self.ints(&[total, k, 2]),
            terms: self.floats(&[total, k, 4, 2]),
        };
        if total == 0 {
            return s;
        }
        let client = self.device.client();
        let [best_metric, best_overlap] = [0, 1].map(|_| self.floats(&[total, k]));
        let best_anchor = self.ints(&[total, k]);
        let choice = self.m.choice;
        assign::candidates_kernel::launch(
            &client,
            cubes(total),
            CubeDim::new_1d(assign::SCAN_UNITS as u32),
            self.truths.data.clone().into_buffer_arg(),
            self.anchors.levels.clone().into_buffer_arg(),
            t.distances.clone().into_buffer_arg(),
            self.scores.clone().into_buffer_arg(),
            best_anchor.clone().into_buffer_arg(),
            best_metric.clone().into_buffer_arg(),
            best_overlap.clone().into_buffer_arg(),
            total as u32,
            self.records(),
            self.a as u32,
            choice.min_side,
            k,
            self.classes,
            self.anchors.level_count,
            dtype_to_storage_type(self.scores.dtype),
        );
        assign::resolve_kernel::launch(
            &client,
            cubes(total),
            CubeDim::new_1d(assign::RESOLVE_UNITS as u32),
            self.truths.data.clone().into_buffer_arg(),
            best_anchor.into_buffer_arg(),
            best_metric.into_buffer_arg(),
            best_overlap.into_buffer_arg(),
            s.slots.clone().into_buffer_arg(),
            t.targets.clone().into_buffer_arg(),
            total as u32,
            self.records(),
            self.a as u32,
            choice.last as u32,
            k,
        );
        s
    }

    fn boxes(&self, t: &Targets, s: &Slots, d_boxes: &CubeTensor) {
        let slots = self.truths.total * self.k;
        if slots == 0 {
            return;
        }
        let [width, height] = self.anchors.size;
        let [of_boxes, _, of_distances] = self.m.gains;
        let dtype = self.boxes.dtype;
        boxes::boxes_kernel::launch(
            &self.device.client(),
            cubes((slots * 4).div_ceil(boxes::UNITS)),
            CubeDim::new_1d(boxes::UNITS as u32),
            self.truths.data.clone().into_buffer_arg(),
            self.anchors.levels.clone().into_buffer_arg(),
            t.distances.clone().into_buffer_arg(),
            s.slots.clone().into_buffer_arg(),
            self.boxes.clone().into_buffer_arg(),
            d_boxes.clone().into_buffer_arg(),
            s.terms.clone().into_buffer_arg(),
            slots as u32,
            self.records(),
            self.a as u32,
            width,
            height,
            (of_boxes * self.scale) as f32,
            (of_distances * self.scale) as f32,
            self.k,
            self.m.reg_max,
            self.anchors.level_count,
            dtype_to_storage_type(dtype),
        );
    }

    fn classes(&self, t: &Targets, d_scores: &CubeTensor) -> Pieces {
        let client = self.device.client();
        let dtype = self.scores.dtype;
        let size = vector_size(&client, dtype.size(), self.classes);
        let vectors = self.a * self.classes / size;
        let count = vectors.div_ceil(classes::UNITS * classes::PER_UNIT);
        let values = self.floats(&[self.n, count]);
        if self.n * count == 0 {
            return Pieces { values, count };
        }
        let weights = self.m.class_weights.clone();
        let weighted = weights.is_some();
        classes::classes_kernel::launch(
            &client,
            CubeCount::Static(count as u32, self.n as u32, 1),
            CubeDim::new_1d(classes::UNITS as u32),
            size,
            self.scores.clone().into_buffer_arg(),
            t.targets.clone().into_buffer_arg(),
            weights
                .unwrap_or_else(|| self.floats(&[0]))
                .into_buffer_arg(),
            d_scores.clone().into_buffer_arg(),
            values.clone().into_buffer_arg(),
            vectors as u32,
            self.a as u32,
            (self.m.gains[1] * self.scale) as f32,
            self.classes,
            weighted,
            dtype_to_storage_type(dtype),
        );
        Pieces { values, count }
    }

    fn sums(&self, s: &Slots, pieces: Pieces, lanes: &[Range<usize>], sums: &CubeTensor) {
        let client = self.device.client();
        let of_images = self.floats(&[self.n, SUMS]);
        if self.n > 0 {
            sums::image_kernel::launch(
                &client,
                cubes(self.n),
                CubeDim::new_1d(sums::UNITS as u32),
                self.truths.data.clone().into_buffer_arg(),
                pieces.values.into_buffer_arg(),
                s.terms.clone().into_buffer_arg(),
                s.slots.clone().into_buffer_arg(),
                of_images.clone().into_buffer_arg(),
                pieces.count as u32,
                self.k,
            );
        }
        let bounds: Vec<u32> = lanes
            .iter()
            .flat_map(|l| [l.start as u32, l.end as u32])
            .collect();
        let numbers = lanes.len() * SUMS;
        sums::lane_kernel::launch(
            &client,
            cubes(numbers.div_ceil(64)),
            CubeDim::new_1d(64),
            of_images.into_buffer_arg(),
            flat::upload_u32(self.device, &bounds).into_buffer_arg(),
            sums.clone().into_buffer_arg(),
            numbers as u32,
        );
    }
}

/// Which anchor and target every object of `truths` got, `[objects, k]`; [`truths::NONE`] where it has none.
#[cfg(test)]
pub(crate) fn assignment(
    boxes: CubeTensor,
    scores: CubeTensor,
    truths: &Truths,
    anchors: &AnchorTable,
    m: &Measure,
) -> (Vec<u32>, Vec<f32>) {
    use super::flat::testing::read_u32;
    let [n, a, width] = boxes.shape().dims::<3>();
    let device = boxes.device.clone();
    let run = Run {
        n,
        a,
        k: m.choice.first,
        classes: scores.shape().dims::<3>()[2],
        device: &device,
        boxes: &boxes,
        scores: &scores,
        truths,
        anchors,
        m,
        scale: 1.0,
    };
    let d_boxes = flat::empty(&device, [n, a, width], boxes.dtype);
    let slots = run.assign(&run.decode(&d_boxes));
    let slots = read_u32(&slots.slots);
    slots
        .chunks_exact(2)
        .map(|s| (s[0], f32::from_bits(s[1])))
        .unzip()
}
