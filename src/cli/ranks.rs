//! Commands that run on several ranks. The first process starts this very command line once for each rank and waits; a process
//! that was started so finds out by its environment and joins the others.
//!
//! ```text
//! yolo-train … --device cpu,cpu    serves the store, passes signals on, tells how it ended
//! ├── rank 0                       speaks: tables, bars, files
//! └── rank 1
//! ```

use std::process::{Command as Process, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::interrupt;
use super::outcome::{INTERRUPTED, Outcome};
use crate::config::{Command, DeviceError, Settings};
use crate::dist::launch::{Environment, Rank, Workers, start as start_ranks};
use crate::dist::{ProcessGroup, Single};

/// For the other ranks to end by themselves when one has failed.
const GRACE: Duration = Duration::from_secs(60);
const GLANCE: Duration = Duration::from_millis(20);

/// Why ranks did not come to a good end.
#[derive(Debug, thiserror::Error)]
pub enum RanksError {
    /// Its own message stands above.
    #[error("rank {rank} of {size} failed ({status})")]
    Failed {
        rank: usize,
        size: usize,
        status: ExitStatus,
    },
    #[error(
        "this process is rank {rank} of {started} (YOLO_TRAIN_RANK, YOLO_TRAIN_WORLD_SIZE), but --device stands for {wanted}"
    )]
    Size {
        rank: usize,
        started: usize,
        wanted: usize,
    },
}

/// For commands that know one rank only.
///
/// # Errors
/// [`DeviceError::OneRank`] where `--device` stands for several.
pub fn only_one(settings: &Settings, command: Command) -> anyhow::Result<()> {
    match settings.ranks()? {
        1 => Ok(()),
        ranks => Err(usage(DeviceError::OneRank {
            text: settings.device.clone(),
            ranks,
            command: command.name(),
        })),
    }
}

/// For commands that need several ranks: their number.
///
/// # Errors
/// [`DeviceError::SeveralRanks`] where `--device` stands for one; `what` needs more.
pub fn several(settings: &Settings, what: &'static str) -> anyhow::Result<usize> {
    match settings.ranks()? {
        1 => Err(usage(DeviceError::SeveralRanks {
            text: settings.device.clone(),
            what,
        })),
        ranks => Ok(ranks),
    }
}

fn usage(error: DeviceError) -> anyhow::Error {
    crate::config::ConfigError::Device(error).into()
}

/// Runs `work` on every rank that `--device` stands for, with its group and the flag that asks for an orderly end. One rank
/// is this process.
///
/// # Errors
/// Those of `work`, as [`run`].
pub fn each(
    settings: &Settings,
    work: impl FnOnce(&Arc<dyn ProcessGroup>, &AtomicBool) -> anyhow::Result<Outcome>,
) -> anyhow::Result<Outcome> {
    match settings.ranks()? {
        1 => {
            let group: Arc<dyn ProcessGroup> = Arc::new(Single::new());
            work(&group, &*interrupt::listen()?)
        }
        size => run(size, |rank| work(&rank.group, &*interrupt::listen()?)),
    }
}

/// Runs `of_rank` on `size` ranks: in the first process starts them all with its own command line and waits until they have
/// ended, in theirs calls it. What fails there is said with the number of the rank.
///
/// # Errors
/// Those of `of_rank`; in the first process [`RanksError`].
pub fn run(
    size: usize,
    of_rank: impl FnOnce(Rank) -> anyhow::Result<Outcome>,
) -> anyhow::Result<Outcome> {
    let Some(environment) = Environment::read()? else {
        return lead(size);
    };
    let of_rank = || {
        if environment.size != size {
            return Err(RanksError::Size {
                rank: environment.rank,
                started: environment.size,
                wanted: size,
            }
            .into());
        }
        end_with_parent();
        of_rank(environment.join(&environment.options()?)?)
    };
    of_rank().with_context(|| format!("rank {}", environment.rank))
}

/// A rank whose first process is killed is asked to end, too (where the system can do that).
fn end_with_parent() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, set_parent_process_death_signal};
        // Only a kindness: without it the rank ends when it misses the store or the others.
        let _ = set_parent_process_death_signal(Some(Signal::TERM));
    }
}

/// The first process.
fn lead(size: usize) -> anyhow::Result<Outcome> {
    let interrupted = interrupt::listen()?;
    let program = std::env::current_exe().context("finding the program to start ranks with")?;
    let (_store, workers) = start_ranks(size, |_| {
        let mut command = Process::new(&program);
        command.args(std::env::args_os().skip(1));
        command.stdin(Stdio::null());
        #[cfg(unix)]
        {
            // Ctrl-C comes here only, and is passed on: a rank that got it twice would end at once.
            use std::os::unix::process::CommandExt;
            command.process_group(0);
        }
        command
    })?;
    wait(size, workers, &interrupted)
}

fn wait(size: usize, mut workers: Workers, interrupted: &AtomicBool) -> anyhow::Result<Outcome> {
    let mut passed_on = false;
    let (mut stopped, mut obeyed) = (false, false);
    let mut failed: Option<(Instant, RanksError)> = None;
    loop {
        if !passed_on && interrupted.load(Ordering::Relaxed) {
            workers.interrupt();
            passed_on = true;
        }
        for (rank, status) in workers.ended()? {
            match how(status, passed_on) {
                End::Good => {}
                End::Stopped => stopped = true,
                End::Obeyed => obeyed = true,
                // Whoever missed it has failed, too: a killed rank is the cause, otherwise the first.
                End::Bad => {
                    let error = RanksError::Failed { rank, size, status };
                    match &mut failed {
                        Some((_, first)) if status.code().is_none() => *first = error,
                        Some(_) => {}
                        None => failed = Some((Instant::now(), error)),
                    }
                }
            }
        }
        let patience_ends = |(since, _): &(Instant, RanksError)| since.elapsed() > GRACE;
        if workers.is_empty() || failed.as_ref().is_some_and(patience_ends) {
            break;
        }
        std::thread::sleep(GLANCE);
    }
    match failed {
        // Those that saw an obedient one vanish are no failures.
        Some((_, error)) if !obeyed => Err(error.into()),
        _ if stopped || passed_on => Ok(Outcome::Interrupted),
        _ => Ok(Outcome::Finished),
    }
}

enum End {
    Good,
    /// In an orderly way, by a signal.
    Stopped,
    /// The signal ended it: it was not listening (yet).
    Obeyed,
    Bad,
}

/// `asked`: whether the rank was asked to end.
fn how(status: ExitStatus, asked: bool) -> End {
    if status.success() {
        return End::Good;
    }
    if status.code() == Some(i32::from(INTERRUPTED)) {
        return End::Stopped;
    }
    #[cfg(unix)]
    {
        use std::os::unix::process::ExitStatusExt;
        if asked && status.signal() == Some(signal_hook::consts::SIGTERM) {
            return End::Obeyed;
        }
    }
    End::Bad
}
