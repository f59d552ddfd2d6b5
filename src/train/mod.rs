//! Training: schedule, optimizer, averaging, the loop.

mod ema;
pub mod flat;
pub mod engine;
pub mod optim;
pub mod schedule;
