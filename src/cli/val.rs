//! `yolo-train val`.

use super::outcome::Outcome;
use super::ranks;
use super::train::ended;
use crate::config::Settings;
use crate::report::Console;
use crate::train;

pub fn run(settings: &Settings) -> anyhow::Result<Outcome> {
    ranks::each(settings, |group, interrupted| {
        group.exit_when_stuck();
        ended(train::val(settings, group, interrupted, &Console::new()))
    })
}
