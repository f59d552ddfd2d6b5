//! `yolo-train predict`.

use super::outcome::Outcome;
use super::{interrupt, ranks};
use crate::config::{Command, Settings};
use crate::predict::{self, PredictError};
use crate::report::Console;
use crate::train::{compute_pool, cores};

pub fn run(settings: &Settings) -> anyhow::Result<Outcome> {
    ranks::only_one(settings, Command::Predict)?;
    let interrupted = interrupt::listen()?;
    let pool = compute_pool(settings, 1)?;
    let workers = settings.workers_or_default(cores());
    let end = pool.install(|| predict::run(settings, workers, &interrupted, &Console::new()));
    match end {
        Ok(_) => Ok(Outcome::Finished),
        Err(PredictError::Interrupted) => Ok(Outcome::Interrupted),
        Err(e) => Err(e.into()),
    }
}
