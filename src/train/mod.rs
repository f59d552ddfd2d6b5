//! Training: plan, loop, optimizer, averaging.

pub mod bench;
pub mod checkpoint;
mod checkpoints;
mod checksum;
mod class_weights;
#[cfg(feature = "gpu")]
mod device;
#[cfg(feature = "gpu")]
pub mod device_optim;
mod ema;
pub mod engine;
mod error;
mod fault;
pub mod flat;
pub mod gradients;
mod muon;
pub mod optim;
pub mod plan;
mod plots;
pub mod precision;
mod prepare;
mod rank_stats;
mod resume;
mod run;
pub mod scaling;
pub mod schedule;
mod session;
pub mod spread;
mod start;
pub mod status;
mod together;
mod val;
mod watch;

pub use checkpoints::newest_path as newest_checkpoint;
pub use class_weights::ClassWeightsError;
pub use error::TrainError;
pub use run::{Attempt, run};
pub use session::{compute_pool, cores};
pub use val::val;
