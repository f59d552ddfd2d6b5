//! Ranks for tests: as threads of one process, quick, or as processes, real.

use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use super::error::DistError;
use super::group::ProcessGroup;
use super::launch::{Environment, Workers, start};
use super::single::Single;
use super::store::{StoreClient, StoreServer};
use super::tcp::{TcpOptions, Transport, join};

/// Loopback.
pub fn local() -> IpAddr {
    IpAddr::from([127, 0, 0, 1])
}

/// A connected group of `size` ranks in this process; `change` sees each rank's options.
///
/// # Errors
/// Those of the rendezvous.
pub fn groups(
    size: usize,
    change: impl Fn(&mut TcpOptions) + Sync,
) -> Result<Vec<Arc<dyn ProcessGroup>>, DistError> {
    if size == 1 {
        return Ok(vec![Arc::new(Single::new())]);
    }
    let token = "token of a test";
    let server = StoreServer::bind(local(), 0, token)?;
    let address = server.address().to_string();
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..size)
            .map(|rank| {
                let (address, change) = (&address, &change);
                scope.spawn(move || {
                    let mut options = TcpOptions::new(rank, size, token);
                    options.rendezvous = Duration::from_secs(20);
                    options.deadline = Duration::from_secs(20);
                    change(&mut options);
                    let store = StoreClient::connect(address, token, options.rendezvous)?;
                    join(&store, &options)
                })
            })
            .collect();
        ranks
            .into_iter()
            .map(|r| r.join().expect("a rank's thread does not panic"))
            .collect()
    })
}

/// Runs `f` on `size` ranks, each a thread of this process; gives the results by rank.
///
/// # Panics
/// Where the rendezvous fails or `f` panics.
pub fn threads<T: Send>(
    size: usize,
    transport: Transport,
    f: impl Fn(&dyn ProcessGroup) -> T + Sync,
) -> Vec<T> {
    let groups = groups(size, |o| o.transport = transport).expect("ranks come together");
    std::thread::scope(|scope| {
        let ranks: Vec<_> = groups
            .into_iter()
            .map(|group| {
                let f = &f;
                scope.spawn(move || f(&*group))
            })
            .collect();
        ranks
            .into_iter()
            .map(|r| r.join().expect("a rank's thread does not panic"))
            .collect()
    })
}

/// Starts the test `name` of the running test binary once for each rank, in processes of their own; the test calls
/// [`worker`]. `change` sees each rank's command.
///
/// # Errors
/// A process cannot be started.
pub fn processes(
    name: &str,
    size: usize,
    mut change: impl FnMut(usize, &mut Command),
) -> Result<(StoreServer, Workers), DistError> {
    let binary =
        std::env::current_exe().map_err(|e| DistError::system("find the test binary", e))?;
    start(size, |rank| {
        let mut command = Command::new(&binary);
        command
            .args([
                "--exact",
                name,
                "--ignored",
                "--test-threads=1",
                "--nocapture",
            ])
            .stdin(Stdio::null());
        change(rank, &mut command);
        command
    })
}

/// A rank's store and group.
pub type Joined = (StoreClient, Arc<dyn ProcessGroup>);

/// In a process started by [`processes`]: joins the group. `None` where this is no such process.
///
/// # Errors
/// Those of the rendezvous.
pub fn worker(change: impl FnOnce(&mut TcpOptions)) -> Result<Option<Joined>, DistError> {
    let Some(environment) = Environment::read()? else {
        return Ok(None);
    };
    let mut options = environment.options()?;
    options.rendezvous = Duration::from_secs(20);
    options.deadline = Duration::from_secs(20);
    change(&mut options);
    let rank = environment.join(&options)?;
    Ok(Some((rank.store, rank.group)))
}
