//! `yolo-train [train]`.

use super::outcome::Outcome;
use super::ranks;
use crate::config::Settings;
use crate::report::Console;
use crate::train::{self, Attempt, TrainError};

pub fn run(settings: &Settings) -> anyhow::Result<Outcome> {
    ranks::each(settings, |group, interrupted| {
        group.exit_when_stuck();
        let again = ranks::again()?;
        let mut settings = settings.clone();
        if let Some(run) = again.as_ref().and_then(|a| a.run.clone()) {
            settings.resume = Some(run);
        }
        let attempt = Attempt {
            restarts: again.as_ref().map_or(0, |a| a.restarts),
            fault: again.map(|a| a.fault).unwrap_or_default(),
            began: &|folder| ranks::tell_run(folder),
        };
        let console = Console::new();
        match train::run(&settings, group, interrupted, &console, &attempt) {
            // the attempt before failed in its last moments
            Err(TrainError::Finished { .. }) if attempt.restarts > 0 => Ok(Outcome::Finished),
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
