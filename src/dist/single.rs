//! The group of one rank.

use std::sync::Arc;

use super::buffer::{Buffer, Element};
use super::error::{Collective, DistError};
use super::group::{Call, Partials, ProcessGroup, Work};
use super::handle::{Handle, Output};
use super::log::{Entry, Log};
use super::mesh::{describe, sum_lanes};
use super::tree::nodes;
use crate::pulse::Pulse;

/// The group of one rank: everything is done at once, with the arithmetic of the other engines.
#[derive(Debug, Default)]
pub struct Single {
    log: Log,
    pulse: Pulse,
}

impl Single {
    pub fn new() -> Self {
        Single::default()
    }
}

fn sum(partials: Partials) -> Result<Buffer, String> {
    let whole = 0..partials.lanes;
    let wanted = if partials.summed {
        nodes(partials.lanes, whole.clone()).len()
    } else {
        partials.lanes
    };
    if partials.parts.len() != wanted {
        return Err(format!(
            "{} parts, but this rank holds all {} lanes: {wanted}",
            partials.parts.len(),
            partials.lanes
        ));
    }
    let (dtype, len) = (partials.dtype, partials.len);
    if let Some(part) = partials
        .parts
        .iter()
        .flatten()
        .find(|p| p.dtype() != dtype || p.len() != len)
    {
        return Err(format!(
            "a part of {} x {}, the others of {dtype} x {len}",
            part.dtype(),
            part.len()
        ));
    }
    fn go<T: Element>(partials: Partials) -> Buffer {
        let parts: Vec<Option<Vec<T>>> = partials
            .parts
            .into_iter()
            .map(|p| p.and_then(Buffer::into_vec))
            .collect();
        let sums = if partials.summed {
            parts
        } else {
            sum_lanes(&nodes(partials.lanes, 0..partials.lanes), parts)
        };
        let sum = sums.into_iter().flatten().next();
        T::wrap(sum.unwrap_or_else(|| vec![T::zeroed(); partials.len]))
    }
    Ok(super::buffer::by_type!(dtype, go(partials)))
}

fn alone(work: Work) -> Result<Output, String> {
    let this = |rank: usize| match rank {
        0 => Ok(()),
        _ => Err(format!("there is no rank {rank} among 1")),
    };
    Ok(match work {
        Work::AllReduce(_, buffer) => Output::One(buffer),
        Work::AllReduceTree(partials) => Output::One(sum(partials)?),
        Work::ReduceScatter(_, buffer, counts) => {
            if counts != [buffer.len()] {
                return Err(format!(
                    "counts {counts:?} do not cut {} elements over 1 rank",
                    buffer.len()
                ));
            }
            Output::One(buffer)
        }
        Work::AllGather(buffer) | Work::AllGatherVariable(buffer) => Output::Many(vec![buffer]),
        Work::AllToAll(buffers) if buffers.len() == 1 => Output::Many(buffers),
        Work::AllToAll(buffers) => return Err(format!("{} buffers for 1 rank", buffers.len())),
        Work::Broadcast(root, buffer) => {
            this(root)?;
            Output::One(buffer)
        }
        Work::Send(rank, _) | Work::Recv(rank, _) => {
            this(rank)?;
            return Err("a message to oneself".into());
        }
        Work::Barrier => Output::None,
    })
}

impl ProcessGroup for Single {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn engine(&self) -> &'static str {
        "single"
    }

    fn start(&self, call: Call, work: Work) -> Handle<Output> {
        Handle::ready(self.run(call, work))
    }

    fn run(&self, call: Call, work: Work) -> Result<Output, DistError> {
        let collective = Collective {
            sequence: self.log.count(),
            what: describe(&work, &call.name),
            bytes: 0,
            channel: call.channel,
            name: call.name.into_owned(),
        };
        let ticket = self.log.called(&collective, self.pulse.step());
        self.log.began(ticket);
        let result = alone(work).map_err(|reason| DistError::Arguments {
            collective: Box::new(collective),
            reason,
        });
        let failure = result.as_ref().err().map(ToString::to_string);
        self.log.ended(ticket, failure);
        result
    }

    fn split(
        &self,
        colour: Option<u32>,
        _: i64,
    ) -> Result<Option<Arc<dyn ProcessGroup>>, DistError> {
        Ok(colour.map(|_| Arc::new(Single::new()) as Arc<dyn ProcessGroup>))
    }

    fn log(&self) -> Vec<Entry> {
        self.log.entries()
    }

    fn abort(&self, _: &str) {}

    fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }

    fn carries_beats(&self) -> bool {
        true
    }
}
