//! From a network's decoded boxes to the COCO figures: [`suppress`] chooses an image's detections,
//! [`Evaluator`] scores them against the ground truth, [`Predictions`] writes them in the COCO API's results format.
//!
//! ```text
//! boxes, scores -> suppress | end_to_end -> to_original -> Evaluator::add -> finish -> Metrics
//!                                                       -> Predictions::add -> predictions.json
//! ```
//!
//! [`validate()`] does this on every rank of a process group for its part of the batches; the parts merge on rank 0 into what
//! one rank alone would have found, to the last bit.
//!
//! Both consumers read a detection through the same conversion (`results::CocoDetection`), so the COCO API run on
//! predictions.json sees the very numbers that the evaluator saw.

mod best_f1;
mod coco;
mod confusion;
mod curves;
mod error;
mod infer;
mod merge;
mod partial;
mod pictures;
mod predictions;
mod results;
mod suppress;
mod validate;
mod zero_id;

#[cfg(test)]
mod coco_tests;
#[cfg(test)]
mod merge_tests;
#[cfg(test)]
mod suppress_tests;
#[cfg(test)]
mod testing;

pub use best_f1::ConfidenceCurve;
pub use coco::{ClassMetrics, Evaluator, Metrics, coco_api_remarks};
pub use confusion::ConfusionMatrix;
pub use curves::{ClassCurves, Curves};
pub use error::EvalError;
pub use infer::{InferError, Inference, Inferred, micro_batch};
pub use merge::{Figures, Validated};
pub use partial::StateError;
pub use pictures::BatchPictures;
pub use predictions::Predictions;
pub use suppress::{SuppressConfig, end_to_end, suppress};
pub use validate::{Choice, ValidateError, Validation, validate};

/// One detected object.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Detection {
    /// Corners `[x1, y1, x2, y2]` in pixels: of the letterboxed image as suppression returns them, of the upright
    /// original image as [`Evaluator`] and [`Predictions`] take them.
    pub xyxy: [f32; 4],
    /// Probability of `class`.
    pub score: f32,
    /// Index into `Split::names`.
    pub class: usize,
}
