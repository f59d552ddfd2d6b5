//! How ranks find and connect each other.
//!
//! Every rank listens on a port of its own, tells it through the store and connects to all lower ranks: one connection
//! for each channel and one for control. A connection begins with a greeting that carries the run's token; others are
//! turned away. Two ranks on one machine then share memory.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use super::super::error::DistError;
use super::super::frame::{self, Fields, field, number, same_secret, text};
use super::super::group::ProcessGroup;
use super::super::mesh::Mesh;
use super::super::mesh::link::Link;
use super::super::mesh::shared::Shared;
use super::super::store::StoreClient;
use super::control::Connections;
use super::shm::Segment;
use super::socket::SocketLink;

const GREETING: &[u8] = b"yolo-train rank 1";
const VERSION: &str = env!("CARGO_PKG_VERSION");
const GREETING_BYTES: usize = 4096;
const GREETING_TIME: Duration = Duration::from_secs(5);
/// Connections between two ranks: bulk, latency, control.
const KINDS: usize = 3;
const WELCOME: &[u8] = b"welcome";

/// What values between ranks go through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// Shared memory where two ranks are on one machine and it can be set up, sockets otherwise.
    #[default]
    Auto,
    /// Sockets, also on one machine.
    Sockets,
}

impl Transport {
    /// Environment variable that chooses it: `auto` or `sockets`.
    pub const VARIABLE: &str = "YOLO_TRAIN_TRANSPORT";

    /// # Errors
    /// [`DistError::Environment`]: another value.
    pub fn from_environment() -> Result<Self, DistError> {
        match std::env::var(Transport::VARIABLE).as_deref() {
            Err(std::env::VarError::NotPresent) | Ok("auto") => Ok(Transport::Auto),
            Ok("sockets") => Ok(Transport::Sockets),
            other => Err(DistError::Environment {
                name: Transport::VARIABLE,
                reason: format!("{other:?} is neither auto nor sockets"),
            }),
        }
    }
}

/// How a rank joins the group.
#[derive(Debug, Clone, PartialEq)]
pub struct TcpOptions {
    pub rank: usize,
    pub size: usize,
    pub token: String,
    /// Distinguishes groups that meet at one store.
    pub group: String,
    pub transport: Transport,
    /// Where this rank listens, first and last; any port that is free otherwise.
    pub ports: Option<(u16, u16)>,
    /// For all ranks to come together.
    pub rendezvous: Duration,
    /// Of collectives that have none of their own.
    pub deadline: Duration,
    /// A rank that gives no sign of life for so long is lost (one whose process ends is, at once).
    pub patience: Duration,
}

impl TcpOptions {
    /// Deadlines of a minute, rendezvous of five: a machine may still be scanning its images.
    pub fn new(rank: usize, size: usize, token: impl Into<String>) -> Self {
        TcpOptions {
            rank,
            size,
            token: token.into(),
            group: "ranks".into(),
            transport: Transport::Auto,
            ports: None,
            rendezvous: Duration::from_secs(300),
            deadline: Duration::from_secs(60),
            patience: Duration::from_secs(60),
        }
    }
}

/// Where shared memory can be opened by path: the boot of the machine and the namespace of its process numbers.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!(
        "{} {}",
        read("/proc/sys/kernel/random/boot_id").trim(),
        namespace.display()
    )
}

/// Which processor cores a process may use: ranks with the same text share them.
fn cores() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let allowed = status
        .lines()
        .find(|line| line.starts_with("Cpus_allowed:"))
        .unwrap_or_default();
    format!("{} {allowed}", machine())
}

/// Listens on the address that leads to the store.
fn listen(ip: IpAddr, ports: Option<(u16, u16)>) -> Result<TcpListener, DistError> {
    let (first, last) = ports.unwrap_or((0, 0));
    let mut error = None;
    for port in first..=last {
        match TcpListener::bind((ip, port)) {
            Ok(listener) => return Ok(listener),
            Err(e) => error = Some(e),
        }
    }
    let what = match ports {
        None => format!("listen on {ip}"),
        Some((first, last)) => format!("listen on {ip} at any port from {first} to {last}"),
    };
    Err(match error {
        Some(e) => DistError::system(what, e),
        None => DistError::system(what, "there is none"),
    })
}

/// What the two sides of a connection tell each other.
#[derive(Debug, Clone)]
struct Greeting {
    rank: usize,
    size: usize,
    kind: usize,
    version: String,
    /// Empty where the rank wants no shared memory.
    machine: String,
}

impl Greeting {
    fn encode(&self, token: &str, group: &str) -> Vec<u8> {
        let number = |n: usize| (n as u64).to_le_bytes();
        Fields::default()
            .with(GREETING)
            .with(token.as_bytes())
            .with(group.as_bytes())
            .with(self.version.as_bytes())
            .with(&number(self.rank))
            .with(&number(self.size))
            .with(&number(self.kind))
            .with(self.machine.as_bytes())
            .0
    }

    /// `None`: not of this run.
    fn decode(message: &[u8], token: &str, group: &str) -> Option<Self> {
        let mut rest = message;
        if field(&mut rest)? != GREETING
            || !same_secret(field(&mut rest)?, token.as_bytes())
            || text(&mut rest)? != group
        {
            return None;
        }
        let version = text(&mut rest)?.to_owned();
        Some(Greeting {
            version,
            rank: usize::try_from(number(&mut rest)?).ok()?,
            size: usize::try_from(number(&mut rest)?).ok()?,
            kind: usize::try_from(number(&mut rest)?).ok()?,
            machine: text(&mut rest)?.to_owned(),
        })
    }
}

/// The connections to one rank.
#[derive(Default)]
struct Peer {
    streams: [Option<TcpStream>; KINDS],
    machine: String,
}

/// Joins the group: all ranks call it with the same `size`, `group` and token.
///
/// # Errors
/// [`DistError::Missing`] names ranks that did not come, [`DistError::Connect`] two that cannot reach each other.
pub fn join(store: &StoreClient, options: &TcpOptions) -> Result<Arc<dyn ProcessGroup>, DistError> {
    let &TcpOptions { rank, size, .. } = options;
    assert!(rank < size, "rank {rank} of {size}");
    let end = Instant::now() + options.rendezvous;
    let machine = match options.transport {
        Transport::Auto => machine(),
        Transport::Sockets => String::new(),
    };
    let own = Greeting {
        rank,
        size,
        kind: 0,
        version: VERSION.into(),
        machine,
    };
    let ip = store.local_ip();
    let listener = listen(ip, options.ports)?;
    let address = listener
        .local_addr()
        .map_err(|e| DistError::system("listen", e))?;
    let left = || end.saturating_duration_since(Instant::now());
    let addresses = store.meet(
        &format!("{}/address", options.group),
        rank,
        size,
        address.to_string().as_bytes(),
        left(),
    )?;
    let cores = cores();
    let meeting = format!("{}/cores", options.group);
    let all = store.meet(&meeting, rank, size, cores.as_bytes(), left())?;
    let sharing = all.iter().filter(|c| **c == cores.as_bytes()).count();

    let accepting = Accepting::start(listener, address, own.clone(), options);
    let mut peers: Vec<Peer> = (0..size).map(|_| Peer::default()).collect();
    for (other, address) in addresses.iter().enumerate().take(rank) {
        let address = String::from_utf8_lossy(address);
        for kind in 0..KINDS {
            let greeting = Greeting {
                kind,
                ..own.clone()
            };
            let (stream, machine) = dial(&address, &greeting, other, options, end)?;
            peers[other].streams[kind] = Some(stream);
            peers[other].machine = machine;
        }
    }
    accepting.collect(&mut peers, rank, end)?;

    let shared = Arc::new(Shared::new(size).with_sharing(sharing));
    let mut links: [Vec<Option<Box<dyn Link>>>; 2] = [
        (0..size).map(|_| None).collect(),
        (0..size).map(|_| None).collect(),
    ];
    let mut control: Vec<Option<TcpStream>> = (0..size).map(|_| None).collect();
    for (other, peer) in peers.into_iter().enumerate() {
        if other == rank {
            continue;
        }
        let cannot = |reason: String| DistError::Connect {
            rank,
            other,
            reason,
        };
        let [Some(bulk), Some(latency), Some(talk)] = peer.streams else {
            return Err(cannot("a connection is missing".into()));
        };
        let near = !own.machine.is_empty() && own.machine == peer.machine;
        let segment = if near {
            share(&talk, rank < other, end).map_err(|e| cannot(format!("shared memory: {e}")))?
        } else {
            None
        };
        let io = |e: std::io::Error| cannot(e.to_string());
        let [a, b]: [Box<dyn Link>; 2] = match segment {
            Some(segment) => {
                let [a, b] = segment.links(rank < other, [bulk, latency]).map_err(io)?;
                [Box::new(a), Box::new(b)]
            }
            None => [
                Box::new(SocketLink::new(bulk).map_err(io)?),
                Box::new(SocketLink::new(latency).map_err(io)?),
            ],
        };
        links[0][other] = Some(a);
        links[1][other] = Some(b);
        control[other] = Some(talk);
    }
    let connections = Connections::start(control, shared.clone(), options.patience)?;
    Mesh::start("tcp", rank, links, shared, connections, options.deadline)
}

/// Connects to a lower rank.
fn dial(
    address: &str,
    greeting: &Greeting,
    other: usize,
    options: &TcpOptions,
    end: Instant,
) -> Result<(TcpStream, String), DistError> {
    let cannot = |reason: String| DistError::Connect {
        rank: options.rank,
        other,
        reason,
    };
    let parsed: SocketAddr = address
        .parse()
        .map_err(|_| cannot(format!("{address:?} is no address")))?;
    let attempt = || -> std::io::Result<(TcpStream, Vec<u8>)> {
        let left = end.saturating_duration_since(Instant::now());
        let stream = TcpStream::connect_timeout(&parsed, left.max(Duration::from_millis(10)))?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(GREETING_TIME))?;
        frame::write(&stream, &greeting.encode(&options.token, &options.group))?;
        let answer = frame::read(&stream, GREETING_BYTES, Instant::now() + GREETING_TIME)?;
        Ok((stream, answer))
    };
    let (stream, answer) = loop {
        match attempt() {
            Ok(done) => break done,
            Err(e) if Instant::now() >= end => {
                return Err(cannot(format!("{address}: {e}")));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    let mut rest = &answer[..];
    match (field(&mut rest), text(&mut rest)) {
        (Some(status), Some(machine)) if status == WELCOME => Ok((stream, machine.to_owned())),
        (Some(_), Some(reason)) => Err(cannot(reason.to_owned())),
        _ => Err(cannot(format!("{address} is no rank of this run"))),
    }
}

/// Takes the connections of higher ranks, in the background, so that no two ranks wait for each other.
struct Accepting {
    address: SocketAddr,
    arrived: mpsc::Receiver<(Greeting, TcpStream)>,
    done: Arc<AtomicBool>,
}

impl Accepting {
    fn start(
        listener: TcpListener,
        address: SocketAddr,
        own: Greeting,
        options: &TcpOptions,
    ) -> Self {
        let (send, arrived) = mpsc::channel();
        let done = Arc::new(AtomicBool::new(false));
        let ended = done.clone();
        let (token, group) = (options.token.clone(), options.group.clone());
        std::thread::spawn(move || {
            loop {
                let accepted = listener.accept();
                if ended.load(Ordering::Acquire) {
                    return;
                }
                let Ok((stream, _)) = accepted else {
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                };
                let (send, own) = (send.clone(), own.clone());
                let (token, group) = (token.clone(), group.clone());
                // A thread for each, so that a silent stranger delays nobody.
                std::thread::spawn(move || {
                    if let Ok(Some(greeting)) = welcome(&stream, &own, &token, &group) {
                        let _ = send.send((greeting, stream));
                    }
                });
            }
        });
        Accepting {
            address,
            arrived,
            done,
        }
    }

    /// Until every higher rank has made its connections.
    fn collect(self, peers: &mut [Peer], rank: usize, end: Instant) -> Result<(), DistError> {
        loop {
            let missing: Vec<usize> = (rank + 1..peers.len())
                .filter(|&p| peers[p].streams.iter().any(Option::is_none))
                .collect();
            let Some(&first) = missing.first() else {
                return Ok(());
            };
            let left = end.saturating_duration_since(Instant::now());
            match self.arrived.recv_timeout(left) {
                Ok((greeting, stream)) if greeting.rank > rank => {
                    let peer = &mut peers[greeting.rank];
                    peer.streams[greeting.kind] = Some(stream);
                    peer.machine = greeting.machine;
                }
                Ok(_) => {}
                Err(_) => {
                    return Err(DistError::Connect {
                        rank,
                        other: first,
                        reason: format!(
                            "no connection came to {} from {}",
                            self.address,
                            super::super::error::list(&missing)
                        ),
                    });
                }
            }
        }
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Release);
        // Ends the thread's wait.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_millis(200));
    }
}

/// Answers a greeting; `None`: not of this run.
fn welcome(
    stream: &TcpStream,
    own: &Greeting,
    token: &str,
    group: &str,
) -> std::io::Result<Option<Greeting>> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(GREETING_TIME))?;
    let message = frame::read(stream, GREETING_BYTES, Instant::now() + GREETING_TIME)?;
    let Some(greeting) = Greeting::decode(&message, token, group) else {
        return Ok(None);
    };
    let refused = if greeting.version != own.version {
        Some(format!(
            "rank {} runs yolo-train {}, rank {} {}",
            greeting.rank, greeting.version, own.rank, own.version
        ))
    } else if greeting.size != own.size {
        Some(format!(
            "rank {} expects {} ranks, rank {} {}",
            greeting.rank, greeting.size, own.rank, own.size
        ))
    } else if greeting.rank >= own.size || greeting.kind >= KINDS {
        Some("no such rank or connection".into())
    } else {
        None
    };
    let answer = match &refused {
        Some(reason) => Fields::default().with(b"refused").with(reason.as_bytes()),
        None => Fields::default().with(WELCOME).with(own.machine.as_bytes()),
    };
    frame::write(stream, &answer.0)?;
    Ok(refused.is_none().then_some(greeting))
}

/// Sets memory up that two ranks share: the lower one creates it, the other one opens it. `None`: the other process's
/// memory cannot be reached (for example as another user), which both sides know then.
fn share(talk: &TcpStream, creates: bool, end: Instant) -> std::io::Result<Option<Segment>> {
    let end = end.max(Instant::now() + GREETING_TIME);
    if creates {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|e| std::io::Error::other(e.to_string()))?;
        let segment = Segment::create(u64::from_le_bytes(random)).ok();
        let path = segment.as_ref().map(Segment::path).unwrap_or_default();
        let message = Fields::default().with(path.as_bytes()).with(&random);
        frame::write(talk, &message.0)?;
        let opened = frame::read(talk, 1, end)? == [1];
        Ok(segment.filter(|_| opened))
    } else {
        let message = frame::read(talk, GREETING_BYTES, end)?;
        let mut rest = &message[..];
        let segment = match (text(&mut rest), number(&mut rest)) {
            (Some(path), Some(mark)) if !path.is_empty() => Segment::open(path, mark).ok(),
            _ => None,
        };
        frame::write(talk, &[u8::from(segment.is_some())])?;
        Ok(segment)
    }
}
