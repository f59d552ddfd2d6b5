//! `yolo-train bench`.

use super::outcome::{Outcome, print};
use crate::config::Settings;
use crate::report::Console;
use crate::train::bench;

pub fn run(settings: &Settings) -> anyhow::Result<Outcome> {
    let b = bench::run(settings, &Console::new())?;
    if settings.json {
        print(&format!("{}\n", serde_json::to_string(&b)?))?;
    } else {
        print(&b.table())?;
    }
    Ok(Outcome::Finished)
}
