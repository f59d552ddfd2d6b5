//! `yolo-train [train]`.

use super::interrupt;
use super::outcome::{Outcome, print};
use crate::config::{Command, Settings};

pub fn run(settings: &Settings) -> anyhow::Result<Outcome> {
    let _interrupted = interrupt::listen()?;
    // The integrator's: crate::train::run(settings, interrupted)
    print(&settings.yaml_of(Command::Train))?;
    Ok(Outcome::Finished)
}
