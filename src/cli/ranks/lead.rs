//! The first process of a machine: starts its ranks, passes signals on, ends them all once one has failed, and says why.

use std::process::{Command as Process, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::board::{self, Kind, Report};
use super::others::{Others, left};
use super::place::{self, Nodes};
use super::restart::Attempts;
use super::{GLANCE, GRACE, RanksError};
use crate::cli::interrupt;
use crate::cli::outcome::{FAILED, INTERRUPTED, Outcome};
use crate::config::Settings;
use crate::dist::DistError;
use crate::dist::launch::{Again, Environment, TOKEN, Workers};
use crate::dist::master::Master;
use crate::dist::store::{StoreClient, StoreServer, random_token};
use crate::gpu::{DEVICE_VARIABLE, Device, Resolved};
use crate::report::Console;

/// For ranks to end that were asked to, after [`GRACE`], because another one has failed: they may be writing a checkpoint.
const PATIENCE: Duration = Duration::from_secs(7);
/// For the system to end what was killed.
const LAST: Duration = Duration::from_secs(5);

/// Where this machine's ranks are in the run, and what is served for them.
struct Run {
    first: usize,
    size: usize,
    /// Address of the store.
    store: String,
    board: Arc<StoreServer>,
    /// Of nodes other than 0.
    others: Option<Others>,
}

/// `found`: the devices of this machine's ranks, in order.
pub(super) fn lead(
    nodes: &Nodes,
    settings: &Settings,
    found: &Resolved,
) -> anyhow::Result<Outcome> {
    let mut attempts = Attempts::new(settings, nodes.devices);
    let mut interrupted = None;
    loop {
        let mut run = match &nodes.master {
            Some(master) if nodes.count > 1 => meet(nodes, master, settings)?,
            _ => {
                let board = StoreServer::bind([127, 0, 0, 1], 0, &random_token()?)?;
                Run {
                    first: 0,
                    size: attempts.ranks,
                    store: board.address().to_string(),
                    board: Arc::new(board),
                    others: None,
                }
            }
        };
        // Only now: before, a signal ends this process at once, and there is no other one yet.
        let interrupted = match &interrupted {
            Some(flag) => flag,
            None => interrupted.insert(interrupt::listen()?),
        };
        let devices = &found.devices[..attempts.ranks];
        let workers = start(&run, devices, attempts.again.as_ref())?;
        // once, by one machine, after all that can be said against the run
        if let Some(note) = &found.note
            && nodes.node == 0
            && attempts.again.is_none()
        {
            Console::new().note(note);
        }
        let end = attempt(nodes, &mut run, workers, interrupted);
        let again = end
            .as_ref()
            .err()
            .and_then(|e| attempts.next(e, &run.board, interrupted));
        match again {
            Some(line) => Console::new().warn(line),
            None => return end,
        }
    }
}

/// Looks after the ranks of one attempt until all have ended.
fn attempt(
    nodes: &Nodes,
    run: &mut Run,
    workers: Workers,
    interrupted: &AtomicBool,
) -> anyhow::Result<Outcome> {
    let supervisor = Supervisor {
        workers,
        board: &run.board,
        interrupted,
        several_machines: nodes.count > 1,
        asked: false,
        terminated: false,
        killed: false,
        stopped: false,
        failed: None,
    };
    let end = supervisor.run();
    match run.others.take() {
        Some(others) => others.end(),
        // the others read from this store what has failed
        None if end.is_err() => {
            let end = Instant::now() + GRACE;
            let gone = |node| !run.board.values(&left(node)).is_empty();
            while !(1..nodes.count).all(gone) && Instant::now() < end {
                std::thread::sleep(GLANCE);
            }
        }
        None => {}
    }
    end
}

/// Comes together with the first processes of the other machines.
fn meet(nodes: &Nodes, master: &Master, settings: &Settings) -> anyhow::Result<Run> {
    let (node, count) = (nodes.node, nodes.count);
    let token = place::token(settings)?;
    let after = Duration::from_secs_f64(settings.join_timeout);
    let (board, address) = if node == 0 {
        let given = token.is_some();
        let token = token.map_or_else(random_token, Ok)?;
        let server = master.serve(&token, false)?;
        if !given {
            Console::new().note(others_line(&token, count));
        }
        let address = server.address().to_string();
        (server, address)
    } else {
        let token = token.ok_or(RanksError::NoNodeToken { node })?;
        let board = StoreServer::bind([127, 0, 0, 1], 0, &token)?;
        (board, master.to_string())
    };
    let store = StoreClient::connect(&address, board.token(), after)?;
    // the last one that comes is the node: an earlier one may have ended, and been started again
    let (claim, own_claim) = (format!("claim/{node}"), random_token()?);
    store.set(&claim, own_claim.as_bytes())?;
    let own = format!("{count} {}", nodes.devices);
    // before one waits for nodes that do not exist
    if node > 0
        && let Some(first) = store.wait("nodes/0", after)?
    {
        same_count(nodes, 0, &first)?;
    }
    let all = store
        .meet("nodes", node, count, own.as_bytes(), after)
        .map_err(|e| match e {
            DistError::Missing { ranks, came, .. } => {
                anyhow::Error::from(RanksError::NodesMissing {
                    missing: ranks,
                    came,
                    size: count,
                    master: master.to_string(),
                    after,
                })
            }
            e => e.into(),
        })?;
    let claimed = store.get(&claim)?.as_deref() == Some(own_claim.as_bytes());
    if !claimed || store.add(&format!("started/{node}"), 1)? > 1 {
        return Err(RanksError::SameNode { node }.into());
    }
    let mut devices = vec![];
    for (other, text) in all.iter().enumerate() {
        devices.push(same_count(nodes, other, text)?);
    }
    let board = Arc::new(board);
    let others = match node {
        0 => None,
        _ => Some(Others::start(node, store, address.clone(), board.clone())?),
    };
    Ok(Run {
        first: devices[..node].iter().sum(),
        size: devices.iter().sum(),
        store: address,
        board,
        others,
    })
}

/// The devices of another node, which says how many nodes it knows, and how many devices it has.
fn same_count(nodes: &Nodes, other: usize, text: &[u8]) -> anyhow::Result<usize> {
    let text = String::from_utf8_lossy(text);
    let (theirs, devices) = text.split_once(' ').unwrap_or_default();
    if theirs.parse() != Ok(nodes.count) {
        return Err(RanksError::NodesDiffer {
            node: nodes.node,
            wanted: nodes.count,
            other,
            theirs: theirs.into(),
        }
        .into());
    }
    let devices = devices.parse();
    devices.with_context(|| format!("devices of node {other}: {text}"))
}

/// What to type on the other machines.
fn others_line(token: &str, count: usize) -> String {
    let mut words: Vec<String> = vec![];
    let mut skip = false;
    for word in std::env::args().skip(1) {
        let own = word.replace('_', "-");
        if std::mem::take(&mut skip) || own.starts_with("--node-rank=") {
            continue;
        }
        if own == "--node-rank" {
            skip = true;
            continue;
        }
        words.push(quoted(&word));
    }
    let others = match count {
        2 => "1".to_owned(),
        _ => format!("1 (to {})", count - 1),
    };
    format!(
        "on the other machine{}: {TOKEN}={token} yolo-train {} --node-rank {others}",
        if count == 2 { "" } else { "s" },
        words.join(" ")
    )
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_=./:,+@%[]".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn start(run: &Run, devices: &[Device], again: Option<&Again>) -> anyhow::Result<Workers> {
    let program = std::env::current_exe().context("finding the program to start ranks with")?;
    let mut workers = Workers::new();
    for (rank, device) in (run.first..).zip(devices) {
        let mut command = Process::new(&program);
        command.env(DEVICE_VARIABLE, device.to_string());
        command.args(std::env::args_os().skip(1));
        command.stdin(Stdio::null());
        #[cfg(unix)]
        {
            // Ctrl-C comes here only, and is passed on: a rank that got it twice would end at once.
            use std::os::unix::process::CommandExt;
            command.process_group(0);
        }
        let environment = Environment {
            rank,
            size: run.size,
            store: run.store.clone(),
            token: run.board.token().to_owned(),
            board: Some(run.board.address().to_string()),
            parent: Some(std::process::id()),
            again: again.cloned(),
        };
        workers.spawn(command, &environment)?;
    }
    Ok(workers)
}

struct Supervisor<'a> {
    workers: Workers,
    board: &'a StoreServer,
    interrupted: &'a AtomicBool,
    several_machines: bool,
    /// By the user, to end.
    asked: bool,
    /// Because one has failed.
    terminated: bool,
    killed: bool,
    /// A rank ended in an orderly way before its work was done.
    stopped: bool,
    /// Since when something is wrong.
    failed: Option<Instant>,
}

impl Supervisor<'_> {
    fn run(mut self) -> anyhow::Result<Outcome> {
        while !self.workers.is_empty() {
            if !self.asked && self.interrupted.load(Ordering::Relaxed) {
                self.workers.interrupt();
                self.asked = true;
            }
            for (rank, status) in self.workers.ended()? {
                self.ended(rank, status);
            }
            if self.failed.is_none() && !board::of(self.board).is_empty() {
                self.failed = Some(Instant::now());
            }
            let since = self.failed.map(|f| f.elapsed()).unwrap_or_default();
            if since > GRACE && !self.terminated {
                self.workers.interrupt();
                self.terminated = true;
            }
            if since > GRACE + PATIENCE && !self.killed {
                self.workers.kill_all();
                self.killed = true;
            }
            if since > GRACE + PATIENCE + LAST {
                break;
            }
            if !self.workers.is_empty() {
                std::thread::sleep(GLANCE);
            }
        }
        self.outcome()
    }

    /// A rank has ended. What it could not say itself is put on the board for it.
    fn ended(&mut self, rank: usize, status: ExitStatus) {
        match how(status, self.asked || self.terminated, self.killed) {
            End::Good | End::Obeyed => {}
            End::Stopped => self.stopped = true,
            End::Bad => {
                self.failed.get_or_insert_with(Instant::now);
                let said = board::of(self.board).into_iter().find(|r| r.rank == rank);
                let signal = status.code().is_none();
                if said.is_some() && !signal {
                    return;
                }
                let report = Report {
                    rank,
                    kind: if signal { Kind::Killed } else { Kind::Primary },
                    code: FAILED,
                    text: if signal {
                        format!(
                            "its process was killed ({status}); where nobody did that, memory may have run out (see dmesg)"
                        )
                    } else {
                        format!("its process ended without a word ({status})")
                    },
                    order: 0,
                };
                self.board.set(&report.key(), &report.encode());
            }
        }
    }

    fn outcome(self) -> anyhow::Result<Outcome> {
        let Some(failed) = self.failed else {
            return Ok(if self.stopped || self.asked {
                Outcome::Interrupted
            } else {
                Outcome::Finished
            });
        };
        // another machine may know better
        let is_known = || {
            board::of(self.board)
                .iter()
                .any(|r| r.kind < Kind::Secondary)
        };
        while self.several_machines && !self.asked && !is_known() && failed.elapsed() < GRACE {
            std::thread::sleep(GLANCE);
        }
        let in_order = self.asked || self.stopped;
        match board::cause(board::of(self.board)) {
            // Those that saw an obedient one vanish are no failures.
            Some(report) if in_order && report.kind == Kind::Secondary => Ok(Outcome::Interrupted),
            None if in_order => Ok(Outcome::Interrupted),
            Some(Report {
                rank, code, text, ..
            }) => Err(RanksError::Rank { rank, code, text }.into()),
            None => Err(RanksError::Told { code: FAILED }.into()),
        }
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

/// `asked`: whether the rank was sent SIGTERM; `killed`: SIGKILL.
fn how(status: ExitStatus, asked: bool, killed: bool) -> End {
    if status.success() {
        return End::Good;
    }
    if status.code() == Some(i32::from(INTERRUPTED)) {
        return End::Stopped;
    }
    #[cfg(unix)]
    {
        use signal_hook::consts::{SIGKILL, SIGTERM};
        use std::os::unix::process::ExitStatusExt;
        let signal = status.signal();
        if asked && signal == Some(SIGTERM) || killed && signal == Some(SIGKILL) {
            return End::Obeyed;
        }
    }
    End::Bad
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_would_take_them_apart() {
        for (word, shown) in [
            ("--data=a/b.yaml", "--data=a/b.yaml"),
            ("my data.yaml", "'my data.yaml'"),
            ("it's", r"'it'\''s'"),
            ("", "''"),
        ] {
            assert_eq!(quoted(word), shown);
        }
    }
}
