//! `yolo-train val`.

use super::interrupt;
use super::outcome::Outcome;
use super::train::ended;
use crate::config::Settings;
use crate::dist::{ProcessGroup, Single};
use crate::report::Console;
use crate::train;
use std::sync::Arc;

pub fn run(settings: &Settings) -> anyhow::Result<Outcome> {
    let interrupted = interrupt::listen()?;
    let group: Arc<dyn ProcessGroup> = Arc::new(Single::new());
    ended(train::val(settings, &group, &interrupted, &Console::new()))
}
