//! The loss on GPUs: what this module speaks of, as the kernels of [`crate::ops::gpu::loss`] take it.

use super::{Anchors, Criterion, GroundTruth, ShownLoss};
use crate::loss::Components;
use crate::ops::gpu::loss::{AnchorTable, Choice, LevelGrid, Measure, Object, SUMS, Truths};
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
