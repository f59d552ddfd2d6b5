//! The rendezvous store: a small table of values that the first process serves and all ranks read and write.
//!
//! The server binds its own port before any worker starts. A connection begins with the token that all ranks of a run
//! share; before that nothing longer than a greeting is read, and not for longer than a few seconds, so that whatever
//! else comes to the port (scans, other programs) costs nothing and is turned away. The token travels in clear: the
//! store listens on the loopback interface unless told otherwise.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::error::DistError;
use super::frame::{self, Fields, field, number, same_secret, text};
use super::handle::lock;

const GREETING: &[u8] = b"yolo-train store 1";
/// Of the greeting with the token.
const GREETING_BYTES: usize = 1024;
const GREETING_TIME: Duration = Duration::from_secs(5);
/// Connections that have not shown the token.
const STRANGERS: usize = 256;
/// Of a request or an answer.
const MESSAGE: usize = 64 << 20;
/// How long an answer may take that the server has at hand.
const ANSWER: Duration = Duration::from_secs(30);

const SET: u8 = 1;
const GET: u8 = 2;
const WAIT: u8 = 3;
const ADD: u8 = 4;
const KEYS: u8 = 5;

const FOUND: u8 = 0;
const ABSENT: u8 = 1;
const REFUSED: u8 = 2;

/// A token for one run.
///
/// # Errors
/// Where the system has no random numbers.
pub fn random_token() -> Result<String, DistError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|e| DistError::system("make a random token", e))?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

#[derive(Default)]
struct Table {
    values: Mutex<BTreeMap<String, Vec<u8>>>,
    changed: Condvar,
    closing: AtomicBool,
    strangers: AtomicUsize,
}

/// Serves the store until it is dropped.
pub struct StoreServer {
    address: SocketAddr,
    token: String,
    table: Arc<Table>,
}

impl StoreServer {
    /// Listens on `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// The address cannot be used.
    pub fn bind(address: impl Into<IpAddr>, port: u16, token: &str) -> Result<Self, DistError> {
        let wanted = SocketAddr::new(address.into(), port);
        let error = |e: io::Error| DistError::Store {
            address: wanted.to_string(),
            reason: e.to_string(),
        };
        let listener = TcpListener::bind(wanted).map_err(error)?;
        let address = listener.local_addr().map_err(error)?;
        let table = Arc::new(Table::default());
        let shown = token.to_owned();
        let (served, token) = (table.clone(), token.as_bytes().to_vec());
        std::thread::Builder::new()
            .name("dist-store".into())
            .spawn(move || accept(&listener, &served, &token))
            .map_err(error)?;
        Ok(StoreServer {
            address,
            token: shown,
            table,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What ranks must know.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Sets a value, as a client does.
    pub fn set(&self, key: &str, value: &[u8]) {
        lock(&self.table.values).insert(key.to_owned(), value.to_vec());
        self.table.changed.notify_all();
    }

    /// Keys that begin with `prefix`, sorted, with their values.
    pub fn values(&self, prefix: &str) -> Vec<(String, Vec<u8>)> {
        lock(&self.table.values)
            .range(prefix.to_owned()..)
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        self.table.closing.store(true, Ordering::Release);
        self.table.changed.notify_all();
        // Ends the wait for the next connection.
        let mut address = self.address;
        if address.ip().is_unspecified() {
            address.set_ip(IpAddr::from([127, 0, 0, 1]));
        }
        let _ = TcpStream::connect_timeout(&address, Duration::from_millis(200));
    }
}

fn accept(listener: &TcpListener, table: &Arc<Table>, token: &[u8]) {
    loop {
        let accepted = listener.accept();
        if table.closing.load(Ordering::Acquire) {
            return;
        }
        let Ok((stream, _)) = accepted else {
            // For example too many open files; it may pass.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        if table.strangers.fetch_add(1, Ordering::AcqRel) >= STRANGERS {
            table.strangers.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        let (served, token) = (table.clone(), token.to_vec());
        let spawned = std::thread::Builder::new()
            .name("dist-store".into())
            .stack_size(256 << 10)
            .spawn(move || {
                let known = greet(&stream, &token);
                served.strangers.fetch_sub(1, Ordering::AcqRel);
                if known.is_ok_and(|known| known) {
                    // It ends with an error: the client has closed the connection.
                    let _ = serve(&stream, &served);
                }
            });
        if spawned.is_err() {
            table.strangers.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Whether the client knows the token.
fn greet(stream: &TcpStream, token: &[u8]) -> io::Result<bool> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(GREETING_TIME))?;
    let message = frame::read(stream, GREETING_BYTES, Instant::now() + GREETING_TIME)?;
    let mut rest = &message[..];
    if field(&mut rest) != Some(GREETING) {
        return Ok(false);
    }
    let known = field(&mut rest).is_some_and(|t| same_secret(t, token));
    frame::write(stream, &[if known { FOUND } else { REFUSED }])?;
    Ok(known)
}

fn serve(stream: &TcpStream, table: &Table) -> io::Result<()> {
    stream.set_write_timeout(Some(ANSWER))?;
    // As long as the client wishes: there is one connection per rank.
    let forever = Duration::from_secs(365 * 24 * 3600);
    while !table.closing.load(Ordering::Acquire) {
        let request = frame::read(stream, MESSAGE, Instant::now() + forever)?;
        let (status, value) = answer(&request, table).unwrap_or((REFUSED, Vec::new()));
        let mut message = vec![status];
        message.extend_from_slice(&value);
        frame::write(stream, &message)?;
    }
    Ok(())
}

/// `None`: no request of this program.
fn answer(request: &[u8], table: &Table) -> Option<(u8, Vec<u8>)> {
    let (&kind, mut rest) = request.split_first()?;
    let key = text(&mut rest)?;
    let found = |value: Option<Vec<u8>>| match value {
        Some(value) => (FOUND, value),
        None => (ABSENT, Vec::new()),
    };
    let mut values = lock(&table.values);
    match kind {
        SET => {
            let value = field(&mut rest)?.to_vec();
            values.insert(key.to_owned(), value);
            table.changed.notify_all();
            Some((FOUND, Vec::new()))
        }
        GET => Some(found(values.get(key).cloned())),
        WAIT => {
            let end = Instant::now() + Duration::from_millis(number(&mut rest)?.min(1 << 40));
            loop {
                let value = values.get(key).cloned();
                let left = end.saturating_duration_since(Instant::now());
                if value.is_some() || left.is_zero() || table.closing.load(Ordering::Acquire) {
                    return Some(found(value));
                }
                values = table
                    .changed
                    .wait_timeout(values, left)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
        }
        ADD => {
            let delta = number(&mut rest)? as i64;
            let value = match values.get(key) {
                None => 0,
                Some(v) => i64::from_le_bytes(v[..].try_into().ok()?),
            };
            let value = value.wrapping_add(delta).to_le_bytes().to_vec();
            values.insert(key.to_owned(), value.clone());
            table.changed.notify_all();
            Some((FOUND, value))
        }
        KEYS => {
            let keys = values
                .range(key.to_owned()..)
                .take_while(|(k, _)| k.starts_with(key))
                .fold(Fields::default(), |f, (k, _)| f.with(k.as_bytes()));
            Some((FOUND, keys.0))
        }
        _ => None,
    }
}

/// A connection to the store. Methods wait for the answer; threads take turns.
pub struct StoreClient {
    address: String,
    stream: Mutex<TcpStream>,
    local: IpAddr,
    /// How long an answer may take that the server has at hand.
    answer: Duration,
}

impl StoreClient {
    /// Connects, trying again until the server is there.
    ///
    /// # Errors
    /// [`DistError::Store`]: no server within `deadline`, or another token.
    pub fn connect(address: &str, token: &str, deadline: Duration) -> Result<Self, DistError> {
        let end = Instant::now() + deadline;
        let error = |reason: String| DistError::Store {
            address: address.into(),
            reason,
        };
        loop {
            match StoreClient::greet(address, token, end) {
                Ok(Some(client)) => return Ok(client),
                Ok(None) => {
                    return Err(error(
                        "the token is not the one of this run; are YOLO_TRAIN_TOKEN or --token-file the same on all ranks?"
                            .into(),
                    ));
                }
                Err(e) if Instant::now() >= end => return Err(error(e.to_string())),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    fn greet(address: &str, token: &str, end: Instant) -> io::Result<Option<Self>> {
        let mut last = io::Error::other("the address does not exist");
        for resolved in address.to_socket_addrs()? {
            let left = end.saturating_duration_since(Instant::now());
            match TcpStream::connect_timeout(&resolved, left.max(Duration::from_millis(10))) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_write_timeout(Some(ANSWER))?;
                    let greeting = Fields::default().with(GREETING).with(token.as_bytes());
                    frame::write(&stream, &greeting.0)?;
                    let patience = end.min(Instant::now() + GREETING_TIME);
                    let patience = patience.max(Instant::now() + Duration::from_millis(100));
                    let answer = frame::read(&stream, 1, patience)?;
                    let local = stream.local_addr()?.ip();
                    return Ok((answer == [FOUND]).then(|| StoreClient {
                        address: address.into(),
                        stream: Mutex::new(stream),
                        local,
                        answer: ANSWER,
                    }));
                }
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    /// For values that are not worth waiting for: an answer that takes longer is an error, after which the connection is
    /// of no use.
    #[must_use]
    pub fn answers_within(mut self, patience: Duration) -> Self {
        self.answer = patience;
        // A socket that is open takes it.
        let _ = lock(&self.stream).set_write_timeout(Some(patience));
        self
    }

    /// This side's address on the way to the store.
    pub fn local_ip(&self) -> IpAddr {
        self.local
    }

    fn error(&self, reason: impl ToString) -> DistError {
        DistError::Store {
            address: self.address.clone(),
            reason: reason.to_string(),
        }
    }

    /// `None` where the key is absent.
    fn ask(&self, kind: u8, fields: Fields, time: Duration) -> Result<Option<Vec<u8>>, DistError> {
        let mut message = vec![kind];
        message.extend_from_slice(&fields.0);
        if message.len() > MESSAGE {
            return Err(self.error(format!("a value of {} bytes is too long", message.len())));
        }
        let stream = lock(&self.stream);
        frame::write(&stream, &message).map_err(|e| self.error(e))?;
        let mut answer = frame::read(&stream, MESSAGE + 1, Instant::now() + time + self.answer)
            .map_err(|e| self.error(format!("no answer: {e}; did the first process end?")))?;
        match answer.first() {
            Some(&FOUND) => Ok(Some(answer.split_off(1))),
            Some(&ABSENT) => Ok(None),
            _ => Err(self.error("the request was refused")),
        }
    }

    /// # Errors
    /// [`DistError::Store`], as of all methods.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<(), DistError> {
        let fields = Fields::default().with(key.as_bytes()).with(value);
        self.ask(SET, fields, Duration::ZERO).map(|_| ())
    }

    /// # Errors
    /// See [`StoreClient::set`].
    pub fn get(&self, key: &str) -> Result<Option<Vec<u8>>, DistError> {
        self.ask(GET, Fields::default().with(key.as_bytes()), Duration::ZERO)
    }

    /// The value once somebody has set it; `None` after `deadline`.
    ///
    /// # Errors
    /// See [`StoreClient::set`].
    pub fn wait(&self, key: &str, deadline: Duration) -> Result<Option<Vec<u8>>, DistError> {
        let ms = deadline.as_millis().min(1 << 40) as u64;
        let fields = Fields::default()
            .with(key.as_bytes())
            .with(&ms.to_le_bytes());
        self.ask(WAIT, fields, deadline)
    }

    /// Adds to a number that begins at 0; gives the sum.
    ///
    /// # Errors
    /// See [`StoreClient::set`]; also where the key holds something else.
    pub fn add(&self, key: &str, delta: i64) -> Result<i64, DistError> {
        let fields = Fields::default()
            .with(key.as_bytes())
            .with(&delta.to_le_bytes());
        let value = self.ask(ADD, fields, Duration::ZERO)?;
        value
            .and_then(|v| Some(i64::from_le_bytes(v[..].try_into().ok()?)))
            .ok_or_else(|| self.error("an answer that is no number"))
    }

    /// All keys that begin with `prefix`, sorted.
    ///
    /// # Errors
    /// See [`StoreClient::set`].
    pub fn keys(&self, prefix: &str) -> Result<Vec<String>, DistError> {
        let answer = self.ask(
            KEYS,
            Fields::default().with(prefix.as_bytes()),
            Duration::ZERO,
        )?;
        let answer = answer.unwrap_or_default();
        let (mut rest, mut keys) = (&answer[..], Vec::new());
        while let Some(key) = text(&mut rest) {
            keys.push(key.to_owned());
        }
        Ok(keys)
    }

    /// Every rank brings a value and gets those of all, in order of ranks.
    ///
    /// # Errors
    /// [`DistError::Missing`] names the ranks that did not come within `deadline`.
    pub fn meet(
        &self,
        meeting: &str,
        rank: usize,
        size: usize,
        value: &[u8],
        deadline: Duration,
    ) -> Result<Vec<Vec<u8>>, DistError> {
        let end = Instant::now() + deadline;
        let key = |r: usize| format!("{meeting}/{r}");
        self.set(&key(rank), value)?;
        let mut values = Vec::with_capacity(size);
        for r in 0..size {
            let left = end.saturating_duration_since(Instant::now());
            match self.wait(&key(r), left)? {
                Some(value) => values.push(value),
                None => {
                    let keys = self.keys(&format!("{meeting}/"))?;
                    let ranks: Vec<_> = (0..size).filter(|&r| !keys.contains(&key(r))).collect();
                    return Err(DistError::Missing {
                        meeting: meeting.into(),
                        came: size - ranks.len(),
                        ranks,
                        size,
                        after: deadline,
                    });
                }
            }
        }
        Ok(values)
    }
}
