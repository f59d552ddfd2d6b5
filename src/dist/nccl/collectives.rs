//! Collectives on values that lie on the GPU, handed over without waiting.

use std::sync::Arc;
use std::time::Instant;

use super::api::{Api, IN_PROGRESS, device_type, operation};
use super::engine::{Flight, Task};
use super::group::NcclGroup;
use crate::dist::buffer::ReduceOp;
use crate::dist::device::{
    After, DeviceBuffer, DeviceGroup, DeviceHandle, DeviceType, DeviceWork, Mark,
};
use crate::dist::error::{Collective, DistError};
use crate::dist::group::{Call, Channel, ProcessGroup};
use crate::dist::handle::lock;

impl DeviceWork for Flight {
    fn join_stream(&self) -> Result<(), DistError> {
        self.join()
    }

    fn wait(&self, deadline: Option<Instant>) -> Result<bool, DistError> {
        Flight::wait(self, deadline)
    }

    fn is_done(&self) -> bool {
        self.is_over()
    }
}

const BULK: usize = Channel::Bulk as usize;
const LATENCY: usize = Channel::Latency as usize;

type Pointer = *mut std::ffi::c_void;

/// What a collective moves, for people and for the comparison between ranks.
fn what(kind: &str, dtype: DeviceType, elements: usize) -> String {
    format!("{kind} of {dtype} x {elements} on GPUs")
}

impl NcclGroup {
    /// Numbers a collective, orders it after what it has to come after, and hands it over.
    fn launch(
        &self,
        call: Call,
        what: String,
        mut buffers: Vec<DeviceBuffer>,
        enqueue: impl FnOnce(&Api, Pointer, Pointer) -> i32,
    ) -> DeviceHandle {
        let engine = &self.core.engine;
        let channel = call.channel as usize;
        let bytes = buffers.iter().map(|b| b.elements * b.dtype.width()).sum();
        let _turn = lock(&self.core.turns[channel]);
        let collective = engine.ledger.enter(&call.name, what, bytes, call.channel);
        let world = engine.world();
        let shared = world.shared();
        let task = Task {
            ticket: shared.log.called(&collective, shared.pulse.step()),
            collective,
            members: Arc::new(world.members().to_vec()),
            entered: true,
            deadline: call.deadline.unwrap_or_else(|| shared.deadline()),
        };
        let go = || -> Result<Arc<dyn DeviceWork>, DistError> {
            let mark = self.order(channel, &mut buffers);
            let mark = mark.map_err(|error| engine.fail(error))?;
            let (comm, keep) = (&self.core.comms[channel], Box::new((buffers, mark)));
            let flight = engine.launch(task, comm, channel, keep, enqueue)?;
            Ok(flight)
        };
        DeviceHandle::new(go())
    }

    /// Orders what comes on the channel's stream after what the buffers have to come after.
    ///
    /// That is everything on the GPU, by an event of the whole context: the tensor library's streams are its own secret. But then a
    /// small collective would wait for gradients that are under way; where there are some, it waits for a mark on the
    /// one stream that has written its values. So it does, too, for drivers that know no such events.
    fn order(
        &self,
        channel: usize,
        buffers: &mut [DeviceBuffer],
    ) -> Result<Option<Mark>, DistError> {
        if buffers.iter().all(|b| b.after == After::Nothing) {
            return Ok(None);
        }
        let engine = &self.core.engine;
        let stream = &engine.streams[channel];
        let too_much = channel == LATENCY && engine.is_busy(BULK) || !engine.gpu.context_events;
        let marker = buffers.iter_mut().rev().find_map(|b| b.marker.take());
        match marker.filter(|_| too_much && engine.gpu.value_waits) {
            Some(marker) => {
                let mark = marker()?;
                stream.after_value(mark.address, mark.value)?;
                Ok(Some(mark))
            }
            None => stream.after_everything().map(|()| None),
        }
    }

    /// A call that makes no sense ends the group: the others wait for this rank.
    fn refuse(&self, call: &Call, what: String, reason: String) -> DeviceHandle {
        let error = DistError::Arguments {
            collective: Box::new(Collective {
                sequence: 0,
                name: call.name.to_string(),
                what,
                bytes: 0,
                channel: call.channel,
            }),
            reason,
        };
        DeviceHandle::new(Err(self.core.engine.fail(error)))
    }
}

impl DeviceGroup for NcclGroup {
    fn all_reduce(&self, call: Call, op: ReduceOp, buffer: DeviceBuffer) -> DeviceHandle {
        let (at, len, dtype) = (buffer.address, buffer.elements, buffer.dtype);
        let what = what(&format!("all_reduce {op}"), dtype, len);
        let (dtype, op) = (device_type(dtype), operation(op));
        self.launch(call, what, vec![buffer], |api, comm, stream| {
            // SAFETY: the buffer's owner is kept, and promised its address and length.
            unsafe { (api.all_reduce)(at as _, at as _, len, dtype, op, comm, stream) }
        })
    }

    fn all_gather(&self, call: Call, from: DeviceBuffer, to: DeviceBuffer) -> DeviceHandle {
        let (size, len, dtype) = (self.size(), from.elements, from.dtype);
        let what = what("all_gather", dtype, size * len);
        if to.elements != size * len || to.dtype != dtype {
            let reason = format!("{to:?} is not {size} times {from:?}");
            return self.refuse(&call, what, reason);
        }
        let (own, all, dtype) = (from.address, to.address, device_type(dtype));
        self.launch(call, what, vec![from, to], |api, comm, stream| {
            // SAFETY: the buffers' owners are kept, and promised addresses and lengths.
            unsafe { (api.all_gather)(own as _, all as _, len, dtype, comm, stream) }
        })
    }

    fn broadcast(&self, call: Call, root: usize, buffer: DeviceBuffer) -> DeviceHandle {
        let (at, len, dtype) = (buffer.address, buffer.elements, buffer.dtype);
        let what = what(&format!("broadcast from rank {root}"), dtype, len);
        if root >= self.size() {
            let reason = format!("there is no rank {root} among {}", self.size());
            return self.refuse(&call, what, reason);
        }
        let dtype = device_type(dtype);
        self.launch(call, what, vec![buffer], |api, comm, stream| {
            // SAFETY: the buffer's owner is kept, and promised its address and length.
            unsafe { (api.broadcast)(at as _, at as _, len, dtype, root as i32, comm, stream) }
        })
    }

    fn all_to_all(&self, call: Call, from: DeviceBuffer, to: DeviceBuffer) -> DeviceHandle {
        let (size, all, dtype) = (self.size(), from.elements, from.dtype);
        let what = what("all_to_all", dtype, all);
        if all % size != 0 || to.elements != all || to.dtype != dtype {
            let reason = format!("{from:?} and {to:?} are not {size} equal parts each");
            return self.refuse(&call, what, reason);
        }
        let len = all / size;
        let part = (len * dtype.width()) as u64;
        let (out, into) = (from.address, to.address);
        let dtype = device_type(dtype);
        self.launch(call, what, vec![from, to], |api, comm, stream| {
            let mut first = 0;
            // SAFETY: the buffers' owners are kept, and promised addresses and lengths; the group is closed in any case.
            unsafe {
                (api.group_start)();
                for rank in 0..size {
                    let at = rank as u64 * part;
                    for code in [
                        (api.send)((out + at) as _, len, dtype, rank as i32, comm, stream),
                        (api.recv)((into + at) as _, len, dtype, rank as i32, comm, stream),
                    ] {
                        first = if first == 0 { code } else { first };
                    }
                }
                let end = (api.group_end)();
                match first {
                    0 | IN_PROGRESS => end,
                    code => code,
                }
            }
        })
    }
}
