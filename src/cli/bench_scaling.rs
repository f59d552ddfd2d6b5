//! `yolo-train bench --scaling`: training over ranks beside independent runs.

use super::outcome::{Outcome, print_found};
use super::ranks;
use crate::config::Settings;
use crate::report::Console;
use crate::train::scaling;

pub fn run(settings: &Settings) -> anyhow::Result<Outcome> {
    ranks::several(settings, "bench --scaling")?;
    ranks::run(settings, |group| {
        if let Some(found) = scaling::run(settings, group, settings.rounds, &Console::new())? {
            print_found(settings.json, &found, || found.table())?;
        }
        Ok(Outcome::Finished)
    })
}
