//! `yolo-train val`.

use super::outcome::Outcome;
use super::train::ended;
use super::{interrupt, ranks};
use crate::config::{Command, Settings};
use crate::report::Console;
use crate::train;

pub fn run(settings: &Settings) -> anyhow::Result<Outcome> {
    ranks::only_one(settings, Command::Val)?;
    let interrupted = interrupt::listen()?;
    ended(train::val(settings, &interrupted, &Console::new()))
}
