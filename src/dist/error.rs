//! What can go wrong between ranks.

use std::fmt;
use std::time::Duration;

use super::group::Channel;

/// Which collective: enough to find it in the source and in the other ranks' logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collective {
    /// Counts the collectives of a group on a channel from 0; of `send` and `recv` the messages between two ranks.
    pub sequence: u64,
    /// The caller's label.
    pub name: String,
    /// Kind, operation, type and length, for example `all_reduce sum of f32 x 80`.
    pub what: String,
    /// Of this rank's values.
    pub bytes: usize,
    pub channel: Channel,
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "collective {:?} (number {} of the {} channel, {}, {} bytes)",
            self.name, self.sequence, self.channel, self.what, self.bytes
        )
    }
}

/// Ranks as a list for people.
pub(crate) fn list(ranks: &[usize]) -> String {
    let numbers: Vec<_> = ranks.iter().map(usize::to_string).collect();
    match &numbers[..] {
        [] => "no rank".into(),
        [one] => format!("rank {one}"),
        [head @ .., last] => format!("ranks {} and {last}", head.join(", ")),
    }
}

fn missing(absent: &[usize], slow: &[usize], whereabouts: &[String]) -> String {
    let who = match (absent, slow) {
        ([], []) => "all ranks arrived but did not finish".into(),
        ([], slow) => format!("all ranks arrived, {} stopped sending", list(slow)),
        (absent, _) => format!("{} did not arrive", list(absent)),
    };
    let parts = std::iter::once(&who).chain(whereabouts);
    parts.map(String::as_str).collect::<Vec<_>>().join("; ")
}

/// What can go wrong between ranks. All ranks are numbers within the whole group. After the first error of a
/// collective the group is unusable: every other collective, on every rank, ends with an error too.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DistError {
    /// The process of a rank ended, or its machine cannot be reached.
    #[error("lost rank {rank} in {collective}: {reason}")]
    PeerLost {
        rank: usize,
        collective: Box<Collective>,
        reason: String,
    },
    /// A rank ended in an orderly way while others still needed it.
    #[error("rank {rank} left the group before {collective}")]
    PeerLeft {
        rank: usize,
        collective: Box<Collective>,
    },
    /// Not done within its deadline.
    #[error("{collective} is not done after {:.1} s: {}", after.as_secs_f64(), missing(absent, slow, whereabouts))]
    Deadline {
        collective: Box<Collective>,
        after: Duration,
        /// Ranks that have not begun this collective.
        absent: Vec<usize>,
        /// Ranks that have begun it, from which values are outstanding.
        slow: Vec<usize>,
        /// What these ranks were last known to do, in words.
        whereabouts: Vec<String>,
    },
    /// Ranks called different collectives.
    #[error(
        "ranks do not agree: rank {rank} is at {here}, rank {other} at {there}; every rank must call the same collectives in the same order"
    )]
    Mismatch {
        rank: usize,
        here: Box<Collective>,
        other: usize,
        there: String,
    },
    /// Another rank met an error first.
    #[error("rank {by} ended the group: {reason}")]
    Aborted { by: usize, reason: String },
    /// The group was closed, with collectives outstanding.
    #[error("the process group is closed")]
    Closed,
    /// The arguments make no sense.
    #[error("{collective}: {reason}")]
    Arguments {
        collective: Box<Collective>,
        reason: String,
    },
    /// Bytes that no rank sends.
    #[error("rank {rank} sent what is no message of this program in {collective}: {reason}")]
    Protocol {
        rank: usize,
        collective: Box<Collective>,
        reason: String,
    },
    /// The rendezvous store cannot be served or reached, or refuses.
    #[error("rendezvous store at {address}: {reason}")]
    Store { address: String, reason: String },
    /// Not all ranks came to the rendezvous.
    #[error("{} did not come to {meeting:?} within {:.1} s ({came} of {size} came); look at the output of the missing ones",
            list(ranks), after.as_secs_f64())]
    Missing {
        meeting: String,
        ranks: Vec<usize>,
        came: usize,
        size: usize,
        after: Duration,
    },
    /// Two ranks could not be connected.
    #[error("rank {rank} cannot be connected with rank {other}: {reason}")]
    Connect {
        rank: usize,
        other: usize,
        reason: String,
    },
    /// Ranks that must be the same are not.
    #[error(
        "rank {rank} differs from rank {reference} in {field}: {value:?} there, {expected:?} on rank {reference}"
    )]
    Handshake {
        rank: usize,
        reference: usize,
        field: String,
        value: String,
        expected: String,
    },
    /// The environment of a worker is incomplete.
    #[error("environment variable {name}: {reason}")]
    Environment { name: &'static str, reason: String },
    /// An operation of the system failed.
    #[error("cannot {what}: {reason}")]
    System { what: String, reason: String },
}

impl DistError {
    pub(crate) fn system(what: impl Into<String>, error: impl fmt::Display) -> Self {
        DistError::System {
            what: what.into(),
            reason: error.to_string(),
        }
    }
}
