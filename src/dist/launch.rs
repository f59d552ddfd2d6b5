//! Starts the processes of the other ranks on this machine, and tells them where the rendezvous is.

use std::io;
use std::net::IpAddr;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::DistError;
use super::group::ProcessGroup;
use super::single::Single;
use super::store::{StoreClient, StoreServer, random_token};
use super::tcp::{TcpOptions, Transport, join};

/// The variables that make a process a rank.
#[derive(Debug, Clone, PartialEq)]
pub struct Environment {
    pub rank: usize,
    pub size: usize,
    /// Address of the rendezvous store.
    pub store: String,
    pub token: String,
    /// Address of the store of the process that looks after this one, where it is not `store`.
    pub board: Option<String>,
    /// The process that started this one.
    pub parent: Option<u32>,
    /// Where this is not the first attempt.
    pub again: Option<Again>,
}

/// An attempt of a run after a failure.
#[derive(Debug, Clone, PartialEq)]
pub struct Again {
    /// How many attempts came before.
    pub restarts: usize,
    /// What ended the last one.
    pub fault: String,
    /// The run's folder, where the last attempt had one with a checkpoint.
    pub run: Option<String>,
}

const RESTARTS: &str = "YOLO_TRAIN_RESTARTS";

/// How often the ranks of this run were started again.
#[must_use]
pub fn restarts() -> usize {
    std::env::var(RESTARTS).map_or(0, |n| n.parse().unwrap_or(0))
}

const FAULT: &str = "YOLO_TRAIN_LAST_FAULT";
const RUN: &str = "YOLO_TRAIN_RUN";

const RANK: &str = "YOLO_TRAIN_RANK";
const SIZE: &str = "YOLO_TRAIN_WORLD_SIZE";
const STORE: &str = "YOLO_TRAIN_STORE";
/// The secret of a run: given by users for runs on several machines, made for others.
pub const TOKEN: &str = "YOLO_TRAIN_TOKEN";
const BOARD: &str = "YOLO_TRAIN_BOARD";
const PARENT: &str = "YOLO_TRAIN_PARENT";

impl Environment {
    /// Of this process; `None` where it was not started as a rank.
    ///
    /// # Errors
    /// [`DistError::Environment`]: a variable is missing or makes no sense.
    pub fn read() -> Result<Option<Self>, DistError> {
        Environment::from(|name| std::env::var(name).ok())
    }

    fn from(get: impl Fn(&'static str) -> Option<String>) -> Result<Option<Self>, DistError> {
        let Some(rank) = get(RANK) else {
            return Ok(None);
        };
        let need = |name: &'static str| {
            get(name).ok_or(DistError::Environment {
                name,
                reason: format!("is missing, though {RANK} is set"),
            })
        };
        let number = |name: &'static str, value: String| {
            value.parse().map_err(|_| DistError::Environment {
                name,
                reason: format!("{value:?} is no number"),
            })
        };
        let (rank, size): (usize, usize) = (number(RANK, rank)?, number(SIZE, need(SIZE)?)?);
        if rank >= size {
            return Err(DistError::Environment {
                name: RANK,
                reason: format!("there is no rank {rank} among {size}"),
            });
        }
        Ok(Some(Environment {
            rank,
            size,
            store: need(STORE)?,
            token: need(TOKEN)?,
            board: get(BOARD),
            parent: get(PARENT).and_then(|id| id.parse().ok()),
            again: get(RESTARTS)
                .and_then(|n| n.parse().ok())
                .map(|restarts| Again {
                    restarts,
                    fault: get(FAULT).unwrap_or_default(),
                    run: get(RUN),
                }),
        }))
    }

    /// How this rank joins the others over the built-in engine, with the transport that the environment chooses.
    ///
    /// # Errors
    /// [`DistError::Environment`].
    pub fn options(&self) -> Result<TcpOptions, DistError> {
        let mut options = TcpOptions::new(self.rank, self.size, &self.token[..]);
        options.transport = Transport::from_environment()?;
        Ok(options)
    }

    /// Meets the other ranks.
    ///
    /// # Errors
    /// Those of the rendezvous.
    pub fn join(&self, options: &TcpOptions) -> Result<Rank, DistError> {
        let store = StoreClient::connect(&self.store, &self.token, options.rendezvous)?;
        let group = match self.size {
            // all others are gone
            1 => Arc::new(Single::new()),
            _ => join(&store, options)?,
        };
        Ok(Rank { store, group })
    }

    /// Sets the variables for a process.
    pub fn apply<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env(RANK, self.rank.to_string())
            .env(SIZE, self.size.to_string())
            .env(STORE, &self.store)
            .env(TOKEN, &self.token);
        let own = std::process::id().to_string();
        match self.parent {
            Some(id) => command.env(PARENT, id.to_string()),
            None => command.env(PARENT, own),
        };
        if let Some(again) = &self.again {
            command
                .env(RESTARTS, again.restarts.to_string())
                .env(FAULT, &again.fault);
            if let Some(run) = &again.run {
                command.env(RUN, run);
            }
        }
        match &self.board {
            Some(board) => command.env(BOARD, board),
            None => command.env_remove(BOARD),
        }
    }

    /// Where this rank says what failed.
    pub fn board(&self) -> &str {
        self.board.as_deref().unwrap_or(&self.store)
    }
}

/// A process as a rank: its group, and the store where the ranks met.
pub struct Rank {
    pub store: StoreClient,
    pub group: Arc<dyn ProcessGroup>,
}

/// Makes this process end when the one that started it does, however that ends. To be called early, by the thread that
/// stays: on Linux the system does it, also to a process that hangs.
pub fn end_with(parent: Option<u32>) {
    let Some(parent) = parent else { return };
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, set_parent_process_death_signal};
        // Where it is refused, the rank ends when it misses the others.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
    }
    #[cfg(unix)]
    {
        use std::os::unix::process::parent_id;
        // It may have ended before it was asked for.
        if parent_id() != parent {
            std::process::exit(1);
        }
        #[cfg(not(target_os = "linux"))]
        std::thread::spawn(move || {
            while parent_id() == parent {
                std::thread::sleep(Duration::from_secs(1));
            }
            std::process::exit(1);
        });
    }
    #[cfg(not(unix))]
    let _ = parent;
}

/// Serves a store on the loopback interface and starts the process that `command` describes for each of `size` ranks.
/// The store has to outlive them.
///
/// # Errors
/// A process cannot be started, or the store not be served.
pub fn start(
    size: usize,
    mut command: impl FnMut(usize) -> Command,
) -> Result<(StoreServer, Workers), DistError> {
    let token = random_token()?;
    let server = StoreServer::bind(IpAddr::from([127, 0, 0, 1]), 0, &token)?;
    let mut workers = Workers::new();
    for rank in 0..size {
        let environment = Environment {
            rank,
            size,
            store: server.address().to_string(),
            token: token.clone(),
            board: None,
            parent: None,
            again: None,
        };
        workers.spawn(command(rank), &environment)?;
    }
    Ok((server, workers))
}

/// Processes of ranks. Those that still run when this is dropped are killed.
#[derive(Debug, Default)]
pub struct Workers {
    children: Vec<(usize, Child)>,
}

impl Workers {
    pub fn new() -> Self {
        Workers::default()
    }

    /// Starts one rank.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn spawn(
        &mut self,
        mut command: Command,
        environment: &Environment,
    ) -> Result<(), DistError> {
        let child = environment
            .apply(&mut command)
            .spawn()
            .map_err(|e| DistError::system(format!("start rank {}", environment.rank), e))?;
        self.children.push((environment.rank, child));
        Ok(())
    }

    /// The process number of a rank.
    pub fn id(&self, rank: usize) -> Option<u32> {
        self.children
            .iter()
            .find(|(r, _)| *r == rank)
            .map(|(_, c)| c.id())
    }

    /// Whether all have ended.
    pub fn is_empty(&self) -> bool {
        self.children.is_empty()
    }

    /// Asks those that still run to end (SIGTERM).
    pub fn interrupt(&self) {
        for (_, child) in &self.children {
            #[cfg(unix)]
            if let Some(id) = rustix::process::Pid::from_raw(child.id() as i32) {
                // One that has just ended cannot be asked, and need not.
                let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
            }
            #[cfg(not(unix))]
            let _ = child;
        }
    }

    /// Kills those that still run.
    pub fn kill_all(&mut self) {
        for (_, child) in &mut self.children {
            // One that has just ended cannot be killed, and need not.
            let _ = child.kill();
        }
    }

    /// Kills a rank, as a test or a watchdog does.
    ///
    /// # Errors
    /// Those of the system.
    pub fn kill(&mut self, rank: usize) -> io::Result<()> {
        self.children
            .iter_mut()
            .filter(|(r, _)| *r == rank)
            .try_for_each(|(_, c)| c.kill())
    }

    /// Ranks that have ended, with their status; they are no longer looked after.
    ///
    /// # Errors
    /// Those of the system.
    pub fn ended(&mut self) -> io::Result<Vec<(usize, ExitStatus)>> {
        let mut ended = Vec::new();
        let mut running = Vec::new();
        for (rank, mut child) in self.children.drain(..) {
            match child.try_wait()? {
                Some(status) => ended.push((rank, status)),
                None => running.push((rank, child)),
            }
        }
        self.children = running;
        Ok(ended)
    }

    /// Waits for all ranks, at most for `deadline`; those that still run stay.
    ///
    /// # Errors
    /// Those of the system.
    pub fn wait(&mut self, deadline: Duration) -> io::Result<Vec<(usize, ExitStatus)>> {
        let end = Instant::now() + deadline;
        let mut all = Vec::new();
        loop {
            all.extend(self.ended()?);
            if self.children.is_empty() || Instant::now() >= end {
                all.sort_by_key(|(rank, _)| *rank);
                return Ok(all);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for (_, child) in &mut self.children {
            // One that has just ended cannot be killed; both are fine.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Option<Environment>, DistError> {
        Environment::from(|name| {
            pairs
                .iter()
                .find(|(n, _)| *n == name)
                .map(|(_, v)| (*v).to_owned())
        })
    }

    #[test]
    fn a_process_without_a_rank_is_none() {
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[(SIZE, "2")]), Ok(None));
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let whole = [
            (RANK, "1"),
            (SIZE, "2"),
            (STORE, "127.0.0.1:5"),
            (TOKEN, "t"),
        ];
        assert_eq!(read(&whole).unwrap().unwrap().rank, 1);
        for skip in 1..4 {
            let mut some = whole.to_vec();
            let (name, _) = some.remove(skip);
            let error = read(&some).unwrap_err();
            assert!(matches!(error, DistError::Environment { name: n, .. } if n == name));
        }
        assert!(read(&[(RANK, "2"), (SIZE, "2"), (STORE, "s"), (TOKEN, "t")]).is_err());
        assert!(read(&[(RANK, "x"), (SIZE, "2"), (STORE, "s"), (TOKEN, "t")]).is_err());
    }
}
