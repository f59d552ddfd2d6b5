//! `yolo-train val`.

use super::interrupt;
use super::outcome::Outcome;
use super::train::ended;
use crate::config::Settings;
use crate::report::Console;
use crate::train;

pub fn run(settings: &Settings) -> anyhow::Result<Outcome> {
    let interrupted = interrupt::listen()?;
    ended(train::val(settings, &interrupted, &Console::new()))
}
