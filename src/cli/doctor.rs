//! `yolo-train doctor`.

use super::outcome::{Outcome, print};
use crate::config::Settings;
use crate::doctor;
use std::path::Path;

pub fn run(settings: &Settings) -> anyhow::Result<Outcome> {
    let report = doctor::examine(Path::new(&settings.project));
    if settings.json {
        print(&format!("{}\n", serde_json::to_string_pretty(&report)?))?;
    } else {
        print(&report.text())?;
    }
    report.verdict()?;
    Ok(Outcome::Finished)
}
