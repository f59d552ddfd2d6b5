//! The loss on GPUs: what this module speaks of, as the kernels of [`crate::ops::gpu::loss`] take it.

use super::{Anchors, Criterion, GroundTruth, ShownLoss};
use crate::loss::Components;
use crate::model::HeadOutput;
use crate::ops::DeviceFailure;
use crate::ops::cpu::lanes::Lanes;
use crate::ops::gpu::flat;
use crate::ops::gpu::loss::{
    AnchorTable, Choice, LevelGrid, Measure, Object, SUMS, Truths, head_loss,
};
use burn::tensor::Tensor;
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;

/// The objects of a micro-batch, one list per image, on the device: made once, for both heads.
#[must_use]
pub fn truths(images: &[Vec<GroundTruth>], device: &CubeDevice) -> Truths {
    let object = |t: &GroundTruth| Object {
        class: u32::try_from(t.class).unwrap_or(u32::MAX - 1),
        xyxy: t.xyxy.map(|v| v as f32),
    };
    let images: Vec<Vec<Object>> = images
        .iter()
        .map(|objects| objects.iter().map(object).collect())
        .collect();
    Truths::new(&images, device)
}

/// The anchors of an image size on the device: made once for a size.
#[must_use]
pub fn anchors(anchors: &Anchors, device: &CubeDevice) -> AnchorTable {
    let levels: Vec<LevelGrid> = anchors
        .levels
        .iter()
        .map(|l| LevelGrid {
            first: l.first,
            rows: l.rows,
            cols: l.cols,
            stride: l.stride,
        })
        .collect();
    AnchorTable::new(&levels, anchors.size.map(|v| v as f32), device)
}

/// A criterion for the device, whose class weights come from [`class_weights`], made once.
#[must_use]
pub fn measure(c: &Criterion, class_weights: Option<CubeTensor>) -> Measure {
    Measure {
        reg_max: c.reg_max,
        gains: [c.gains.boxes, c.gains.classes, c.gains.distances],
        class_weights,
        choice: Choice {
            first: c.topk.first,
            last: c.topk.last,
            min_side: c.topk.min_side as f32,
        },
    }
}

/// Weights of classes on the device.
#[must_use]
pub fn class_weights(weights: &[f64], device: &CubeDevice) -> CubeTensor {
    let weights: Vec<f32> = weights.iter().map(|&w| w as f32).collect();
    crate::ops::gpu::loss::class_weights(&weights, device)
}

/// What is shown of a head's loss, by lanes; waits for it.
///
/// # Errors
/// The device failed.
///
/// # Panics
/// If the head's outputs are not on a GPU.
pub fn shown_loss(
    head: &HeadOutput,
    truths_of: &[Vec<GroundTruth>],
    anchors_of: &Anchors,
    c: &Criterion,
    lanes: &Lanes,
) -> Result<Vec<ShownLoss>, DeviceFailure> {
    let raw = |t: &Tensor<3>| flat::primitive(t.clone()).expect("outputs on a GPU");
    let (boxes, scores) = (raw(&head.boxes), raw(&head.scores));
    let device = boxes.device.clone();
    let weights = c.class_weights.map(|w| class_weights(w, &device));
    let loss = head_loss(
        boxes,
        scores,
        &truths(truths_of, &device),
        &anchors(anchors_of, &device),
        &measure(c, weights),
        1.0,
        1.0,
        &lanes.cut(truths_of.len()),
    );
    Ok(shown(&flat::download(&loss.sums)?))
}

/// Sums `[lanes, 4]` as the device leaves them, once they were read.
#[must_use]
pub fn shown(sums: &[f32]) -> Vec<ShownLoss> {
    let wide = |v: &f32| f64::from(*v);
    sums.chunks_exact(SUMS)
        .map(|s| ShownLoss {
            sums: Components {
                boxes: wide(&s[0]),
                classes: wide(&s[1]),
                distances: wide(&s[2]),
            },
            score_sum: wide(&s[3]),
        })
        .collect()
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;
