//! Training: plan, loop, optimizer, averaging.

pub mod bench;
pub mod checkpoint;
mod checkpoints;
mod class_weights;
mod ema;
pub mod engine;
mod error;
pub mod flat;
mod muon;
pub mod optim;
pub mod plan;
mod plots;
mod resume;
mod run;
pub mod schedule;
mod session;
mod start;

pub use class_weights::ClassWeightsError;
pub use error::TrainError;
pub use run::{run, val};
pub use session::{compute_pool, cores};
