//! Detection loss: assignment, classification, boxes, distances.

pub mod anchors;
pub mod assign;
mod batch;
pub mod boxes;
mod criterion;
#[cfg(feature = "gpu")]
pub mod device;
mod fast;
mod weighted;

pub use anchors::Anchors;
pub use assign::{GroundTruth, Positive, TopK};
pub use batch::{MicroBatch, ShownLoss};
pub use criterion::{
    Components, Criterion, Gains, HeadLoss, ONE_TO_MANY, ONE_TO_ONE, head_loss, head_weights,
};
pub use fast::{FastLoss, RawHead, head_loss_and_gradient};
pub use weighted::weighted_loss;
