//! `yolo-train [train]`.

use super::outcome::Outcome;
use super::ranks;
use crate::config::Settings;
use crate::report::Console;
use crate::train::{self, TrainError};

pub fn run(settings: &Settings) -> anyhow::Result<Outcome> {
    ranks::each(settings, |group, interrupted| {
        group.exit_when_stuck();
        let console = Console::new();
        match train::run(settings, group, interrupted, &console, &ranks::began) {
            // the one before failed in its last moments
            Err(TrainError::Finished { .. }) if train::restarts() > 0 => Ok(Outcome::Finished),
            end => ended(end),
        }
    })
}

/// How a command that leaves a folder has ended.
pub(super) fn ended<T>(result: Result<T, TrainError>) -> anyhow::Result<Outcome> {
    match result {
        Ok(_) => Ok(Outcome::Finished),
        Err(TrainError::Interrupted) => Ok(Outcome::Interrupted),
        Err(TrainError::Config(e)) => Err(e.into()),
        Err(e) => Err(e.into()),
    }
}
