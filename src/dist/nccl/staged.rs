//! Collectives on values of the host: over the network's headers and NCCL's transport, through memory of the GPU.
//!
//! Every one begins with the headers that the built-in engine exchanges ([`MeshGroup::announce`]), so that the ranks know that
//! they call the same, how much comes, and who is late. Sums of floats are formed here, in the order of the tree: NCCL only moves
//! values, and the bits are those of every other engine.

use std::sync::Arc;
use std::time::Duration;

use super::api::{device_type, on_device, operation};
use super::comm::Comm;
use super::engine::{Engine, Task, mesh};
use super::gpu::{Memory, Stream};
use crate::dist::buffer::{Buffer, DType, Element, ReduceOp, by_type};
use crate::dist::error::DistError;
use crate::dist::group::{Call, Partials, ProcessGroup, Work};
use crate::dist::handle::Output;
use crate::dist::mesh::{Announced, MeshGroup, sum_lanes};
use crate::dist::tree::{Leaf, Order, lanes_of, nodes};

/// Where values of a group go.
pub(super) struct Route<'a> {
    pub(super) engine: &'a Engine,
    /// The ranks, over the network.
    pub(super) group: &'a Arc<dyn ProcessGroup>,
    pub(super) comm: &'a Arc<Comm>,
    /// Number of the stream.
    pub(super) stream: usize,
}

/// `(rank, offset, bytes)` of a message.
type Part = (usize, usize, usize);

impl Route<'_> {
    fn mesh(&self) -> &MeshGroup {
        mesh(self.group).expect("`join` has made sure of it")
    }

    /// Does `work` with the other ranks of the group.
    pub(super) fn run(&self, call: &Call, work: Work) -> Result<Output, DistError> {
        let (work, present) = added_up(self.mesh(), work);
        let announced = self.mesh().announce(call, &work, present)?;
        let shared = self.engine.world().shared();
        let ticket = announced.ticket;
        shared.log.began(ticket);
        let result = self.go(call, work, announced);
        let failure = result.as_ref().err().map(ToString::to_string);
        shared.log.ended(ticket, failure);
        result
    }

    fn go(&self, call: &Call, work: Work, announced: Announced) -> Result<Output, DistError> {
        let (me, size) = (self.mesh().rank(), self.mesh().size());
        let deadline = call
            .deadline
            .unwrap_or_else(|| self.engine.world().shared().deadline());
        let task = self.task(&announced, deadline);
        let heads = announced.heads;
        match work {
            Work::Barrier => Ok(Output::None),
            // no rank needs to know more of integers than their sum, whatever its order
            Work::AllReduce(op, buffer) if is_integer(buffer.dtype()) => {
                self.reduced(task, op, buffer).map(Output::One)
            }
            Work::AllReduce(op, buffer) => {
                let (dtype, len) = (buffer.dtype(), buffer.len());
                let all = self.gathered(task, &vec![len; size], buffer)?;
                let leaves: Vec<_> = all.into_iter().map(Some).collect();
                Ok(Output::One(joined(
                    &Order::single(size),
                    op,
                    dtype,
                    len,
                    leaves,
                )))
            }
            Work::AllReduceTree(p) => self.tree(task, p, &heads).map(Output::One),
            Work::ReduceScatter(op, buffer, counts) => {
                let dtype = buffer.dtype();
                let (mut parts, mut at) = (vec![], 0);
                for &count in &counts {
                    parts.push(slice(&buffer, at, count));
                    at += count;
                }
                let all = self.exchanged(task, parts, &vec![counts[me]; size], dtype)?;
                let leaves = all.into_iter().map(Some).collect();
                let order = Order::single(size);
                Ok(Output::One(joined(&order, op, dtype, counts[me], leaves)))
            }
            Work::AllGather(buffer) => {
                let counts = vec![buffer.len(); size];
                self.gathered(task, &counts, buffer).map(Output::Many)
            }
            Work::AllGatherVariable(buffer) => {
                let mut counts: Vec<usize> = heads.iter().map(|h| h.0 as usize).collect();
                counts[me] = buffer.len();
                self.gathered(task, &counts, buffer).map(Output::Many)
            }
            Work::AllToAll(buffers) => {
                let mut counts: Vec<usize> = heads.iter().map(|h| h.0 as usize).collect();
                counts[me] = buffers[me].len();
                let dtype = buffers[me].dtype();
                self.exchanged(task, buffers, &counts, dtype)
                    .map(Output::Many)
            }
            Work::Broadcast(root, buffer) => self.spread(task, root, buffer).map(Output::One),
            Work::Send(..) | Work::Recv(..) => unreachable!("messages go over the network"),
        }
    }

    fn task(&self, announced: &Announced, deadline: Duration) -> Task {
        Task {
            collective: announced.collective.clone(),
            ticket: announced.ticket,
            members: Arc::new(self.mesh().members().to_vec()),
            entered: false,
            deadline,
        }
    }

    fn on(&self) -> &Arc<Stream> {
        &self.engine.streams[self.stream]
    }

    /// Puts `upload` into memory of the GPU at `at`, lets NCCL work on that memory, brings `download` (offset, bytes) back.
    fn through(
        &self,
        task: Task,
        bytes: usize,
        (upload, at): (&[u8], usize),
        download: &[(usize, usize)],
        enqueue: impl FnOnce(&super::api::Api, u64, *mut std::ffi::c_void, *mut std::ffi::c_void) -> i32,
    ) -> Result<Vec<Vec<u8>>, DistError> {
        let stream = self.on().clone();
        let failed = |error: DistError| self.engine.fail(error);
        let memory = Memory::new(&stream, bytes).map_err(failed)?;
        let address = memory.address;
        stream.upload(address + at as u64, upload).map_err(failed)?;
        let call = |api: &super::api::Api, comm, raw| enqueue(api, address, comm, raw);
        let (comm, keep) = (self.comm, Box::new(memory));
        let flight = self.engine.launch(task, comm, self.stream, keep, call)?;
        flight.wait(None)?;
        // only now: copies to memory that is not pinned wait in the driver, without a deadline
        let memory = flight.kept();
        let mut back = vec![];
        for &(offset, len) in download {
            let mut bytes = vec![0; len];
            if len > 0 {
                let from = address + offset as u64;
                stream.download(&mut bytes, from).map_err(failed)?;
            }
            back.push(bytes);
        }
        drop(memory);
        Ok(back)
    }

    fn reduced(&self, task: Task, op: ReduceOp, mut buffer: Buffer) -> Result<Buffer, DistError> {
        let (len, dtype) = (buffer.len(), buffer.dtype());
        if len == 0 {
            return Ok(buffer);
        }
        let bytes = buffer.bytes().len();
        let (dtype, op) = (device_type(on_device(dtype)), operation(op));
        let back = self.through(
            task,
            bytes,
            (buffer.bytes(), 0),
            &[(0, bytes)],
            |api, at, comm, s| {
                // SAFETY: `len` elements lie at `at`, on the GPU of this communicator.
                unsafe { (api.all_reduce)(at as _, at as _, len, dtype, op, comm, s) }
            },
        )?;
        buffer.bytes_mut().copy_from_slice(&back[0]);
        Ok(buffer)
    }

    fn spread(&self, task: Task, root: usize, mut buffer: Buffer) -> Result<Buffer, DistError> {
        let bytes = buffer.bytes().len();
        if bytes == 0 {
            return Ok(buffer);
        }
        let back = self.through(
            task,
            bytes,
            (buffer.bytes(), 0),
            &[(0, bytes)],
            |api, at, comm, s| {
                // SAFETY: `bytes` bytes lie at `at`.
                unsafe { (api.broadcast)(at as _, at as _, bytes, BYTE, root as i32, comm, s) }
            },
        )?;
        buffer.bytes_mut().copy_from_slice(&back[0]);
        Ok(buffer)
    }

    /// Every rank's buffer, of `counts` elements.
    fn gathered(
        &self,
        task: Task,
        counts: &[usize],
        own: Buffer,
    ) -> Result<Vec<Buffer>, DistError> {
        let (me, size) = (self.mesh().rank(), self.mesh().size());
        let dtype = own.dtype();
        let width = on_device(dtype).width();
        let mut ranges = vec![];
        let mut at = 0;
        for &count in counts {
            ranges.push((at, count * width));
            at += count * width;
        }
        if at == 0 {
            return Ok(vec![own; size]);
        }
        let len = ranges[me].1;
        let equal = counts.iter().all(|&c| c == counts[0]);
        let start = ranges[me].0;
        let sizes = ranges.clone();
        let back = self.through(
            task,
            at,
            (own.bytes(), start),
            &ranges,
            |api, base, comm, s| {
                let own = base + start as u64;
                if equal {
                    // SAFETY: `size` parts of `len` bytes lie at `base`, this rank's in its place.
                    return unsafe { (api.all_gather)(own as _, base as _, len, BYTE, comm, s) };
                }
                let outgoing: Vec<Part> = (0..size).map(|r| (r, start, len)).collect();
                let incoming: Vec<Part> = (0..size).map(|r| (r, sizes[r].0, sizes[r].1)).collect();
                messages(api, base, me, &outgoing, &incoming, comm, s)
            },
        )?;
        Ok(back
            .into_iter()
            .map(|bytes| buffer_of(dtype, &bytes))
            .collect())
    }

    /// `parts[r]` goes to rank `r`; `counts[r]` elements come from there.
    fn exchanged(
        &self,
        task: Task,
        mut parts: Vec<Buffer>,
        counts: &[usize],
        dtype: DType,
    ) -> Result<Vec<Buffer>, DistError> {
        let me = self.mesh().rank();
        let width = on_device(dtype).width();
        let mut at = 0;
        let mut place = |len: usize| {
            let from = at;
            at += len;
            from
        };
        let outgoing: Vec<Part> = parts
            .iter()
            .enumerate()
            .map(|(r, part)| (r, place(part.bytes().len()), part.bytes().len()))
            .collect();
        let incoming: Vec<Part> = counts
            .iter()
            .enumerate()
            .map(|(r, &count)| (r, place(count * width), count * width))
            .collect();
        let total = at;
        let values: Vec<u8> = parts.iter().flat_map(|p| p.bytes()).copied().collect();
        let back = match total {
            // none of the messages has anything in it, on this rank; others may be exchanging more
            0 => vec![vec![]; counts.len()],
            _ => {
                let pieces: Vec<_> = incoming.iter().map(|&(_, at, len)| (at, len)).collect();
                self.through(task, total, (&values, 0), &pieces, |api, base, comm, s| {
                    messages(api, base, me, &outgoing, &incoming, comm, s)
                })?
            }
        };
        let mut all: Vec<Buffer> = back.iter().map(|bytes| buffer_of(dtype, bytes)).collect();
        all[me] = parts.swap_remove(me);
        Ok(all)
    }

    /// Partial sums of all ranks, joined in the order of the tree.
    fn tree(&self, task: Task, p: Partials, heads: &[(u64, u64)]) -> Result<Buffer, DistError> {
        let (me, size) = (self.mesh().rank(), self.mesh().size());
        let (lanes, dtype, len) = (p.lanes, p.dtype, p.len);
        let own = concatenated(dtype, p.parts.iter().flatten());
        let own_present = present_of(&p);
        let present = |r: usize| if r == me { own_present } else { heads[r].1 };
        let counts: Vec<usize> = (0..size)
            .map(|r| present(r).count_ones() as usize * len)
            .collect();
        let all = self.gathered(task, &counts, own)?;
        let mut leaves: Vec<Option<Buffer>> = vec![];
        let mut subtrees = vec![];
        for (r, values) in all.iter().enumerate() {
            let mut at = 0;
            for (i, node) in nodes(lanes, lanes_of(r, size, lanes))
                .into_iter()
                .enumerate()
            {
                subtrees.push(node);
                leaves.push((present(r) >> i & 1 == 1).then(|| {
                    at += len;
                    slice(values, at - len, len)
                }));
            }
        }
        let order = Order::new(0..lanes, &subtrees);
        Ok(joined(&order, ReduceOp::Sum, dtype, len, leaves))
    }
}

/// `ncclUint8`.
const BYTE: i32 = 1;

/// Messages between this rank and the others, as one group. Those of nothing are left out on both sides.
fn messages(
    api: &super::api::Api,
    base: u64,
    me: usize,
    outgoing: &[Part],
    incoming: &[Part],
    comm: *mut std::ffi::c_void,
    stream: *mut std::ffi::c_void,
) -> i32 {
    let others = |parts: &[Part]| -> Vec<Part> {
        parts
            .iter()
            .copied()
            .filter(|&(r, _, len)| r != me && len > 0)
            .collect()
    };
    // SAFETY: all parts lie within the memory at `base`; a group is closed in any case, which reports the first error.
    unsafe {
        (api.group_start)();
        let mut first = 0;
        for (rank, at, len) in others(outgoing) {
            let code = (api.send)(
                (base + at as u64) as _,
                len,
                BYTE,
                rank as i32,
                comm,
                stream,
            );
            first = if first == 0 { code } else { first };
        }
        for (rank, at, len) in others(incoming) {
            let code = (api.recv)(
                (base + at as u64) as _,
                len,
                BYTE,
                rank as i32,
                comm,
                stream,
            );
            first = if first == 0 { code } else { first };
        }
        let end = (api.group_end)();
        match first {
            0 | super::api::IN_PROGRESS => end,
            code => code,
        }
    }
}

fn is_integer(dtype: DType) -> bool {
    !matches!(dtype, DType::F32 | DType::F64)
}

/// Lanes that are to be added up before they are sent; which parts this rank has.
fn added_up(mesh: &MeshGroup, work: Work) -> (Work, u64) {
    let Work::AllReduceTree(p) = work else {
        return (work, 0);
    };
    let own = lanes_of(mesh.rank(), mesh.size(), p.lanes);
    let fits = p.parts.len() == own.len();
    let sound = p
        .parts
        .iter()
        .flatten()
        .all(|b| b.dtype() == p.dtype && b.len() == p.len);
    if p.summed || !fits || !sound || p.lanes < mesh.size() {
        let present = present_of(&p);
        return (Work::AllReduceTree(p), present);
    }
    fn go<T: Element>(p: Partials, own: std::ops::Range<usize>) -> Partials {
        let parts = p
            .parts
            .into_iter()
            .map(|part| part.and_then(Buffer::into_vec::<T>));
        let sums = sum_lanes(&nodes(p.lanes, own), parts.collect());
        Partials {
            parts: sums.into_iter().map(|s| s.map(T::wrap)).collect(),
            summed: true,
            ..p
        }
    }
    let p = by_type!(p.dtype, go(p, own));
    let present = present_of(&p);
    (Work::AllReduceTree(p), present)
}

/// Bit `i`: the `i`-th part has values.
fn present_of(p: &Partials) -> u64 {
    let bits = p.parts.iter().take(64).enumerate();
    bits.fold(0, |bits, (i, part)| bits | u64::from(part.is_some()) << i)
}

fn joined(
    order: &Order,
    op: ReduceOp,
    dtype: DType,
    len: usize,
    leaves: Vec<Option<Buffer>>,
) -> Buffer {
    fn go<T: Element>(
        order: &Order,
        op: ReduceOp,
        len: usize,
        leaves: Vec<Option<Buffer>>,
    ) -> Buffer {
        let values: Vec<Option<Vec<T>>> = leaves
            .into_iter()
            .map(|leaf| leaf.and_then(Buffer::into_vec))
            .collect();
        let leaves: Vec<Leaf<'_, T>> = values
            .iter()
            .map(|v| v.as_deref().map_or(Leaf::Empty, Leaf::Values))
            .collect();
        let mut out = vec![T::zeroed(); len];
        order.run(op, &leaves, &mut out);
        T::wrap(out)
    }
    by_type!(dtype, go(order, op, len, leaves))
}

fn buffer_of(dtype: DType, bytes: &[u8]) -> Buffer {
    let mut buffer = Buffer::zeros(dtype, bytes.len() / on_device(dtype).width());
    buffer.bytes_mut().copy_from_slice(bytes);
    buffer
}

fn slice(buffer: &Buffer, start: usize, len: usize) -> Buffer {
    let width = on_device(buffer.dtype()).width();
    buffer_of(
        buffer.dtype(),
        &buffer.bytes()[start * width..(start + len) * width],
    )
}

fn concatenated<'a>(dtype: DType, parts: impl Iterator<Item = &'a Buffer>) -> Buffer {
    let bytes: Vec<u8> = parts.flat_map(|part| part.bytes()).copied().collect();
    buffer_of(dtype, &bytes)
}
