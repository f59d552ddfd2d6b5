//! Commands that run on several ranks.
//!
//! ```text
//! yolo-train … --device cpu,cpu    serves the store, passes signals on, says how it ended
//! ├── rank 0                       speaks: tables, bars, files
//! └── rank 1
//! ```
//!
//! The first process starts this very command line once for each rank and waits (`lead`); with `--nnodes` one such
//! process on every machine. A process that was started so, or by torchrun, srun or mpirun, finds out by its environment
//! (`place`) and joins the others. What fails is written on a `board` and said once.

mod board;
mod lead;
mod others;
mod place;
mod restart;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::Context;

use self::board::{Kind, Report};
use self::place::Place;
use super::interrupt;
use super::outcome::{FAILED, Outcome, USAGE, code_of, is_broken_pipe};
use crate::config::{Command, DeviceError, Settings};
use crate::dist::launch::{Again, Environment, Rank, end_with};
use crate::dist::launcher::Launched;
#[cfg(feature = "cuda")]
use crate::dist::nccl::{self, NcclOptions};
use crate::dist::store::StoreClient;
use crate::dist::tcp::TcpOptions;
use crate::dist::{DistError, ProcessGroup, Single};
use crate::eval::ValidateError;
use crate::gpu::{self, Resolved};
use crate::report::Console;
use crate::train::TrainError;

/// For the others to say what they know, once one has failed.
const GRACE: Duration = Duration::from_secs(3);
/// For an answer of a store, once something has failed.
const ANSWER: Duration = Duration::from_secs(2);
const GLANCE: Duration = Duration::from_millis(20);

/// Why ranks did not come to a good end, or not together.
#[derive(Debug, thiserror::Error)]
pub enum RanksError {
    /// What made all of them end.
    #[error("rank {rank}: {text}")]
    Rank { rank: usize, code: u8, text: String },
    /// Somebody else says what failed.
    #[error("another process says what failed")]
    Told { code: u8 },
    #[error("panicked: {0}")]
    Panicked(String),
    #[error(
        "{} did not come to {master} within {} s ({came} of {size} came); start yolo-train with --node-rank there, or look at its output",
        nodes(missing), after.as_secs_f64()
    )]
    NodesMissing {
        missing: Vec<usize>,
        came: usize,
        size: usize,
        master: String,
        after: Duration,
    },
    #[error(
        "another process is node {node} of this run already; every machine has a --node-rank of its own"
    )]
    SameNode { node: usize },
    #[error(
        "node {node} has --nnodes {wanted}, node {other} has --nnodes {theirs}; all machines take the same"
    )]
    NodesDiffer {
        node: usize,
        wanted: usize,
        other: usize,
        theirs: String,
    },
    #[error(
        "--max-restarts is for several ranks of one machine that yolo-train starts itself (--device cpu,cpu); start other runs again with --resume"
    )]
    NoRestarts,
    #[error("--nnodes {nodes} needs {option}")]
    NeedsOption { nodes: usize, option: &'static str },
    #[error("there is no node {node} among {nodes}: --node-rank goes from 0 to {}", nodes - 1)]
    NoSuchNode { node: usize, nodes: usize },
    #[error(
        "{option} is for runs on several machines: give --nnodes, or start the ranks with torchrun, srun or mpirun"
    )]
    NotForOne { option: &'static str },
    #[error("bad value for {option}: {given:?}; it takes {allowed}")]
    BadValue {
        option: &'static str,
        given: String,
        allowed: &'static str,
    },
    #[error(
        "--device {device} stands for {devices} devices, but {launcher} has started rank {rank} as number {local_rank} (from 0) of this machine: name a device for each"
    )]
    NoDevice {
        device: String,
        devices: usize,
        launcher: &'static str,
        rank: usize,
        local_rank: usize,
    },
    #[error(
        "ranks of {launcher} on several machines need to know where rank 0 is: give --master ADDR:PORT, or export MASTER_ADDR and MASTER_PORT in the job script (see docs/ranks.md)"
    )]
    NoMaster { launcher: &'static str },
    #[error(
        "ranks that meet at {master} need a token, the same for all of them; set it where {launcher} is started: export YOLO_TRAIN_TOKEN={token}"
    )]
    NoToken {
        master: String,
        launcher: &'static str,
        token: String,
    },
    #[error(
        "node {node} needs the token of the run, which node 0 prints: export YOLO_TRAIN_TOKEN=… or give --token-file"
    )]
    NoNodeToken { node: usize },
    #[error("the token {from} {reason}; take for example the output of: openssl rand -hex 16")]
    BadToken { from: String, reason: String },
}

fn nodes(missing: &[usize]) -> String {
    let numbers: Vec<_> = missing.iter().map(usize::to_string).collect();
    let s = if missing.len() == 1 { "" } else { "s" };
    format!("node{s} {}", numbers.join(", "))
}

impl RanksError {
    /// The exit code of the program.
    pub(super) fn code(&self) -> u8 {
        match self {
            RanksError::Rank { code, .. } | RanksError::Told { code } => *code,
            RanksError::Panicked(_)
            | RanksError::NodesMissing { .. }
            | RanksError::SameNode { .. }
            | RanksError::NodesDiffer { .. } => FAILED,
            _ => USAGE,
        }
    }
}

/// For commands that know one rank only; its device is this process's afterwards.
///
/// # Errors
/// [`DeviceError::OneRank`] where `--device` stands for several; those of [`gpu::resolve`].
pub fn only_one(settings: &Settings, command: Command) -> anyhow::Result<()> {
    match settings.ranks()? {
        1 => {
            take(resolve(settings)?, true);
            Ok(())
        }
        ranks => Err(usage(DeviceError::OneRank {
            text: settings.device.clone(),
            ranks,
            command: command.name(),
        })),
    }
}

/// For commands that need several ranks.
///
/// # Errors
/// [`DeviceError::SeveralRanks`] where this process is the only one; `what` needs more.
pub fn several(settings: &Settings, what: &'static str) -> anyhow::Result<()> {
    let alone = match Place::of(settings)? {
        Place::Alone => true,
        Place::Launched(launched) => launched.size == 1,
        Place::Lead(_) | Place::Worker(_) => false,
    };
    if alone {
        return Err(usage(DeviceError::SeveralRanks {
            text: settings.device.clone(),
            what,
        }));
    }
    Ok(())
}

fn usage(error: DeviceError) -> anyhow::Error {
    crate::config::ConfigError::Device(error).into()
}

/// As [`run`], with the flag that asks for an orderly end.
///
/// # Errors
/// As [`run`].
pub fn each(
    settings: &Settings,
    work: impl FnOnce(&Arc<dyn ProcessGroup>, &AtomicBool) -> anyhow::Result<Outcome>,
) -> anyhow::Result<Outcome> {
    run(settings, |group| work(group, &*interrupt::listen()?))
}

/// What came before this attempt, where the first process has started the ranks again.
///
/// # Errors
/// [`DistError::Environment`].
pub fn again() -> Result<Option<Again>, DistError> {
    Ok(Environment::read()?.and_then(|e| e.again))
}

/// Tells the first process where the run is, so that it can go on after a failure.
///
/// # Errors
/// Its store is gone.
pub fn tell_run(folder: &Path) -> Result<(), DistError> {
    let Some(environment) = Environment::read()? else {
        return Ok(());
    };
    let (board, token) = (environment.board(), &environment.token);
    let store = StoreClient::connect(board, token, ANSWER)?.answers_within(ANSWER);
    store.set(restart::RUN, folder.display().to_string().as_bytes())
}

/// Runs `work` on every rank of the run, with its group. One rank is this process; for several this one starts the others
/// or is one of them. A signal ends the ranks at once, unless `work` listens.
///
/// # Errors
/// Those of `work` and [`RanksError`].
pub fn run(
    settings: &Settings,
    work: impl FnOnce(&Arc<dyn ProcessGroup>) -> anyhow::Result<Outcome>,
) -> anyhow::Result<Outcome> {
    let place = Place::of(settings)?;
    let restarts = match &place {
        Place::Lead(nodes) => nodes.count == 1,
        Place::Worker(_) => true,
        Place::Alone | Place::Launched(_) => false,
    };
    if settings.max_restarts > 0 && !restarts {
        return Err(RanksError::NoRestarts.into());
    }
    match place {
        Place::Alone => {
            take(resolve(settings)?, true);
            alone(work)
        }
        Place::Lead(nodes) => lead::lead(&nodes, settings, &resolve(settings)?),
        Place::Launched(launched) => {
            let device = || -> anyhow::Result<()> {
                let request = settings.device_request()?;
                let own = gpu::of_launched(&request, &settings.device, launched.local_rank)?;
                take(own, launched.rank == 0);
                Ok(())
            };
            match launched.size {
                1 => device().and_then(|()| alone(work)),
                _ => launched_rank(&launched, settings, device, work),
            }
        }
        Place::Worker(environment) => {
            end_with(environment.parent);
            let device = || -> anyhow::Result<()> {
                gpu::of_environment()?.into_iter().for_each(gpu::assign);
                Ok(())
            };
            as_rank(&environment, settings, device, work, |report| {
                let post = || -> Result<(), DistError> {
                    let (board, token) = (environment.board(), &environment.token);
                    report.post(&StoreClient::connect(board, token, ANSWER)?.answers_within(ANSWER))
                };
                // where nobody looks after this process any more, it speaks for itself
                post().is_err()
            })
        }
    }
}

/// The devices that `--device` stands for.
fn resolve(settings: &Settings) -> anyhow::Result<Resolved> {
    Ok(gpu::resolve(&settings.device_request()?, &settings.device)?)
}

/// Makes the first device the one of this process; one process tells the user about it.
fn take(found: Resolved, tells: bool) {
    if tells && let Some(note) = found.note {
        Console::new().note(note);
    }
    if let Some(device) = found.devices.first() {
        gpu::assign(*device);
    }
}

fn alone(
    work: impl FnOnce(&Arc<dyn ProcessGroup>) -> anyhow::Result<Outcome>,
) -> anyhow::Result<Outcome> {
    let group: Arc<dyn ProcessGroup> = Arc::new(Single::new());
    work(&group)
}

/// Finds its `device`, joins the others and works. `says` tells them what failed here, and whether this process is to print it.
fn as_rank(
    environment: &Environment,
    settings: &Settings,
    device: impl FnOnce() -> anyhow::Result<()>,
    work: impl FnOnce(&Arc<dyn ProcessGroup>) -> anyhow::Result<Outcome>,
    says: impl FnOnce(&Report) -> bool,
) -> anyhow::Result<Outcome> {
    let options = || -> anyhow::Result<TcpOptions> {
        device()?;
        let mut options = environment.options()?;
        options.ports = place::ports(settings)?;
        options.rendezvous = Duration::from_secs_f64(settings.join_timeout);
        options.deadline = Duration::from_secs_f64(settings.timeout);
        options.patience = options.patience.max(options.deadline);
        Ok(options)
    };
    let joined = options().and_then(|options| over_gpus(environment.join(&options)?, settings));
    let end = match &joined {
        Ok(rank) => {
            let work = AssertUnwindSafe(|| work(&rank.group));
            catch_unwind(work).unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|t| (*t).to_owned()));
                Err(RanksError::Panicked(text.unwrap_or_default()).into())
            })
        }
        Err(_) => Ok(Outcome::Finished),
    };
    // the group is still open: others end because of what is said here, not before
    let said = |end: anyhow::Result<Outcome>| match end {
        Err(e) if !is_broken_pipe(&e) => {
            let report = Report {
                rank: environment.rank,
                kind: if is_consequence(&e) {
                    Kind::Secondary
                } else {
                    Kind::Primary
                },
                code: code_of(&e),
                text: super::outcome::one_line(&e),
                order: 0,
            };
            if says(&report) {
                Err(e).with_context(|| format!("rank {}", environment.rank))
            } else {
                Err(RanksError::Told { code: report.code }.into())
            }
        }
        end => end,
    };
    match joined {
        Ok(_rank) => said(end),
        Err(e) => said(Err(e)),
    }
}

/// Ranks with CUDA GPUs are connected over NCCL, too.
#[cfg(feature = "cuda")]
fn over_gpus(rank: Rank, settings: &Settings) -> anyhow::Result<Rank> {
    let Some(device) = gpu::assigned().cuda().filter(|_| rank.group.size() > 1) else {
        return Ok(rank);
    };
    let options = NcclOptions {
        connect: Duration::from_secs_f64(settings.join_timeout),
        ..NcclOptions::new(device)
    };
    Ok(Rank {
        group: nccl::join(rank.group, &options)?,
        ..rank
    })
}

#[cfg(not(feature = "cuda"))]
fn over_gpus(rank: Rank, _: &Settings) -> anyhow::Result<Rank> {
    Ok(rank)
}

/// A rank that torchrun, srun or mpirun has started: nobody looks after it, so the ranks settle who speaks.
fn launched_rank(
    launched: &Launched,
    settings: &Settings,
    device: impl FnOnce() -> anyhow::Result<()>,
    work: impl FnOnce(&Arc<dyn ProcessGroup>) -> anyhow::Result<Outcome>,
) -> anyhow::Result<Outcome> {
    let (master, token) = place::meeting(launched, settings).map_err(|e| {
        // the same on all ranks: one of each machine says it
        match (launched.local_rank, e.downcast_ref::<RanksError>()) {
            (1.., Some(known)) => RanksError::Told { code: known.code() }.into(),
            _ => e,
        }
    })?;
    let (rank, size) = (launched.rank, launched.size);
    let server = match rank {
        0 => Some(
            master
                .serve(&token, launched.one_machine)
                .context("rank 0")?,
        ),
        _ => None,
    };
    let environment = Environment {
        rank,
        size,
        store: match &server {
            Some(server) => server.address().to_string(),
            None => master.to_string(),
        },
        token,
        board: None,
        parent: None,
        again: None,
    };
    as_rank(&environment, settings, device, work, |report| {
        let settle = || -> Result<bool, DistError> {
            let store = StoreClient::connect(&environment.store, &environment.token, ANSWER)?
                .answers_within(ANSWER);
            report.post(&store)?;
            let end = Instant::now() + GRACE;
            let causes = || -> Result<bool, DistError> {
                Ok(board::read(&store)?
                    .iter()
                    .any(|r| r.kind < Kind::Secondary))
            };
            let speaks = if report.kind < Kind::Secondary {
                store.add("speaks", 1)? == 1
            } else {
                while !causes()? && Instant::now() < end {
                    std::thread::sleep(GLANCE);
                }
                // a rank that was killed cannot speak: the first of those that miss it does
                !causes()? && store.add("misses", 1)? == 1
            };
            store.add("left", 1)?;
            // the store is in this process
            while rank == 0 && store.add("left", 0)? < size as i64 && Instant::now() < end {
                std::thread::sleep(GLANCE);
            }
            Ok(speaks)
        };
        settle().unwrap_or(true)
    })
}

/// Whether an error only says that another rank has failed.
fn is_consequence(error: &anyhow::Error) -> bool {
    fn dist(e: &DistError) -> bool {
        use DistError::{Aborted, Closed, PeerLeft, PeerLost};
        matches!(
            e,
            PeerLost { .. } | PeerLeft { .. } | Aborted { .. } | Closed
        )
    }
    fn validate(e: &ValidateError) -> bool {
        match e {
            ValidateError::Peer { .. } => true,
            ValidateError::Dist(e) => dist(e),
            _ => false,
        }
    }
    if let Some(e) = error.downcast_ref::<TrainError>() {
        return match e {
            TrainError::OtherRank { .. } => true,
            TrainError::Dist(e) => dist(e),
            TrainError::Validate(e) => validate(e),
            _ => false,
        };
    }
    let found = error.downcast_ref::<DistError>().map(dist);
    found.or_else(|| error.downcast_ref::<ValidateError>().map(validate)) == Some(true)
}
