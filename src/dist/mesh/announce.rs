//! For an engine that is built over this one: ranks come together for a collective and compare it, and its values go another
//! way.

use std::sync::Arc;

use super::group::{MeshGroup, Prepared};
use super::header::Header;
use super::shared::Shared;
use super::wire::{Advance, Fault, Heads, Step, Wire};
use crate::dist::buffer::Buffer;
use crate::dist::error::{Collective, DistError};
use crate::dist::group::{Call, Work};
use crate::dist::handle::Output;
use crate::dist::log::Ticket;

impl MeshGroup {
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.mesh.shared
    }

    /// World rank of each rank.
    pub(crate) fn members(&self) -> &[usize] {
        &self.members
    }

    pub(crate) fn carries_beats(&self) -> bool {
        self.mesh.control.carries_beats()
    }

    /// Comes together with the others for `work` and compares it, without its values. `present`: which parts this rank has.
    pub(crate) fn announce(
        &self,
        call: &Call,
        work: &Work,
        present: u64,
    ) -> Result<Announced, DistError> {
        self.check(work)
            .map_err(|reason| self.refuse(call, reason))?;
        let own = Header {
            present,
            ..Header::of(work, &call.name)
        };
        let count = |to: usize| match work {
            Work::AllGather(b) | Work::AllGatherVariable(b) => b.len(),
            Work::AllToAll(buffers) => buffers[to].len(),
            _ => 0,
        };
        let mut to_send = self.for_all(&own);
        for (to, header) in to_send.iter_mut().enumerate() {
            if let Some(header) = header {
                header.count = count(to) as u64;
            }
        }
        let prepared = Prepared {
            to_send,
            expected: self.others(),
            advance: Box::new(Announcement::default()),
            bytes: work.bytes(),
            message: None,
            own,
        };
        let (collective, ticket, result) = self.drive(call, prepared);
        let Output::One(Buffer::U64(words)) = result? else {
            unreachable!("an announcement gives the others' words");
        };
        let heads = words.chunks_exact(2).map(|w| (w[0], w[1])).collect();
        Ok(Announced {
            collective,
            ticket,
            heads,
        })
    }
}

/// A collective that all ranks have called, and that is yet to be done.
pub(crate) struct Announced {
    pub(crate) collective: Collective,
    pub(crate) ticket: Ticket,
    /// Of each rank: elements for this one, and which parts it has. This rank's own are zero.
    pub(crate) heads: Vec<(u64, u64)>,
}

/// Headers without values.
#[derive(Default)]
struct Announcement(Vec<u64>);

impl Advance for Announcement {
    fn step(&mut self, wire: &mut Wire<'_>, heads: &mut Heads) -> Result<Step, Fault> {
        let progress = heads.step(wire)?;
        if heads.complete() {
            let word = |h: &Option<Header>| h.as_ref().map_or([0, 0], |h| [h.count, h.present]);
            self.0 = heads.got.iter().flat_map(word).collect();
            return Ok(Step::Done);
        }
        Ok(match progress {
            true => Step::Progress,
            false => Step::Blocked,
        })
    }

    fn finish(self: Box<Self>) -> Output {
        Output::One(Buffer::U64(self.0))
    }
}
