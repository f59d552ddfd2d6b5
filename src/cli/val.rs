//! `yolo-train val`.

use super::interrupt;
use super::outcome::{Outcome, print};
use crate::config::{Command, Settings};

pub fn run(settings: &Settings) -> anyhow::Result<Outcome> {
    let _interrupted = interrupt::listen()?;
    // The integrator's: crate::train::validate(settings, interrupted)
    print(&settings.yaml_of(Command::Val))?;
    Ok(Outcome::Finished)
}
