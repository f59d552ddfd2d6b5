//! A link through shared memory, for ranks on one machine.
//!
//! The memory is an anonymous file (`memfd`): one rank creates it, the other one opens it through `/proc`. It never
//! has a name, so nothing is left behind however the ranks end. A socket between the two carries the signs that wake
//! a waiting side and tells when the other one is gone.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use memmap2::{MmapOptions, MmapRaw};
use rustix::event::{PollFd, PollFlags};

use super::super::group::Channel;
use super::super::mesh::link::{Link, LinkError, PIECE};
use super::ring::Ring;

/// Bytes of the ring of a channel, in each direction.
const fn capacity(channel: Channel) -> usize {
    match channel {
        // Within the second cache, several pieces deep.
        Channel::Bulk => 8 * PIECE,
        Channel::Latency => 2 * PIECE,
    }
}

/// Bytes of the memory between two ranks: for each channel a ring in each direction, then a number that both compare.
pub(crate) const SIZE: usize = 2
    * (Ring::bytes(capacity(Channel::Bulk)) + Ring::bytes(capacity(Channel::Latency)))
    + size_of::<u64>();

/// An anonymous file of zeros.
#[cfg(target_os = "linux")]
pub(crate) fn create(size: usize) -> std::io::Result<File> {
    use rustix::fs::MemfdFlags;
    let file: File = rustix::fs::memfd_create("yolo-train", MemfdFlags::CLOEXEC)?.into();
    file.set_len(size as u64)?;
    Ok(file)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn create(_: usize) -> std::io::Result<File> {
    Err(ErrorKind::Unsupported.into())
}

/// The memory between two ranks.
pub(crate) struct Segment {
    map: Arc<MmapRaw>,
    /// Kept until the other side has opened it.
    file: File,
}

impl Segment {
    /// Creates it, with `mark` at its end.
    pub(crate) fn create(mark: u64) -> std::io::Result<Self> {
        use std::os::unix::fs::FileExt;
        let file = create(SIZE)?;
        file.write_all_at(&mark.to_le_bytes(), (SIZE - size_of::<u64>()) as u64)?;
        Segment::map(file)
    }

    fn map(file: File) -> std::io::Result<Self> {
        let map = Arc::new(MmapOptions::new().len(SIZE).map_raw(&file)?);
        Ok(Segment { map, file })
    }

    /// How another process of this machine opens it.
    pub(crate) fn path(&self) -> String {
        use std::os::fd::AsRawFd;
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Opens another rank's; an error where the path leads to anything else.
    pub(crate) fn open(path: &str, mark: u64) -> std::io::Result<Self> {
        use std::os::unix::fs::FileExt;
        let parts: Vec<_> = path.split('/').collect();
        let number = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        let fits = matches!(parts[..], ["", "proc", pid, "fd", fd] if number(pid) && number(fd));
        if !fits {
            return Err(std::io::Error::other("not a path of shared memory"));
        }
        let file = File::options().read(true).write(true).open(path)?;
        let mut found = [0; size_of::<u64>()];
        if file.metadata()?.len() != SIZE as u64 {
            return Err(std::io::Error::other("another file"));
        }
        file.read_exact_at(&mut found, (SIZE - size_of::<u64>()) as u64)?;
        if found != mark.to_le_bytes() {
            return Err(std::io::Error::other("another file"));
        }
        Segment::map(file)
    }

    /// The links of both channels; `lower`: whether this rank is the lower one of the two.
    pub(crate) fn links(
        &self,
        lower: bool,
        bells: [TcpStream; 2],
    ) -> std::io::Result<[ShmLink; 2]> {
        let mut offset = 0;
        let mut ring = |channel: Channel| {
            let capacity = capacity(channel);
            let ring = Ring::new(&self.map, offset, capacity);
            offset += Ring::bytes(capacity);
            ring
        };
        let mut pairs = Channel::ALL.map(|c| [ring(c), ring(c)]);
        if !lower {
            pairs.iter_mut().for_each(|p| p.reverse());
        }
        let [bulk, latency] = bells;
        let [a, b] = pairs;
        Ok([ShmLink::new(a, bulk)?, ShmLink::new(b, latency)?])
    }
}

pub(crate) struct ShmLink {
    outgoing: Ring,
    incoming: Ring,
    bell: TcpStream,
    wants_read: bool,
    wants_write: bool,
    /// The other side waits for a sign that `flush` gives: one for all small pieces of a step.
    due: bool,
    ended: Option<String>,
}

/// A piece of more bytes is worth a sign of its own: the other side may begin with it.
const LARGE: usize = 4 << 10;

impl ShmLink {
    fn new([outgoing, incoming]: [Ring; 2], bell: TcpStream) -> std::io::Result<Self> {
        bell.set_nodelay(true)?;
        bell.set_nonblocking(true)?;
        Ok(ShmLink {
            outgoing,
            incoming,
            bell,
            wants_read: false,
            wants_write: false,
            due: false,
            ended: None,
        })
    }

    fn ring(&mut self) {
        self.due = false;
        // A full socket holds signs enough; a closed one is seen by the next wait.
        let _ = self.bell.write(&[1]);
    }
}

impl Link for ShmLink {
    fn push(&mut self, parts: &[&[u8]]) -> Result<bool, LinkError> {
        match self.outgoing.push(parts) {
            Some(sign) => {
                self.due |= sign;
                if self.due && parts.iter().map(|p| p.len()).sum::<usize>() > LARGE {
                    self.ring();
                }
                self.wants_write = false;
                Ok(true)
            }
            None => match &self.ended {
                Some(reason) => Err(LinkError::Closed(reason.clone())),
                None => {
                    self.wants_write = true;
                    Ok(false)
                }
            },
        }
    }

    fn flush(&mut self) -> Result<bool, LinkError> {
        if self.due {
            self.ring();
        }
        Ok(true)
    }

    fn fill(&mut self, len: usize) -> Result<bool, LinkError> {
        self.wants_read = !self.incoming.fill(len)?;
        match &self.ended {
            Some(reason) if self.wants_read => Err(LinkError::Closed(reason.clone())),
            _ => Ok(!self.wants_read),
        }
    }

    fn piece(&self, len: usize) -> &[u8] {
        self.incoming.piece(len)
    }

    fn pop(&mut self, len: usize) {
        self.due |= self.incoming.pop(len);
        if self.due && len > LARGE {
            self.ring();
        }
    }

    fn blocked(&self) -> bool {
        self.wants_read || self.wants_write
    }

    fn arm(&mut self) {
        if self.wants_read {
            self.incoming.wait(false);
        }
        if self.wants_write {
            self.outgoing.wait(true);
        }
    }

    fn poll_fd(&self) -> Option<PollFd<'_>> {
        Some(PollFd::new(&self.bell, PollFlags::IN))
    }

    fn woken(&mut self) {
        let mut signs = [0; 64];
        while self.ended.is_none() {
            match self.bell.read(&mut signs) {
                Ok(0) => self.ended = Some("its connection was closed".into()),
                Ok(n) if n < signs.len() => break,
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => self.ended = Some(e.to_string()),
            }
        }
    }
}
