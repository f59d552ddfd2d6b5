//! Several downloads at once, with one account of how far they are.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::client::{Client, Failure, Job, State};
use super::error::{DownloadError, bytes};
use crate::data::prepare::{Step, Unit};

/// Downloads at once.
const PARALLEL: usize = 8;
/// Between two looks at the state, and at whether to go on.
const LOOK: Duration = Duration::from_millis(100);

/// What to call the whole, and what to do where it cannot be had.
pub(super) struct Errand<'a> {
    pub what: &'a str,
    /// [`Unit::Images`]: whole jobs are counted; otherwise bytes.
    pub unit: Unit,
    pub folder: &'a Path,
    pub advice: &'a str,
}

/// Downloads all jobs. What cannot be had ends it only after everything else was tried, unless the host does not answer at all.
///
/// # Errors
/// What ended it early, such as a full disk or an interruption; else the first failure in the order of the jobs, with their number.
pub(super) fn fetch_all(
    client: &Client,
    jobs: &[Job],
    errand: &Errand<'_>,
    tell: &mut dyn FnMut(Step<'_>) -> ControlFlow<()>,
) -> Result<(), DownloadError> {
    if jobs.is_empty() {
        return Ok(());
    }
    let states: Vec<State> = jobs.iter().map(|_| State::default()).collect();
    let stop = AtomicBool::new(false);
    let next = AtomicUsize::new(0);
    let (sender, receiver) = mpsc::channel();
    let mut failures: Vec<(usize, Failure)> = Vec::new();
    let mut interrupted = false;
    thread::scope(|scope| {
        for _ in 0..jobs.len().min(PARALLEL) {
            let sender = sender.clone();
            let (states, stop, next) = (&states, &stop, &next);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let (Some(job), false) = (jobs.get(index), stop.load(Ordering::Relaxed)) else {
                        return;
                    };
                    let result = client.fetch(job, &states[index], stop);
                    // The receiver lives as long as the threads.
                    let _ = sender.send((index, result));
                }
            });
        }
        drop(sender);
        let halt = || {
            if !stop.swap(true, Ordering::Relaxed) {
                client.shut_down();
            }
        };
        let mut done = 0;
        loop {
            let message = receiver.recv_timeout(LOOK);
            match message {
                Ok((_, Ok(()))) => done += 1,
                Ok((_, Err(Failure::Stopped))) => {}
                Ok((index, Err(failure))) => {
                    if failure.ends_everything() {
                        halt();
                    }
                    failures.push((index, failure));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if !interrupted && tell(progress(errand, &states, done)).is_break() {
                interrupted = true;
                halt();
            }
        }
    });
    if interrupted {
        return Err(DownloadError::Interrupted);
    }
    failures.sort_by_key(|(index, failure)| (!failure.ends_everything(), *index));
    let count = failures.len();
    match failures.into_iter().next() {
        None => Ok(()),
        Some((index, failure)) => Err(error(client, jobs, &states, errand, index, failure, count)),
    }
}

fn progress<'a>(errand: &Errand<'a>, states: &[State], done: usize) -> Step<'a> {
    let (done, total) = match errand.unit {
        Unit::Images => (done as u64, Some(states.len() as u64)),
        _ => (
            states.iter().map(State::have).sum(),
            states.iter().map(State::length).sum(),
        ),
    };
    Step::Progress {
        what: errand.what,
        done,
        total,
        unit: errand.unit,
    }
}

fn error(
    client: &Client,
    jobs: &[Job],
    states: &[State],
    errand: &Errand<'_>,
    index: usize,
    failure: Failure,
    failed: usize,
) -> DownloadError {
    let url = client.address(&jobs[index].url);
    let advice = errand.advice.to_owned();
    // The others were not tried to the end.
    let is_alone = failed == 1 || failure.ends_everything();
    let reason = match failure {
        Failure::Write {
            path,
            source,
            missing,
        } => {
            let missing = match errand.unit {
                Unit::Images => None,
                _ => {
                    let length: Option<u64> = states.iter().map(State::length).sum();
                    let have: u64 = states.iter().map(State::have).sum();
                    length.map(|length| length.saturating_sub(have)).or(missing)
                }
            };
            return DownloadError::io(&path, source, || match missing {
                Some(missing) => format!(
                    "{} are still to be downloaded to {}",
                    bytes(missing),
                    errand.folder.display()
                ),
                None => format!(
                    "{} files are still to be downloaded to {}",
                    jobs.iter().filter(|job| job.is_open()).count(),
                    errand.folder.display()
                ),
            });
        }
        Failure::Passing { reason, .. }
        | Failure::Unreachable(reason)
        | Failure::Content(reason)
        | Failure::Final(reason) => reason,
        Failure::Stopped => return DownloadError::Interrupted,
    };
    if errand.unit == Unit::Images && !is_alone {
        return DownloadError::ImagesFailed {
            failed,
            total: jobs.len(),
            url,
            reason,
            advice,
        };
    }
    DownloadError::Failed {
        url,
        reason,
        advice,
    }
}
