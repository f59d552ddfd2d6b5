//! The other machines, as the first process of one sees them: reports go to and come from the store of node 0.

use std::collections::BTreeSet;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use super::ANSWER;
use super::board::{PREFIX, Report};
use crate::dist::DistError;
use crate::dist::store::{StoreClient, StoreServer};

const INTERVAL: Duration = Duration::from_millis(250);

/// Of a node's way to the store of node 0: the key says that it needs the store no more.
pub(super) fn left(node: usize) -> String {
    format!("left/{node}")
}

/// Keeps the reports on this machine's board and in the store of node 0 the same, in the background: a connection that
/// hangs delays nobody.
pub(super) struct Others {
    /// Dropped for the end.
    going: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Others {
    pub(super) fn start(
        node: usize,
        store: StoreClient,
        address: String,
        board: Arc<StoreServer>,
    ) -> std::io::Result<Self> {
        let (going, ended) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("dist-reports".into())
            .spawn(move || {
                let mut store = Some(store.answers_within(ANSWER));
                let mut known = BTreeSet::new();
                loop {
                    let last = ended.recv_timeout(INTERVAL) != Err(mpsc::RecvTimeoutError::Timeout);
                    let open = || {
                        let store = StoreClient::connect(&address, board.token(), ANSWER);
                        store.ok().map(|s| s.answers_within(ANSWER))
                    };
                    store = store.or_else(open);
                    if let Some(client) = &store
                        && exchange(client, &board, &mut known).is_err()
                    {
                        store = None;
                    }
                    if last {
                        // nobody reads it where there is no store any more
                        let _ = store.map(|s| s.set(&left(node), b""));
                        return;
                    }
                }
            })?;
        Ok(Others { going, thread })
    }

    /// After a last exchange.
    pub(super) fn end(self) {
        drop(self.going);
        // It has no panic to tell of.
        let _ = self.thread.join();
    }
}

/// `known`: keys that both sides have.
fn exchange(
    store: &StoreClient,
    board: &StoreServer,
    known: &mut BTreeSet<String>,
) -> Result<(), DistError> {
    for (key, value) in board.values(PREFIX) {
        if !known.contains(&key) {
            if let Ok(report) = serde_json::from_slice::<Report>(&value) {
                report.post(store)?;
            }
            known.insert(key);
        }
    }
    for key in store.keys(PREFIX)? {
        if !known.contains(&key)
            && let Some(value) = store.get(&key)?
        {
            board.set(&key, &value);
            known.insert(key);
        }
    }
    Ok(())
}
