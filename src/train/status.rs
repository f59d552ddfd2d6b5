//! What each rank does now: `status/rank-N.json` in the run's folder, written by the training loop itself, at most once a
//! second; and its reader, for `yolo-train status`.

use crate::dist::ProcessGroup;
use crate::pulse::Pulse;
use crate::report::events::unix_time;
use crate::report::files::replace;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Their folder in a run's folder.
const FOLDER: &str = "status";
/// Between two versions of a file.
const INTERVAL: Duration = Duration::from_secs(1);
/// Shortest age of a file that makes a running rank late.
const FRESH: f64 = 10.0;

/// How far a rank's process has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    Running,
    Finished,
    Interrupted,
    Failed,
}

/// A rank's file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub rank: usize,
    pub ranks: usize,
    pub phase: Phase,
    /// What it does, in a few words.
    pub place: String,
    /// From 1.
    pub epoch: usize,
    pub epochs: usize,
    /// Optimizer steps that are done.
    pub step: u64,
    /// Of this rank, since the version before.
    pub images_per_s: f64,
    /// Parts of that time that it waited for batches, and for other ranks.
    pub data_share: f64,
    pub ranks_share: f64,
    /// Its newest collective; none with one rank.
    pub collective: Option<String>,
    /// Why it failed.
    pub error: Option<String>,
    pub machine: String,
    pub process: u32,
    /// Tells the process from a later one of the same number.
    pub process_started: u64,
    /// Seconds since 1970.
    pub updated: f64,
    /// Seconds that a rank may be silent for (`--timeout`).
    pub timeout: f64,
}

/// What is summed up between two versions of the file.
struct Sums {
    since: Instant,
    images: usize,
    data: f64,
    ranks: f64,
}

impl Sums {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            images: 0,
            data: 0.0,
            ranks: 0.0,
        }
    }
}

struct State {
    status: Status,
    sums: Sums,
    written: Option<Instant>,
}

/// Keeps a rank's pulse and its status file.
pub(super) struct Monitor {
    group: Arc<dyn ProcessGroup>,
    pulse: Pulse,
    path: PathBuf,
    state: Mutex<State>,
}

impl Monitor {
    /// Of a rank of the run in `folder`. A folder that is not there (on another machine) or cannot be written to means no
    /// status, and harms nothing.
    pub fn new(folder: &Path, group: &Arc<dyn ProcessGroup>, timeout: f64) -> Self {
        let folder = folder.join(FOLDER);
        let _ = std::fs::create_dir(&folder);
        let rank = group.rank();
        let process = std::process::id();
        let status = Status {
            rank,
            ranks: group.size(),
            phase: Phase::Running,
            place: "start".into(),
            epoch: 0,
            epochs: 0,
            step: 0,
            images_per_s: 0.0,
            data_share: 0.0,
            ranks_share: 0.0,
            collective: None,
            error: None,
            machine: machine(),
            process,
            process_started: process_start(process).unwrap_or(0),
            updated: 0.0,
            timeout,
        };
        if rank == 0 {
            remove_others(&folder, group.size());
        }
        Self {
            pulse: group.pulse(),
            group: group.clone(),
            path: folder.join(format!("rank-{rank}.json")),
            state: Mutex::new(State {
                status,
                sums: Sums::new(),
                written: None,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Work goes on at `place`.
    pub fn beat(&self, place: &'static str) {
        self.pulse.beat(place);
        let mut state = self.lock();
        if state.written.is_none_or(|at| at.elapsed() >= INTERVAL) {
            self.write(&mut state, place);
        }
    }

    /// An epoch, from 1, and how many there are.
    pub fn epoch(&self, epoch: usize, epochs: usize) {
        let mut state = self.lock();
        (state.status.epoch, state.status.epochs) = (epoch, epochs);
    }

    /// Optimizer steps that are done.
    pub fn step(&self, step: u64) {
        self.pulse.set_step(step);
    }

    /// A micro-batch of this rank: its images, seconds of waiting for its data and for other ranks.
    pub fn add(&self, images: usize, data: f64, ranks: f64) {
        let sums = &mut self.lock().sums;
        sums.images += images;
        sums.data += data;
        sums.ranks += ranks;
    }

    /// The run is over for this rank.
    pub fn end(&self, phase: Phase, error: Option<String>) {
        let mut state = self.lock();
        (state.status.phase, state.status.error) = (phase, error);
        self.write(&mut state, self.pulse.last().place);
    }

    fn write(&self, state: &mut State, place: &str) {
        let State {
            status,
            sums,
            written,
        } = state;
        let all = sums.since.elapsed().as_secs_f64().max(1e-9);
        status.place = place.into();
        status.step = self.pulse.step();
        status.images_per_s = sums.images as f64 / all;
        status.data_share = sums.data / all;
        status.ranks_share = sums.ranks / all;
        status.updated = unix_time();
        status.collective = match status.ranks {
            1 => None,
            _ => self
                .group
                .log()
                .last()
                .map(|e| format!("{} ({})", e.collective.name, e.state.name())),
        };
        *written = Some(Instant::now());
        *sums = Sums::new();
        // whoever looks sees that it is old
        if let Ok(text) = serde_json::to_vec_pretty(status) {
            let _ = replace(&self.path, &text);
        }
    }
}

/// Files of an earlier start of this run, on more ranks, say nothing of this one.
fn remove_others(folder: &Path, ranks: usize) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let rank = name
            .to_str()
            .and_then(|n| n.strip_prefix("rank-")?.strip_suffix(".json"));
        if rank.is_some_and(|r| r.parse::<usize>().is_ok_and(|r| r >= ranks)) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Name of this machine, with its boot: a process number means nothing elsewhere.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let name = read("/proc/sys/kernel/hostname");
    let boot = read("/proc/sys/kernel/random/boot_id");
    format!("{} {}", name.trim(), boot.trim())
}

/// When a process started, in ticks of the system; `None` where there is no such process (a zombie is none), or nobody can
/// tell.
fn process_start(process: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // the name, in parentheses, may hold anything
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let started = fields.nth(18)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(started)
}

/// How a rank is, by what it wrote and how long ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    Running,
    Finished,
    Interrupted,
    Failed,
    /// It runs, as far as can be told, but has written nothing for long.
    Late,
    /// Its process is not there any more.
    Gone,
    /// It never wrote anything.
    Missing,
}

impl Health {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Interrupted => "interrupted",
            Self::Failed => "failed",
            Self::Late => "late",
            Self::Gone => "gone",
            Self::Missing => "missing",
        }
    }

    fn of(status: &Status, now: f64, here: &str, started: impl Fn(u32) -> Option<u64>) -> Self {
        let on_linux = !here.trim().is_empty();
        match status.phase {
            Phase::Finished => Self::Finished,
            Phase::Interrupted => Self::Interrupted,
            Phase::Failed => Self::Failed,
            Phase::Running
                if on_linux
                    && status.machine == here
                    && started(status.process) != Some(status.process_started) =>
            {
                Self::Gone
            }
            Phase::Running if now - status.updated > status.timeout.max(FRESH) => Self::Late,
            Phase::Running => Self::Running,
        }
    }
}

/// A rank as `yolo-train status` shows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RankStatus {
    pub rank: usize,
    pub health: Health,
    /// Seconds since it wrote.
    pub age: Option<f64>,
    pub status: Option<Status>,
}

/// All ranks of the run in `folder`, by number; `None` where none ever wrote.
///
/// # Errors
/// Those of the file system; a file that cannot be understood.
pub fn read(folder: &Path) -> std::io::Result<Option<Vec<RankStatus>>> {
    let first = match std::fs::read(folder.join(FOLDER).join("rank-0.json")) {
        Ok(bytes) => parse(&bytes)?,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let (now, here) = (unix_time(), machine());
    let ranks = (0..first.ranks).map(|rank| {
        let path = folder.join(FOLDER).join(format!("rank-{rank}.json"));
        let status = match std::fs::read(path) {
            Ok(bytes) => Some(parse(&bytes)?),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            Err(e) => return Err(e),
        };
        Ok(RankStatus {
            rank,
            health: status.as_ref().map_or(Health::Missing, |s| {
                Health::of(s, now, &here, process_start)
            }),
            age: status.as_ref().map(|s| (now - s.updated).max(0.0)),
            status,
        })
    });
    ranks.collect::<std::io::Result<_>>().map(Some)
}

fn parse(bytes: &[u8]) -> std::io::Result<Status> {
    serde_json::from_slice(bytes).map_err(std::io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dist::Single;

    fn group() -> Arc<dyn ProcessGroup> {
        Arc::new(Single::new())
    }

    #[test]
    fn what_a_rank_writes_is_read_and_it_is_running_until_it_says_so() {
        let t = tempfile::tempdir().unwrap();
        assert_eq!(read(t.path()).unwrap(), None);
        let stale = t.path().join("status/rank-3.json");
        std::fs::create_dir(t.path().join("status")).unwrap();
        std::fs::write(&stale, "{}").unwrap();
        let monitor = Monitor::new(t.path(), &group(), 5.0);
        assert!(!stale.exists(), "of an earlier run on more ranks");
        monitor.epoch(2, 7);
        monitor.step(11);
        monitor.add(8, 0.0, 0.0);
        monitor.beat("forward");
        monitor.beat("optimizer");
        let one = |t: &Path| read(t).unwrap().unwrap().remove(0);
        let found = one(t.path());
        let s = found.status.unwrap();
        assert_eq!(found.health, Health::Running);
        assert_eq!((s.epoch, s.epochs, s.step), (2, 7, 11));
        assert_eq!(s.place, "forward", "at most once a second");
        assert!(s.images_per_s > 0.0);
        monitor.end(Phase::Failed, Some("no more disk".into()));
        let found = one(t.path());
        assert_eq!(found.health, Health::Failed);
        assert_eq!(found.status.unwrap().error.unwrap(), "no more disk");
    }

    #[test]
    fn a_rank_is_gone_or_late_by_its_process_and_its_age() {
        let t = tempfile::tempdir().unwrap();
        Monitor::new(t.path(), &group(), 5.0).beat("forward");
        let found = read(t.path()).unwrap().unwrap().remove(0);
        let s = found.status.unwrap();
        let (now, here) = (s.updated, s.machine.clone());
        let alive = |_| Some(s.process_started);
        let health = |age: f64, here: &str| Health::of(&s, now + age, here, alive);
        assert_eq!(health(9.0, &here), Health::Running);
        assert_eq!(health(11.0, &here), Health::Late);
        assert_eq!(health(11.0, "another boot"), Health::Late);
        for other in [None, Some(s.process_started + 1)] {
            assert_eq!(Health::of(&s, now, &here, |_| other), Health::Gone);
            assert_eq!(Health::of(&s, now, "another", |_| other), Health::Running);
        }
    }

    #[test]
    fn without_a_folder_to_write_to_a_run_goes_on() {
        let t = tempfile::tempdir().unwrap();
        std::fs::write(t.path().join("status"), "a file").unwrap();
        let monitor = Monitor::new(t.path(), &group(), 5.0);
        monitor.beat("forward");
        monitor.end(Phase::Finished, None);
        assert_eq!(std::fs::read(t.path().join("status")).unwrap(), b"a file");
    }
}
