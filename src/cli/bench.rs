//! `yolo-train bench`.

use super::outcome::{Outcome, print_found};
use super::{bench_comm, bench_scaling, ranks};
use crate::config::{Command, Settings};
use crate::report::Console;
use crate::train::bench;

pub fn run(settings: &Settings) -> anyhow::Result<Outcome> {
    if let Some(sizes) = bench_comm::sizes(settings)? {
        return bench_comm::run(settings, &sizes);
    }
    if settings.scaling {
        return bench_scaling::run(settings);
    }
    ranks::only_one(settings, Command::Bench)?;
    let b = bench::run(settings, &Console::new())?;
    print_found(settings.json, &b, || b.table())?;
    Ok(Outcome::Finished)
}
