//! `yolo-train info`.

use super::outcome::{Outcome, print};
use crate::config::{Command, Settings};

pub fn run(settings: &Settings) -> anyhow::Result<Outcome> {
    // The integrator's: crate::model's table of layers
    print(&settings.yaml_of(Command::Info))?;
    Ok(Outcome::Finished)
}
