//! What ranks do together.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::buffer::{Buffer, DType, ReduceOp};
use super::error::DistError;
use super::handle::{Handle, Output};
use super::log::Entry;
use crate::pulse::Pulse;

/// Collectives of one channel run one after the other, in the order of the calls; the two channels are independent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Channel {
    /// Much data, seldom waited for at once: gradients.
    Bulk,
    /// Little data that somebody waits for: statistics, normalisers, flags.
    Latency,
}

impl Channel {
    pub const ALL: [Channel; 2] = [Channel::Bulk, Channel::Latency];
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Channel::Bulk => "bulk",
            Channel::Latency => "latency",
        })
    }
}

/// Long work where nobody knows whether it goes on.
const LONG_WORK: Duration = Duration::from_secs(3600);

/// How a collective is called: its label (compared between ranks, named in errors), channel and deadline.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    pub name: Cow<'static, str>,
    pub channel: Channel,
    /// For others to arrive, and for values to move after that; `None`: the group's. It counts from the beginning, which
    /// is when all earlier ones of the channel are over, and for a rank that beats from its last beat.
    pub deadline: Option<Duration>,
}

impl Call {
    /// On the channel for gradients.
    pub fn bulk(name: impl Into<Cow<'static, str>>) -> Self {
        Call {
            name: name.into(),
            channel: Channel::Bulk,
            deadline: None,
        }
    }

    /// On the channel for small collectives.
    pub fn latency(name: impl Into<Cow<'static, str>>) -> Self {
        Call {
            channel: Channel::Latency,
            ..Call::bulk(name)
        }
    }

    /// After work whose length differs much between ranks (reading data sets, validating, writing). Ranks that beat
    /// ([`ProcessGroup::beat`]) are waited for; an engine that carries no beats gets long patience.
    pub fn after_long_work(self, group: &dyn ProcessGroup) -> Self {
        match group.carries_beats() {
            true => self,
            false => self.within(LONG_WORK),
        }
    }

    pub fn within(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }
}

/// The partial sums of this rank's lanes (`tree::lanes_of`).
#[derive(Debug, Clone, PartialEq)]
pub struct Partials {
    /// Lanes of all ranks together.
    pub lanes: usize,
    pub dtype: DType,
    /// Elements of each partial sum.
    pub len: usize,
    /// In order; `None` is an empty lane. Where `summed`, one for each of the largest whole subtrees that this rank's
    /// lanes make up (`tree::nodes`), otherwise one for each lane.
    pub parts: Vec<Option<Buffer>>,
    pub summed: bool,
}

impl Partials {
    /// One part for each lane of this rank.
    pub fn by_lane(
        lanes: usize,
        dtype: DType,
        len: usize,
        parts: impl IntoIterator<Item = Option<Buffer>>,
    ) -> Self {
        Partials {
            lanes,
            dtype,
            len,
            parts: parts.into_iter().collect(),
            summed: false,
        }
    }

    /// One part for each whole subtree of this rank's lanes, already added up in the tree's order
    /// (`ops::cpu::lanes::tree_sum`). With 1, 2 or 4 ranks and 4 lanes, and with 3 ranks, that is a single part.
    pub fn by_subtree(
        lanes: usize,
        dtype: DType,
        len: usize,
        parts: impl IntoIterator<Item = Option<Buffer>>,
    ) -> Self {
        Partials {
            summed: true,
            ..Partials::by_lane(lanes, dtype, len, parts)
        }
    }
}

/// What is to be done. Ranks are those of the group that is called.
#[derive(Debug, Clone, PartialEq)]
pub enum Work {
    AllReduce(ReduceOp, Buffer),
    AllReduceTree(Partials),
    /// Elements that each rank gets.
    ReduceScatter(ReduceOp, Buffer, Vec<usize>),
    AllGather(Buffer),
    AllGatherVariable(Buffer),
    AllToAll(Vec<Buffer>),
    /// From this rank; the others give a buffer of the same type and length, whose values do not matter.
    Broadcast(usize, Buffer),
    Send(usize, Buffer),
    Recv(usize, DType),
    Barrier,
}

#[cfg(feature = "cuda")]
impl Work {
    /// Bytes of this rank's values.
    pub(crate) fn bytes(&self) -> usize {
        let all = |buffers: &[Buffer]| buffers.iter().map(|b| b.bytes().len()).sum();
        match self {
            Work::AllReduce(_, b)
            | Work::ReduceScatter(_, b, _)
            | Work::AllGather(b)
            | Work::AllGatherVariable(b)
            | Work::Broadcast(_, b)
            | Work::Send(_, b) => b.bytes().len(),
            Work::AllReduceTree(p) => p.parts.iter().flatten().map(|b| b.bytes().len()).sum(),
            Work::AllToAll(buffers) => all(buffers),
            Work::Recv(..) | Work::Barrier => 0,
        }
    }
}

/// Ranks that work together. Every rank calls the same collectives in the same order on each channel; anything else
/// ends in [`DistError::Mismatch`]. A group is closed by dropping it.
///
/// Each method starts a collective and gives a [`Handle`] at once. [`ProcessGroup::run`] is for what is waited for
/// immediately: it may save the change to another thread and back.
pub trait ProcessGroup: std::any::Any + Send + Sync {
    fn rank(&self) -> usize;
    fn size(&self) -> usize;
    /// Name of the engine, for reports.
    fn engine(&self) -> &'static str;
    /// Ranks among which the processor cores that this process may use are divided, this one included.
    fn sharing(&self) -> usize {
        self.size()
    }

    /// Starts `work`.
    fn start(&self, call: Call, work: Work) -> Handle<Output>;

    /// Does `work` and waits for it.
    ///
    /// # Errors
    /// Those of the collective.
    fn run(&self, call: Call, work: Work) -> Result<Output, DistError> {
        self.start(call, work).wait()
    }

    /// Groups of the ranks that give the same colour, ordered by `key`, then by rank; a rank without colour gets none.
    /// All ranks call it. The new group shares channels and threads with this one; ranks must call collectives of
    /// overlapping groups on one channel in the same order.
    ///
    /// # Errors
    /// Those of a collective.
    fn split(
        &self,
        colour: Option<u32>,
        key: i64,
    ) -> Result<Option<Arc<dyn ProcessGroup>>, DistError>;

    /// The last collectives, oldest first (of all groups that share the channels).
    fn log(&self) -> Vec<Entry>;

    /// Ends the group on all ranks: collectives that are under way fail with [`DistError::Aborted`].
    fn abort(&self, reason: &str);

    /// From now on collectives without a deadline of their own have this one. All ranks call it with the same value.
    fn set_deadline(&self, _deadline: Duration) {}

    /// From now on this process ends, with exit code 1, where the other ranks have ended the run and this rank neither
    /// notices nor beats for long: where nobody watches over it, it would hang for ever. For programs, not for libraries.
    fn exit_when_stuck(&self) {}

    /// What this rank beats as it gets on; see [`ProcessGroup::beat`].
    fn pulse(&self) -> Pulse;

    /// Work of this rank goes on at `place`, a few words such as "scanning labels". Ranks that wait for it in a collective
    /// go on waiting as long as beats come within the collective's deadline.
    fn beat(&self, place: &'static str) {
        self.pulse().beat(place);
    }

    /// Collectives on values that lie in this rank's GPU, where the engine has them.
    #[cfg(feature = "cuda")]
    fn device(&self) -> Option<&dyn super::device::DeviceGroup> {
        None
    }

    /// Whether other ranks hear of beats.
    fn carries_beats(&self) -> bool {
        false
    }

    /// Every rank gets the values of all ranks joined element by element, in a tree over ranks.
    fn all_reduce(&self, call: Call, op: ReduceOp, buffer: Buffer) -> Handle<Buffer> {
        self.start(call, Work::AllReduce(op, buffer)).cast()
    }

    /// Every rank gets the sum over the lanes of all ranks in the order of [`super::tree`]: the bits depend on lanes
    /// and values, not on who holds which lane.
    fn all_reduce_tree(&self, call: Call, partials: Partials) -> Handle<Buffer> {
        self.start(call, Work::AllReduceTree(partials)).cast()
    }

    /// The values of all ranks are joined; rank `r` gets the `r`-th part, of `counts[r]` elements.
    fn reduce_scatter(
        &self,
        call: Call,
        op: ReduceOp,
        buffer: Buffer,
        counts: Vec<usize>,
    ) -> Handle<Buffer> {
        self.start(call, Work::ReduceScatter(op, buffer, counts))
            .cast()
    }

    /// Every rank gets every rank's buffer, all of one length.
    fn all_gather(&self, call: Call, buffer: Buffer) -> Handle<Vec<Buffer>> {
        self.start(call, Work::AllGather(buffer)).cast()
    }

    /// Every rank gets every rank's buffer, of any length.
    fn all_gather_variable(&self, call: Call, buffer: Buffer) -> Handle<Vec<Buffer>> {
        self.start(call, Work::AllGatherVariable(buffer)).cast()
    }

    /// Rank `r` gets the `r`-th buffer of every rank; all of one type, of any length.
    fn all_to_all(&self, call: Call, buffers: Vec<Buffer>) -> Handle<Vec<Buffer>> {
        self.start(call, Work::AllToAll(buffers)).cast()
    }

    /// Every rank gets the root's values.
    fn broadcast(&self, call: Call, root: usize, buffer: Buffer) -> Handle<Buffer> {
        self.start(call, Work::Broadcast(root, buffer)).cast()
    }

    /// To one rank, which calls [`ProcessGroup::recv`] with the same label. It is done when the values are on their
    /// way; longer ones need the receiver. As the channel works in order, two ranks that send each other much do so
    /// with one `all_to_all`.
    fn send(&self, call: Call, to: usize, buffer: Buffer) -> Handle<()> {
        self.start(call, Work::Send(to, buffer)).cast()
    }

    /// From one rank, of any length.
    fn recv(&self, call: Call, from: usize, dtype: DType) -> Handle<Buffer> {
        self.start(call, Work::Recv(from, dtype)).cast()
    }

    /// Done when all ranks have called it.
    fn barrier(&self, call: Call) -> Handle<()> {
        self.start(call, Work::Barrier).cast()
    }
}
