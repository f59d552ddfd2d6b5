//! A connection to every other rank that carries no values: signs of life, with where the rank is, errors, farewells. A rank whose connection
//! ends without a farewell is lost; one thread looks after all of them.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::error::DistError;
use super::super::handle::lock;
use super::super::mesh::shared::{Control, Gone, Shared, Sign};

/// Between signs of life.
const BEAT: Duration = Duration::from_millis(250);
/// How long a rank that leaves waits until the others have heard of it.
const FAREWELL: Duration = Duration::from_millis(500);
/// Most bytes of an error's text.
const TEXT: usize = 16 << 10;

const ALIVE: u8 = 0;
const ABORT: u8 = 1;
const LEAVE: u8 = 2;

/// The connections of a rank.
pub(crate) struct Connections {
    writers: Vec<Option<Mutex<TcpStream>>>,
    /// Ends the thread's wait.
    wake: UnixStream,
    left: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Peer {
    rank: usize,
    stream: TcpStream,
    /// Read, not yet understood.
    bytes: Vec<u8>,
    heard: Instant,
}

impl Connections {
    /// `streams[rank]`: none for this rank. A rank that gives no sign of life for `patience` is lost.
    pub(crate) fn start(
        streams: Vec<Option<TcpStream>>,
        shared: Arc<Shared>,
        patience: Duration,
    ) -> Result<Arc<Self>, DistError> {
        let system = |e: std::io::Error| DistError::system("set up a connection", e);
        let mut peers = Vec::new();
        let mut writers = Vec::new();
        for (rank, stream) in streams.into_iter().enumerate() {
            let Some(stream) = stream else {
                writers.push(None);
                continue;
            };
            stream.set_nodelay(true).map_err(system)?;
            stream.set_nonblocking(true).map_err(system)?;
            writers.push(Some(Mutex::new(stream.try_clone().map_err(system)?)));
            peers.push(Peer {
                rank,
                stream,
                bytes: Vec::new(),
                heard: Instant::now(),
            });
        }
        let (wake, woken) = UnixStream::pair().map_err(system)?;
        woken.set_nonblocking(true).map_err(system)?;
        let connections = Arc::new(Connections {
            writers,
            wake,
            left: AtomicBool::new(false),
            thread: Mutex::new(None),
        });
        let weak = Arc::downgrade(&connections);
        let thread = std::thread::Builder::new()
            .name("dist-control".into())
            .spawn(move || {
                let tell = |kind: u8, text: &[u8]| match weak.upgrade() {
                    Some(c) => {
                        c.tell(kind, text);
                        !c.left.load(Ordering::Acquire)
                    }
                    None => false,
                };
                listen(peers, &woken, &shared, patience, tell);
            })
            .map_err(|e| DistError::system("start a thread", e))?;
        *lock(&connections.thread) = Some(thread);
        Ok(connections)
    }

    /// To all others: kind, length of the text, text.
    fn tell(&self, kind: u8, text: &[u8]) {
        let text = &text[..text.len().min(TEXT)];
        let mut message = vec![kind];
        message.extend_from_slice(&(text.len() as u32).to_le_bytes());
        message.extend_from_slice(text);
        for writer in self.writers.iter().flatten() {
            // Small messages always fit, except to a rank that is gone or hangs; to that there is nothing to say.
            let _ = lock(writer).write_all(&message);
        }
    }
}

impl Control for Connections {
    fn carries_beats(&self) -> bool {
        true
    }

    fn abort(&self, reason: &str) {
        self.tell(ABORT, reason.as_bytes());
    }

    fn leave(&self) {
        if self.left.swap(true, Ordering::AcqRel) {
            return;
        }
        self.tell(LEAVE, b"");
        for writer in self.writers.iter().flatten() {
            // Closing at once would drop the farewell where something unread has come in.
            let _ = lock(writer).shutdown(Shutdown::Write);
        }
        let _ = (&self.wake).write_all(&[1]);
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
    }
}

/// Until all others are gone, or `FAREWELL` after this rank has left.
fn listen(
    mut peers: Vec<Peer>,
    woken: &UnixStream,
    shared: &Shared,
    patience: Duration,
    tell: impl Fn(u8, &[u8]) -> bool,
) {
    let mut beat = Instant::now();
    let mut leaving: Option<Instant> = None;
    let mut trouble: Option<Instant> = None;
    // Where everybody else is gone, the writers stay open until this rank leaves.
    let over = || shared.failure().is_some() || shared.any_lost();
    while !peers.is_empty() || (leaving.is_none() && over()) {
        if over() {
            let since = trouble.get_or_insert_with(Instant::now);
            if let Some(how) = shared.stuck(since.elapsed()) {
                let _ = writeln!(
                    std::io::stderr(),
                    "yolo-train: error: {how}: it ends itself"
                );
                std::process::exit(1);
            }
        }
        if leaving.is_some_and(|since| since.elapsed() > FAREWELL) {
            return;
        }
        if leaving.is_none() && beat.elapsed() >= BEAT {
            beat = Instant::now();
            if !tell(ALIVE, &shared.own_sign().encode()) {
                leaving = Some(Instant::now());
            }
        }
        let wait = if leaving.is_some() { FAREWELL } else { BEAT };
        let timeout = Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        let mut fds = vec![PollFd::new(woken, PollFlags::IN)];
        fds.extend(peers.iter().map(|p| PollFd::new(&p.stream, PollFlags::IN)));
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        drop(fds);
        if (&*woken).read(&mut [0; 8]).is_ok_and(|n| n > 0) {
            leaving.get_or_insert_with(Instant::now);
        }
        peers.retain_mut(|peer| match hear(peer, shared) {
            Some(gone) => {
                // A rank that leaves waits for this.
                let _ = peer.stream.shutdown(Shutdown::Write);
                shared.set_gone(peer.rank, gone);
                false
            }
            // Nobody is lost who would not be late.
            None if leaving.is_none() && peer.heard.elapsed() > patience.max(shared.deadline()) => {
                let patience = patience.max(shared.deadline());
                let reason = format!("no sign of life for {:.0} s", patience.as_secs_f64());
                shared.set_gone(peer.rank, Gone::Lost(reason));
                false
            }
            None => true,
        });
    }
}

/// Reads what came; how the rank ended, if it did.
fn hear(peer: &mut Peer, shared: &Shared) -> Option<Gone> {
    let mut memory = [0; 4096];
    let ended = loop {
        match peer.stream.read(&mut memory) {
            Ok(0) => break Some("its process ended".to_string()),
            Ok(n) => {
                peer.heard = Instant::now();
                peer.bytes.extend_from_slice(&memory[..n]);
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => break None,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => break Some(format!("its process ended ({e})")),
        }
    };
    while let Some((&kind, rest)) = peer.bytes.split_first()
        && let Some((len, rest)) = rest.split_first_chunk::<4>()
    {
        let len = u32::from_le_bytes(*len) as usize;
        if len > TEXT {
            return Some(Gone::Lost("it sent what no rank sends".into()));
        }
        let Some(text) = rest.get(..len) else { break };
        match kind {
            ABORT => {
                shared.fail(DistError::Aborted {
                    by: peer.rank,
                    reason: String::from_utf8_lossy(text).into_owned(),
                });
            }
            ALIVE => {
                if let Some(sign) = Sign::decode(text) {
                    shared.heard(peer.rank, sign);
                }
            }
            LEAVE => return Some(Gone::Left),
            _ => {}
        }
        peer.bytes.drain(..5 + len);
    }
    ended.map(Gone::Lost)
}
