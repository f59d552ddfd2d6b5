//! The process group over links: engines `Tcp` and `Mpi`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::exchange::{Exchange, Gives};
use super::executor::{Executor, Job, Lane};
use super::header::{Header, digest};
use super::link::Link;
use super::reduce::{Plan, Reduce, Scope, sum_lanes, typed};
use super::shared::{Control, Shared};
use super::wire::{Advance, Heads};
use crate::dist::buffer::{Buffer, DType, Element, ReduceOp, by_type};
use crate::dist::error::{Collective, DistError};
use crate::dist::group::{Call, Channel, Partials, ProcessGroup, Work};
use crate::dist::handle::{Handle, Output, Promise, lock};
use crate::dist::log::{Entry, Ticket};
use crate::dist::tree::{Order, lanes_of, nodes};
use crate::pulse::Pulse;

/// What all groups of a process share: channels, threads, log.
pub(crate) struct Mesh {
    engine: &'static str,
    pub(super) shared: Arc<Shared>,
    pub(super) control: Arc<dyn Control>,
    lanes: [Arc<Lane>; 2],
    threads: Vec<JoinHandle<()>>,
}

impl Mesh {
    /// `links[channel][rank]`: none for `rank` itself.
    pub(crate) fn start(
        engine: &'static str,
        rank: usize,
        links: [Vec<Option<Box<dyn Link>>>; 2],
        shared: Arc<Shared>,
        control: Arc<dyn Control>,
        deadline: Duration,
    ) -> Result<Arc<dyn ProcessGroup>, DistError> {
        let size = links[0].len();
        let lanes = links.map(|links| {
            Arc::new(Lane::new(Executor {
                links,
                shared: shared.clone(),
                control: control.clone(),
                rank,
            }))
        });
        let mut mesh = Mesh {
            engine,
            shared,
            control,
            threads: Vec::new(),
            lanes,
        };
        mesh.shared.set_deadline(deadline);
        for channel in Channel::ALL {
            let lane = mesh.lanes[channel as usize].clone();
            let thread = std::thread::Builder::new()
                .name(format!("dist-{channel}"))
                .spawn(move || lane.serve())
                .map_err(|e| DistError::system("start a thread for collectives", e))?;
            mesh.threads.push(thread);
        }
        Ok(Arc::new(MeshGroup {
            mesh: Arc::new(mesh),
            id: 0,
            members: Arc::new((0..size).collect()),
            me: rank,
            counters: Mutex::default(),
        }))
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        let outstanding = self
            .lanes
            .iter()
            .any(|lane| !lock(&lane.queue).is_empty() || lane.executor.try_lock().is_err());
        if outstanding {
            self.shared.fail(DistError::Closed);
        }
        for lane in &self.lanes {
            lane.close();
        }
        for thread in self.threads.drain(..) {
            // It has no panic to tell of: a job's panic would be a defect, reported on stderr.
            let _ = thread.join();
        }
        self.control.leave();
        for lane in &self.lanes {
            lock(&lane.executor).links.clear();
        }
        self.control.finish();
    }
}

#[derive(Debug, Default)]
struct Counters {
    collectives: [u64; 2],
    /// By channel, world rank, and whether this rank sends.
    messages: BTreeMap<(u8, usize, bool), u64>,
    splits: u64,
}

/// Some of the ranks of a mesh.
pub(crate) struct MeshGroup {
    pub(super) mesh: Arc<Mesh>,
    id: u64,
    /// World rank of each rank.
    pub(super) members: Arc<Vec<usize>>,
    me: usize,
    counters: Mutex<Counters>,
}

/// A collective, ready to run but for its number.
pub(super) struct Prepared {
    pub(super) own: Header,
    pub(super) to_send: Vec<Option<Header>>,
    pub(super) expected: Vec<bool>,
    pub(super) advance: Box<dyn Advance + Send>,
    pub(super) bytes: usize,
    /// The other side of a message, and whether this rank sends.
    pub(super) message: Option<(usize, bool)>,
}

impl MeshGroup {
    fn size_(&self) -> usize {
        self.members.len()
    }

    pub(super) fn others(&self) -> Vec<bool> {
        (0..self.size_()).map(|r| r != self.me).collect()
    }

    /// Header for all others.
    pub(super) fn for_all(&self, own: &Header) -> Vec<Option<Header>> {
        self.others()
            .into_iter()
            .map(|other| other.then(|| own.clone()))
            .collect()
    }

    fn reduce<T: Element>(
        &self,
        own: Header,
        plan: Plan,
        len: usize,
        parts: Vec<Option<Vec<T>>>,
    ) -> Prepared {
        let bytes = len * size_of::<T>() * parts.iter().flatten().count();
        let reduce = Reduce::new(plan, self.me, len, parts);
        let own = Header {
            present: reduce.present(),
            ..own
        };
        Prepared {
            to_send: self.for_all(&own),
            own,
            expected: self.others(),
            advance: Box::new(reduce),
            bytes,
            message: None,
        }
    }

    /// One part of each rank.
    fn join(
        &self,
        own: Header,
        op: ReduceOp,
        scope: Scope,
        len: usize,
        part: Option<Buffer>,
    ) -> Prepared {
        let plan = Plan {
            op,
            order: Order::single(self.size_()),
            parts: vec![1; self.size_()],
            scope,
        };
        fn go<T: Element>(
            group: &MeshGroup,
            own: Header,
            plan: Plan,
            len: usize,
            part: Option<Buffer>,
        ) -> Prepared {
            group.reduce::<T>(own, plan, len, vec![part.map(typed)])
        }
        by_type!(own.dtype, go(self, own, plan, len, part))
    }

    /// Whether the arguments make sense; otherwise what is wrong.
    pub(super) fn check(&self, work: &Work) -> Result<(), String> {
        let size = self.size_();
        let rank = |r: usize| match r < size {
            true => Ok(()),
            false => Err(format!("there is no rank {r} among {size}")),
        };
        let other = |r: usize| match r == self.me {
            true => Err("a message to oneself".into()),
            false => rank(r),
        };
        match work {
            Work::AllReduceTree(partials) => self.check_lanes(partials),
            Work::ReduceScatter(_, buffer, counts) => {
                match counts.len() == size && counts.iter().sum::<usize>() == buffer.len() {
                    true => Ok(()),
                    false => Err(format!(
                        "counts {counts:?} do not cut {} elements over {size} ranks",
                        buffer.len()
                    )),
                }
            }
            Work::Broadcast(root, _) => rank(*root),
            Work::AllToAll(buffers) if buffers.len() != size => {
                Err(format!("{} buffers for {size} ranks", buffers.len()))
            }
            Work::AllToAll(buffers) => {
                match buffers.iter().all(|b| b.dtype() == buffers[0].dtype()) {
                    true => Ok(()),
                    false => Err("buffers of different types".into()),
                }
            }
            Work::Send(to, _) => other(*to),
            Work::Recv(from, _) => other(*from),
            Work::AllReduce(..)
            | Work::AllGather(_)
            | Work::AllGatherVariable(_)
            | Work::Barrier => Ok(()),
        }
    }

    fn check_lanes(&self, partials: &Partials) -> Result<(), String> {
        let size = self.size_();
        let (lanes, len) = (partials.lanes, partials.len);
        if lanes < size {
            return Err(format!("{lanes} lanes are fewer than {size} ranks"));
        }
        let mine = lanes_of(self.me, size, lanes);
        let wanted = if partials.summed {
            nodes(lanes, mine.clone()).len()
        } else {
            mine.len()
        };
        if partials.parts.len() != wanted {
            return Err(format!(
                "{} parts, but this rank holds lanes {mine:?} of {lanes}: {wanted}",
                partials.parts.len()
            ));
        }
        for part in partials.parts.iter().flatten() {
            if part.dtype() != partials.dtype || part.len() != len {
                return Err(format!(
                    "a part of {} x {}, the others of {} x {len}",
                    part.dtype(),
                    part.len(),
                    partials.dtype
                ));
            }
        }
        Ok(())
    }

    fn tree(&self, own: Header, partials: Partials) -> Prepared {
        let size = self.size_();
        let lanes = partials.lanes;
        let own_nodes = nodes(lanes, lanes_of(self.me, size, lanes));
        let subtrees: Vec<Vec<_>> = (0..size)
            .map(|r| nodes(lanes, lanes_of(r, size, lanes)))
            .collect();
        let plan = Plan {
            op: ReduceOp::Sum,
            parts: subtrees.iter().map(Vec::len).collect(),
            order: Order::new(0..lanes, &subtrees.concat()),
            scope: Scope::All,
        };
        fn go<T: Element>(
            group: &MeshGroup,
            own: Header,
            plan: Plan,
            own_nodes: &[std::ops::Range<usize>],
            partials: Partials,
        ) -> Prepared {
            let parts = partials
                .parts
                .into_iter()
                .map(|p| p.map(typed::<T>))
                .collect();
            let parts = if partials.summed {
                parts
            } else {
                sum_lanes(own_nodes, parts)
            };
            group.reduce(own, plan, partials.len, parts)
        }
        by_type!(own.dtype, go(self, own, plan, &own_nodes, partials))
    }

    fn prepare(&self, name: &str, work: Work) -> Result<Prepared, String> {
        self.check(&work)?;
        let size = self.size_();
        let own = Header::of(&work, name);
        // Either one message for all or one for each.
        let exchange = |own: Header, messages: Vec<Buffer>, each: bool, mine: Option<Buffer>| {
            let gives = match mine {
                Some(_) => Gives::All,
                None => Gives::Nothing,
            };
            let outgoing: Vec<_> = (0..size)
                .map(|r| match (r == self.me, messages.len()) {
                    (true, _) | (_, 0) => None,
                    _ if each => Some(r),
                    _ => Some(0),
                })
                .collect();
            let to_send = outgoing
                .iter()
                .enumerate()
                .map(|(r, m)| {
                    (r != self.me).then(|| Header {
                        count: m.map_or(0, |m: usize| messages[m].len() as u64),
                        ..own.clone()
                    })
                })
                .collect();
            Prepared {
                bytes: messages.iter().map(|m| m.bytes().len()).sum(),
                to_send,
                expected: self.others(),
                advance: Box::new(Exchange::new(
                    own.dtype,
                    messages,
                    outgoing,
                    self.others(),
                    mine,
                    gives,
                )),
                own,
                message: None,
            }
        };
        Ok(match work {
            Work::AllReduce(op, buffer) => {
                let len = buffer.len();
                self.join(own, op, Scope::All, len, Some(buffer))
            }
            Work::AllReduceTree(partials) => self.tree(own, partials),
            Work::ReduceScatter(op, buffer, counts) => {
                let len = buffer.len();
                self.join(own, op, Scope::Scatter(counts), len, Some(buffer))
            }
            Work::Broadcast(root, buffer) => {
                let len = buffer.len();
                let part = (root == self.me).then_some(buffer);
                self.join(own, ReduceOp::Sum, Scope::All, len, part)
            }
            Work::AllGather(buffer) | Work::AllGatherVariable(buffer) => {
                let mine = buffer.clone();
                exchange(own, vec![buffer], false, Some(mine))
            }
            Work::AllToAll(mut buffers) => {
                let mine = std::mem::replace(&mut buffers[self.me], Buffer::zeros(own.dtype, 0));
                exchange(own, buffers, true, Some(mine))
            }
            Work::Barrier => exchange(own, vec![], false, None),
            Work::Send(to, buffer) => self.message(own, to, Some(buffer), DType::U8),
            Work::Recv(from, dtype) => self.message(own, from, None, dtype),
        })
    }

    fn message(&self, own: Header, other: usize, buffer: Option<Buffer>, dtype: DType) -> Prepared {
        let size = self.size_();
        let at = |r: usize| r == other;
        let sends = buffer.is_some();
        let dtype = buffer.as_ref().map_or(dtype, Buffer::dtype);
        let count = buffer.as_ref().map_or(0, Buffer::len) as u64;
        let messages: Vec<_> = buffer.into_iter().collect();
        Prepared {
            to_send: (0..size)
                .map(|r| {
                    (sends && at(r)).then(|| Header {
                        count,
                        ..own.clone()
                    })
                })
                .collect(),
            expected: (0..size).map(|r| !sends && at(r)).collect(),
            bytes: messages.iter().map(|m| m.bytes().len()).sum(),
            advance: Box::new(Exchange::new(
                dtype,
                messages,
                (0..size).map(|r| (sends && at(r)).then_some(0)).collect(),
                (0..size).map(|r| !sends && at(r)).collect(),
                None,
                if sends {
                    Gives::Nothing
                } else {
                    Gives::From(other)
                },
            )),
            own,
            message: Some((other, sends)),
        }
    }

    /// Numbers the collective; under the lock that also keeps the order of the queue.
    fn number(
        &self,
        counters: &mut Counters,
        call: &Call,
        mut prepared: Prepared,
    ) -> (Job, Arc<Promise>) {
        let channel = call.channel as u8;
        let counter = match prepared.message {
            None => &mut counters.collectives[usize::from(channel)],
            Some((other, sends)) => counters
                .messages
                .entry((channel, self.members[other], sends))
                .or_default(),
        };
        let sequence = *counter;
        *counter += 1;
        for header in prepared
            .to_send
            .iter_mut()
            .flatten()
            .chain([&mut prepared.own])
        {
            (header.group, header.sequence) = (self.id, sequence);
        }
        let collective = Collective {
            sequence,
            name: call.name.to_string(),
            what: prepared.own.what(),
            bytes: prepared.bytes,
            channel: call.channel,
        };
        let promise = Arc::new(Promise::default());
        let job = Job {
            ticket: {
                let shared = &self.mesh.shared;
                shared.log.called(&collective, shared.pulse.step())
            },
            collective,
            members: self.members.clone(),
            me: self.me,
            heads: Heads::new(prepared.own, prepared.to_send, prepared.expected),
            advance: prepared.advance,
            deadline: call.deadline.unwrap_or_else(|| self.mesh.shared.deadline()),
            promise: promise.clone(),
        };
        (job, promise)
    }

    /// A call that makes no sense fails here and, as the others wait for this rank, everywhere.
    pub(super) fn refuse(&self, call: &Call, reason: String) -> DistError {
        let error = DistError::Arguments {
            collective: Box::new(Collective {
                sequence: lock(&self.counters).collectives[call.channel as usize],
                name: call.name.to_string(),
                what: "not started".into(),
                bytes: 0,
                channel: call.channel,
            }),
            reason,
        };
        self.fail(error.clone());
        error
    }

    /// Ends the group on all ranks; gives the error that came first.
    pub(crate) fn fail(&self, error: DistError) -> DistError {
        let (error, first) = self.mesh.shared.fail(error);
        if first {
            self.mesh.control.abort(&error.to_string());
        }
        error
    }

    /// Runs it on this thread where nothing is under way: as good as the progress thread, without the change between them.
    pub(super) fn drive(
        &self,
        call: &Call,
        prepared: Prepared,
    ) -> (Collective, Ticket, Result<Output, DistError>) {
        let lane = &self.mesh.lanes[call.channel as usize];
        let mut counters = lock(&self.counters);
        let (job, promise) = self.number(&mut counters, call, prepared);
        let (collective, ticket) = (job.collective.clone(), job.ticket);
        let mut queue = lock(&lane.queue);
        if queue.is_empty()
            && let Ok(mut executor) = lane.executor.try_lock()
        {
            drop(queue);
            drop(counters);
            return (collective, ticket, executor.run(job));
        }
        queue.push_back(job);
        lane.called.notify_all();
        drop(queue);
        drop(counters);
        (collective, ticket, Handle::new(promise).wait())
    }
}

impl ProcessGroup for MeshGroup {
    fn rank(&self) -> usize {
        self.me
    }

    fn size(&self) -> usize {
        self.size_()
    }

    fn engine(&self) -> &'static str {
        self.mesh.engine
    }

    fn sharing(&self) -> usize {
        self.mesh.shared.sharing()
    }

    fn start(&self, call: Call, work: Work) -> Handle<Output> {
        let prepared = match self.prepare(&call.name, work) {
            Ok(prepared) => prepared,
            Err(reason) => return Handle::ready(Err(self.refuse(&call, reason))),
        };
        let lane = &self.mesh.lanes[call.channel as usize];
        let mut counters = lock(&self.counters);
        let (job, promise) = self.number(&mut counters, &call, prepared);
        lock(&lane.queue).push_back(job);
        lane.called.notify_all();
        Handle::new(promise)
    }

    fn run(&self, call: Call, work: Work) -> Result<Output, DistError> {
        let prepared = self
            .prepare(&call.name, work)
            .map_err(|reason| self.refuse(&call, reason))?;
        self.drive(&call, prepared).2
    }

    fn split(
        &self,
        colour: Option<u32>,
        key: i64,
    ) -> Result<Option<Arc<dyn ProcessGroup>>, DistError> {
        let splits = {
            let mut counters = lock(&self.counters);
            counters.splits += 1;
            counters.splits
        };
        let mine = Buffer::I64(vec![colour.map_or(-1, i64::from), key]);
        let Output::Many(all) = self.run(Call::latency("split"), Work::AllGather(mine))? else {
            unreachable!("an all-gather gives many");
        };
        let Some(colour) = colour else {
            return Ok(None);
        };
        let mut ranks: Vec<(i64, usize)> = all
            .into_iter()
            .map(typed::<i64>)
            .enumerate()
            .filter(|(_, pair)| pair[0] == i64::from(colour))
            .map(|(rank, pair)| (pair[1], rank))
            .collect();
        ranks.sort_unstable();
        let me = ranks
            .iter()
            .position(|&(_, r)| r == self.me)
            .expect("this rank has this colour");
        Ok(Some(Arc::new(MeshGroup {
            mesh: self.mesh.clone(),
            id: digest([self.id, splits, u64::from(colour)]),
            members: Arc::new(ranks.iter().map(|&(_, r)| self.members[r]).collect()),
            me,
            counters: Mutex::default(),
        })))
    }

    fn log(&self) -> Vec<Entry> {
        self.mesh.shared.log.entries()
    }

    fn abort(&self, reason: &str) {
        let by = self.members[self.me];
        let (_, first) = self.mesh.shared.fail(DistError::Aborted {
            by,
            reason: reason.into(),
        });
        if first {
            self.mesh.control.abort(reason);
        }
    }

    fn set_deadline(&self, deadline: Duration) {
        self.mesh.shared.set_deadline(deadline);
    }

    fn exit_when_stuck(&self) {
        self.mesh.shared.exit_when_stuck();
    }

    fn pulse(&self) -> Pulse {
        self.mesh.shared.pulse.clone()
    }

    fn carries_beats(&self) -> bool {
        self.mesh.control.carries_beats()
    }
}
