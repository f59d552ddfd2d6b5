//! Training: schedule, optimizer, averaging, the loop.

mod ema;
pub mod engine;
pub mod optim;
pub mod plan;
pub mod schedule;
