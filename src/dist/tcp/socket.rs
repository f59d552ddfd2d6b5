//! A link through a socket, for ranks on different machines.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;

use rustix::event::{PollFd, PollFlags};

use super::super::mesh::link::{ALIGN, Link, LinkError, PIECE, padded};

/// Pieces of at most this size are gathered into one write.
const SMALL: usize = 16 << 10;
/// Gathered bytes that are written before more is taken.
const GATHERED: usize = 64 << 10;
/// Bytes that are read ahead.
const AHEAD: usize = 1 << 20;
/// Of the system, in each direction: what is under way on a fast network.
const SYSTEM: usize = 4 << 20;

const PAD: [u8; ALIGN] = [0; ALIGN];

pub(crate) struct SocketLink {
    stream: TcpStream,
    /// Small pieces that are not yet written, from `pending_at`.
    pending: Vec<u8>,
    pending_at: usize,
    /// Bytes written of the piece that `push` is at.
    partial: usize,
    /// Read ahead; words, so that pieces are aligned for every type of elements.
    ahead: Vec<u64>,
    start: usize,
    end: usize,
    wants_read: bool,
    wants_write: bool,
    ended: Option<String>,
}

impl SocketLink {
    pub(crate) fn new(stream: TcpStream) -> std::io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        stream.set_read_timeout(None)?;
        // The system may grant less.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&stream, SYSTEM);
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&stream, SYSTEM);
        Ok(SocketLink {
            stream,
            pending: Vec::new(),
            pending_at: 0,
            partial: 0,
            ahead: vec![0; (AHEAD + PIECE + ALIGN) / 8],
            start: 0,
            end: 0,
            wants_read: false,
            wants_write: false,
            ended: None,
        })
    }

    fn write_pending(&mut self) -> Result<bool, LinkError> {
        while self.pending_at < self.pending.len() {
            match self.stream.write(&self.pending[self.pending_at..]) {
                Ok(n) => self.pending_at += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.wants_write = true;
                    return Ok(false);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(LinkError::Closed(e.to_string())),
            }
        }
        self.pending.clear();
        self.pending_at = 0;
        Ok(true)
    }
}

impl Link for SocketLink {
    fn push(&mut self, parts: &[&[u8]]) -> Result<bool, LinkError> {
        let len: usize = parts.iter().map(|p| p.len()).sum();
        let total = padded(len);
        self.wants_write = false;
        if total <= SMALL && self.pending.len() + total <= GATHERED {
            for part in parts {
                self.pending.extend_from_slice(part);
            }
            self.pending.extend_from_slice(&PAD[..total - len]);
            return Ok(true);
        }
        if !self.write_pending()? {
            return Ok(false);
        }
        while self.partial < total {
            let mut skip = self.partial;
            let rest: Vec<IoSlice<'_>> = parts
                .iter()
                .copied()
                .chain([&PAD[..total - len]])
                .filter_map(|part| {
                    let gone = skip.min(part.len());
                    skip -= gone;
                    (gone < part.len()).then(|| IoSlice::new(&part[gone..]))
                })
                .collect();
            match self.stream.write_vectored(&rest) {
                Ok(n) => self.partial += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.wants_write = true;
                    return Ok(false);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(LinkError::Closed(e.to_string())),
            }
        }
        self.partial = 0;
        Ok(true)
    }

    fn flush(&mut self) -> Result<bool, LinkError> {
        if self.pending.is_empty() {
            return Ok(true);
        }
        self.wants_write = false;
        self.write_pending()
    }

    fn fill(&mut self, len: usize) -> Result<bool, LinkError> {
        let total = padded(len);
        self.wants_read = false;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        loop {
            if self.end - self.start >= total {
                return Ok(true);
            }
            if let Some(reason) = &self.ended {
                return Err(LinkError::Closed(reason.clone()));
            }
            let memory: &mut [u8] = bytemuck::cast_slice_mut(&mut self.ahead);
            if self.start + total > memory.len() || self.end == memory.len() {
                // `start` is a multiple of the alignment, and so is where it goes.
                memory.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            }
            match self.stream.read(&mut memory[self.end..]) {
                Ok(0) => self.ended = Some("its connection was closed".into()),
                Ok(n) => self.end += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.wants_read = true;
                    return Ok(false);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => self.ended = Some(e.to_string()),
            }
        }
    }

    fn piece(&self, len: usize) -> &[u8] {
        let memory: &[u8] = bytemuck::cast_slice(&self.ahead);
        &memory[self.start..self.start + len]
    }

    fn pop(&mut self, len: usize) {
        self.start += padded(len);
    }

    fn blocked(&self) -> bool {
        self.wants_read || self.wants_write
    }

    fn poll_fd(&self) -> Option<PollFd<'_>> {
        let mut events = PollFlags::empty();
        events.set(PollFlags::IN, self.wants_read);
        events.set(PollFlags::OUT, self.wants_write);
        Some(PollFd::new(&self.stream, events))
    }
}
