//! The links of one collective, seen by its group's ranks, and the headers that begin it.

use super::header::{HEADER, Header};
use super::link::{Link, LinkError};

/// The links to the ranks of a group.
pub(crate) struct Wire<'a> {
    pub(crate) links: &'a mut [Option<Box<dyn Link>>],
    /// World rank of each rank.
    pub(crate) members: &'a [usize],
}

/// Why a collective cannot go on. Ranks are those of the world.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Fault {
    Link(usize, LinkError),
    Mismatch(usize, Box<Header>),
}

/// How far a step came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Done,
    Progress,
    Blocked,
}

/// One collective, advanced without waiting.
pub(crate) trait Advance {
    fn step(&mut self, wire: &mut Wire<'_>, heads: &mut Heads) -> Result<Step, Fault>;
    /// After [`Step::Done`].
    fn finish(self: Box<Self>) -> crate::dist::handle::Output;
}

impl Wire<'_> {
    pub(crate) fn size(&self) -> usize {
        self.members.len()
    }

    fn with<T>(
        &mut self,
        rank: usize,
        f: impl FnOnce(&mut dyn Link) -> Result<T, LinkError>,
    ) -> Result<T, Fault> {
        let world = self.members[rank];
        let link = self.links[world]
            .as_mut()
            .expect("a link to every other rank");
        f(link.as_mut()).map_err(|e| Fault::Link(world, e))
    }

    pub(crate) fn push(&mut self, rank: usize, parts: &[&[u8]]) -> Result<bool, Fault> {
        self.with(rank, |l| l.push(parts))
    }

    pub(crate) fn flush(&mut self, rank: usize) -> Result<bool, Fault> {
        self.with(rank, |l| l.flush())
    }

    pub(crate) fn fill(&mut self, rank: usize, len: usize) -> Result<bool, Fault> {
        self.with(rank, |l| l.fill(len))
    }

    pub(crate) fn piece(&self, rank: usize, len: usize) -> &[u8] {
        self.links[self.members[rank]]
            .as_ref()
            .expect("a link to every other rank")
            .piece(len)
    }

    pub(crate) fn pop(&mut self, rank: usize, len: usize) {
        self.links[self.members[rank]]
            .as_mut()
            .expect("a link to every other rank")
            .pop(len);
    }
}

/// The headers of one collective: the first piece to and from every rank that takes part.
pub(crate) struct Heads {
    own: Header,
    /// Of each rank: still to be sent.
    to_send: Vec<Option<Header>>,
    expected: Vec<bool>,
    pub(crate) got: Vec<Option<Header>>,
}

impl Heads {
    /// `to_send[r]`: the header for rank `r`; `expected[r]`: whether one comes from there.
    pub(crate) fn new(own: Header, to_send: Vec<Option<Header>>, expected: Vec<bool>) -> Self {
        Heads {
            got: vec![None; expected.len()],
            own,
            to_send,
            expected,
        }
    }

    /// Ranks that have not begun this collective.
    pub(crate) fn absent(&self) -> Vec<usize> {
        (0..self.got.len())
            .filter(|&r| self.expected[r] && self.got[r].is_none())
            .collect()
    }

    /// Whether the header for `rank` is on its way.
    pub(crate) fn sent(&self, rank: usize) -> bool {
        self.to_send[rank].is_none()
    }

    /// Whether everything went and came.
    pub(crate) fn complete(&self) -> bool {
        self.to_send.iter().all(Option::is_none) && self.absent().is_empty()
    }

    /// Sends what is possible; tells whether something was.
    fn send(&mut self, wire: &mut Wire<'_>) -> Result<bool, Fault> {
        let mut progress = false;
        for rank in 0..wire.size() {
            if let Some(header) = &self.to_send[rank]
                && wire.push(rank, &[&header.encode()])?
            {
                self.to_send[rank] = None;
                progress = true;
            }
        }
        Ok(progress)
    }

    /// Whether every rank has been sent this one's header. A link that fails has nobody to tell.
    pub(crate) fn told(&mut self, wire: &mut Wire<'_>) -> bool {
        let sent = self.send(wire).is_err() || self.to_send.iter().all(Option::is_none);
        let others = (0..wire.size()).filter(|&r| self.expected[r]);
        others.fold(sent, |told, r| wire.flush(r).unwrap_or(true) && told)
    }

    /// Sends and receives what is possible; tells whether something was.
    pub(crate) fn step(&mut self, wire: &mut Wire<'_>) -> Result<bool, Fault> {
        // First to all: a rank that finds that it does not agree with one must have told the others what it calls.
        let mut progress = self.send(wire)?;
        for rank in 0..wire.size() {
            if self.expected[rank] && self.got[rank].is_none() && wire.fill(rank, HEADER)? {
                let world = wire.members[rank];
                let header = Header::decode(wire.piece(rank, HEADER))
                    .ok_or_else(|| Fault::Link(world, LinkError::Corrupt("no header".into())))?;
                wire.pop(rank, HEADER);
                if !self.own.agrees(&header) {
                    return Err(Fault::Mismatch(world, Box::new(header)));
                }
                self.got[rank] = Some(header);
                progress = true;
            }
        }
        Ok(progress)
    }
}
