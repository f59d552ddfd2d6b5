//! Training: plan, loop, optimizer, averaging.

pub mod bench;
mod ema;
pub mod engine;
mod error;
pub mod flat;
pub mod optim;
pub mod plan;
mod run;
pub mod schedule;
mod session;

pub use error::TrainError;
pub use run::{run, val};
pub use session::{compute_pool, cores};
