//! `yolo-train [train]`.

use super::interrupt;
use super::outcome::Outcome;
use crate::config::Settings;
use crate::dist::{ProcessGroup, Single};
use crate::report::Console;
use crate::train::{self, TrainError};
use std::sync::Arc;

pub fn run(settings: &Settings) -> anyhow::Result<Outcome> {
    let interrupted = interrupt::listen()?;
    let group: Arc<dyn ProcessGroup> = Arc::new(Single::new());
    ended(train::run(settings, &group, &interrupted, &Console::new()))
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
