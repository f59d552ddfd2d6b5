//! `yolo-train status RUN`.

use super::outcome::{Outcome, print};
use crate::config::Settings;
use crate::report::tables::table;
use crate::train::status::{Health, RankStatus, read};
use anyhow::Context;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Why there is no good status.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    #[error(
        "no run {run}: {} hold{} no status; give the folder of a run that this version has begun",
        looked.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", "),
        if looked.len() == 1 { "s" } else { "" }
    )]
    NoRun { run: String, looked: Vec<PathBuf> },
    #[error("of {}: {}", folder.display(), ranks.join(", "))]
    Gone { folder: PathBuf, ranks: Vec<String> },
}

#[derive(Debug, Serialize)]
struct Shown<'a> {
    run: &'a Path,
    ranks: &'a [RankStatus],
}

pub fn run(settings: &Settings) -> anyhow::Result<Outcome> {
    let (folder, ranks) = find(settings)?;
    if settings.json {
        let shown = Shown {
            run: &folder,
            ranks: &ranks,
        };
        print(&format!("{}\n", serde_json::to_string_pretty(&shown)?))?;
    } else {
        print(&format!("{}\n{}", folder.display(), text(&ranks)))?;
    }
    let gone: Vec<String> = ranks
        .iter()
        .filter(|r| matches!(r.health, Health::Gone | Health::Failed | Health::Missing))
        .map(|r| {
            let why = r.status.as_ref().and_then(|s| s.error.as_deref());
            let why = why.map_or(String::new(), |e| format!(" ({e})"));
            format!("rank {} is {}{why}", r.rank, r.health.name())
        })
        .collect();
    match gone.is_empty() {
        true => Ok(Outcome::Finished),
        false => Err(StatusError::Gone {
            folder,
            ranks: gone,
        }
        .into()),
    }
}

/// The run that is meant: a folder, or a name in the project.
fn find(settings: &Settings) -> anyhow::Result<(PathBuf, Vec<RankStatus>)> {
    let looked = vec![
        PathBuf::from(&settings.run),
        Path::new(&settings.project).join(&settings.run),
    ];
    for folder in &looked {
        let found = read(folder).with_context(|| format!("status of {}", folder.display()))?;
        if let Some(ranks) = found {
            return Ok((folder.clone(), ranks));
        }
    }
    Err(StatusError::NoRun {
        run: settings.run.clone(),
        looked,
    }
    .into())
}

fn text(ranks: &[RankStatus]) -> String {
    let head = [
        "rank",
        "state",
        "place",
        "epoch",
        "step",
        "images/s",
        "data",
        "ranks",
        "collective",
        "age",
    ];
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let rows: Vec<Vec<String>> = ranks
        .iter()
        .map(|r| {
            let mut row = vec![r.rank.to_string(), r.health.name().into()];
            match &r.status {
                Some(s) => row.extend([
                    s.place.clone(),
                    format!("{}/{}", s.epoch, s.epochs),
                    s.step.to_string(),
                    format!("{:.1}", s.images_per_s),
                    percent(s.data_share),
                    percent(s.ranks_share),
                    s.collective.clone().unwrap_or_else(|| "-".into()),
                    format!("{:.0} s", r.age.unwrap_or(0.0)),
                ]),
                None => row.resize(head.len(), "-".into()),
            }
            row
        })
        .collect();
    table(&head, &rows)
}
