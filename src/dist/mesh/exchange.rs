//! Collectives that move values as they are: all-gather, all-to-all, messages, barrier.

use super::link::PIECE;
use super::wire::{Advance, Fault, Heads, Step, Wire};
use crate::dist::buffer::{Buffer, DType};
use crate::dist::handle::Output;

/// What the result is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Gives {
    Nothing,
    /// From each rank; this rank's own stands in `own`.
    All,
    /// From this rank alone.
    From(usize),
}

struct Incoming {
    buffer: Buffer,
    /// Bytes that are there.
    at: usize,
}

pub(crate) struct Exchange {
    messages: Vec<Buffer>,
    /// Which message each rank gets.
    outgoing: Vec<Option<usize>>,
    /// Bytes that went.
    sent: Vec<usize>,
    expected: Vec<bool>,
    incoming: Vec<Option<Incoming>>,
    own: Option<Buffer>,
    dtype: DType,
    result: Gives,
}

impl Exchange {
    pub(crate) fn new(
        dtype: DType,
        messages: Vec<Buffer>,
        outgoing: Vec<Option<usize>>,
        expected: Vec<bool>,
        own: Option<Buffer>,
        result: Gives,
    ) -> Self {
        Exchange {
            sent: vec![0; outgoing.len()],
            incoming: expected.iter().map(|_| None).collect(),
            messages,
            outgoing,
            expected,
            own,
            dtype,
            result,
        }
    }
}

impl Advance for Exchange {
    fn step(&mut self, wire: &mut Wire<'_>, heads: &mut Heads) -> Result<Step, Fault> {
        let mut progress = heads.step(wire)?;
        let mut done = heads.complete();
        for rank in 0..wire.size() {
            if let Some(message) = self.outgoing[rank]
                && heads.sent(rank)
            {
                let bytes = self.messages[message].bytes();
                while self.sent[rank] < bytes.len() {
                    let end = bytes.len().min(self.sent[rank] + PIECE);
                    if !wire.push(rank, &[&bytes[self.sent[rank]..end]])? {
                        done = false;
                        break;
                    }
                    self.sent[rank] = end;
                    progress = true;
                }
            }
            if self.expected[rank]
                && let Some(header) = &heads.got[rank]
            {
                let incoming = self.incoming[rank].get_or_insert_with(|| Incoming {
                    buffer: Buffer::zeros(self.dtype, header.count as usize),
                    at: 0,
                });
                let bytes = incoming.buffer.bytes_mut();
                while incoming.at < bytes.len() {
                    let len = (bytes.len() - incoming.at).min(PIECE);
                    if !wire.fill(rank, len)? {
                        done = false;
                        break;
                    }
                    bytes[incoming.at..incoming.at + len].copy_from_slice(wire.piece(rank, len));
                    wire.pop(rank, len);
                    incoming.at += len;
                    progress = true;
                }
            }
        }
        Ok(match (done, progress) {
            (true, _) => Step::Done,
            (_, true) => Step::Progress,
            _ => Step::Blocked,
        })
    }

    fn finish(self: Box<Self>) -> Output {
        let mut own = self.own;
        let mut buffers = self.incoming.into_iter().map(|i| i.map(|i| i.buffer));
        match self.result {
            Gives::Nothing => Output::None,
            Gives::From(rank) => {
                Output::One(buffers.nth(rank).flatten().expect("the message came"))
            }
            Gives::All => Output::Many(
                buffers
                    .map(|b| b.or_else(|| own.take()).expect("every message came"))
                    .collect(),
            ),
        }
    }
}
