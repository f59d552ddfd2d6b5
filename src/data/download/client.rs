//! One file over HTTP: begun, gone on with, tried again, checked.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use ureq::http::{HeaderMap, StatusCode, header};

use super::error::bytes;
use super::part::{Origin, Part};

/// The address that `coco_url`s and COCO's archives begin with, and the variable that replaces it by a mirror's.
const COCO_URL: &str = "http://images.cocodataset.org";
const COCO_URL_VARIABLE: &str = "YOLO_TRAIN_COCO_URL";

/// No answer, and no further byte, for longer than this is a failure, to be tried again.
const SILENCE: Duration = Duration::from_secs(30);
const CONNECT: Duration = Duration::from_secs(15);
/// The longest that `Retry-After` is obeyed.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// How failures are met. Every try that brings the file further than any before starts the count anew.
#[derive(Debug, Clone, Copy)]
pub(super) struct Retry {
    /// For what may be over in a moment: cut connections, silence, an overloaded server.
    pub tries: u32,
    /// For a host that is unknown or refuses, and for contents that are not what they should be.
    pub few_tries: u32,
    /// Doubles with each try.
    pub first_delay: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            tries: 6,
            few_tries: 3,
            first_delay: Duration::from_millis(500),
        }
    }
}

/// What all downloads of a data set share.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    agent: ureq::Agent,
    retry: Retry,
    /// Replaces [`COCO_URL`].
    coco_mirror: Option<String>,
}

impl Client {
    /// With the proxies and the mirror that the environment names (`HTTPS_PROXY`, `NO_PROXY`, …; `YOLO_TRAIN_COCO_URL`).
    pub fn from_environment() -> Self {
        let mirror = std::env::var(COCO_URL_VARIABLE).ok();
        let mirror = mirror.filter(|url| !url.trim().is_empty());
        Self::new(Retry::default(), mirror, ureq::Proxy::try_from_env())
    }

    pub(super) fn new(
        retry: Retry,
        coco_mirror: Option<String>,
        proxy: Option<ureq::Proxy>,
    ) -> Self {
        let config = ureq::Agent::config_builder()
            .proxy(proxy)
            .http_status_as_error(false)
            .user_agent(concat!("yolo-train/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            .build();
        Self {
            agent: ureq::Agent::new_with_config(config),
            retry,
            coco_mirror,
        }
    }

    /// The address that is really asked.
    pub(super) fn address(&self, url: &str) -> String {
        let path = url
            .strip_prefix(COCO_URL)
            .or_else(|| url.strip_prefix("https://images.cocodataset.org"))
            .filter(|path| path.starts_with('/'));
        match (&self.coco_mirror, path) {
            (Some(mirror), Some(path)) => format!("{}{path}", mirror.trim_end_matches('/')),
            _ => url.to_owned(),
        }
    }

    /// Ends all requests, also those that wait for an answer; nothing can be asked any more.
    pub(super) fn shut_down(&self) {
        self.agent.clone().shutdown();
    }

    /// Downloads `job`, however many tries it takes within bounds. Bytes that were received stay in the part, whatever happens.
    pub(super) fn fetch(&self, job: &Job, state: &State, stop: &AtomicBool) -> Result<(), Failure> {
        let mut furthest = 0;
        let mut failed = 0;
        loop {
            let before = state.have();
            let tried = self
                .try_once(job, state, stop)
                .and_then(|()| job.accept(state));
            let Err(failure) = tried else {
                return Ok(());
            };
            if stop.load(Ordering::Relaxed) {
                return Err(Failure::Stopped);
            }
            let reached = state.have();
            if reached > furthest.max(before) {
                failed = 0;
            }
            furthest = furthest.max(reached);
            failed += 1;
            let (tries, least_wait) = match &failure {
                Failure::Passing { wait, .. } => (self.retry.tries, *wait),
                Failure::Unreachable(_) | Failure::Content(_) => {
                    (self.retry.few_tries, Duration::ZERO)
                }
                Failure::Final(_) | Failure::Write { .. } | Failure::Stopped => {
                    return Err(failure);
                }
            };
            if failed >= tries {
                return Err(failure);
            }
            let backoff = self.retry.first_delay * 2_u32.saturating_pow(failed - 1);
            pause(backoff.max(least_wait).min(LONGEST_WAIT), stop)?;
        }
    }

    fn try_once(&self, job: &Job, state: &State, stop: &AtomicBool) -> Result<(), Failure> {
        let part = &job.part;
        let url = self.address(&job.url);
        let (mut have, known) = part.found(&url);
        state.set(have, known.length);
        if known.length.is_some_and(|length| length == have) {
            return Ok(());
        }
        // Without anything to compare, a part is not gone on with.
        if known.validator().is_none() && known.length.is_none() {
            have = 0;
        }
        let mut request = self.agent.get(&url);
        if have > 0 {
            request = request.header(header::RANGE, format!("bytes={have}-"));
            if let Some(validator) = known.validator() {
                request = request.header(header::IF_RANGE, validator);
            }
        }
        let mut response = request.call().map_err(|error| failure(&error))?;
        let headers = response.headers();
        let mut origin = Origin {
            url,
            etag: text(headers, header::ETAG),
            last_modified: text(headers, header::LAST_MODIFIED),
            length: None,
        };
        match response.status() {
            StatusCode::OK => {
                have = 0;
                origin.length = response.body().content_length();
            }
            StatusCode::PARTIAL_CONTENT => {
                let range = text(headers, header::CONTENT_RANGE);
                let (start, length) = range.as_deref().and_then(content_range).unzip();
                origin.length = length.flatten();
                let fits = start == Some(have) && have > 0 && known.agrees_with(&origin);
                let certain = known.validator().is_some() || origin.length.is_some();
                if !(fits && certain) {
                    return Err(part.begin_again("the file changed while it was downloaded"));
                }
                if origin.length.is_none() {
                    origin.length = known.length;
                }
            }
            StatusCode::RANGE_NOT_SATISFIABLE => {
                // The part is longer than the file is now, or the server's length was wrong.
                return Err(part.begin_again("the server has no such part of the file"));
            }
            status => return Err(refused(status, headers)),
        }
        if let Some(length) = origin.length
            && length > job.most_bytes()
        {
            return Err(too_large(length, job));
        }
        let mut file = part
            .open(have, &origin)
            .map_err(|source| Failure::write(&part.path, source, origin.length, have))?;
        state.set(have, origin.length);
        let length = origin.length;
        let result = copy(response.body_mut(), &mut file, job, state, length, stop);
        // What is to be found after a crash is what was received before.
        let synced = file.sync_data();
        result?;
        synced.map_err(|source| Failure::write(&part.path, source, length, state.have()))
    }
}

/// Copies the body, byte by byte counted, and compares the count with the length that was announced.
fn copy(
    body: &mut ureq::Body,
    file: &mut File,
    job: &Job,
    state: &State,
    length: Option<u64>,
    stop: &AtomicBool,
) -> Result<(), Failure> {
    let mut body = body.as_reader();
    let mut buffer = vec![0; 1 << 16];
    let mut have = state.have();
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(Failure::Stopped);
        }
        let count = match body.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(cut(&e, have, length)),
        };
        file.write_all(&buffer[..count])
            .map_err(|source| Failure::write(&job.part.path, source, length, have))?;
        have += count as u64;
        state.set(have, length);
        if have > job.most_bytes() {
            return Err(too_large(have, job));
        }
    }
    match length {
        Some(length) if have != length => Err(cut(
            &io::Error::from(ErrorKind::UnexpectedEof),
            have,
            Some(length),
        )),
        _ => Ok(()),
    }
}

impl Part {
    fn begin_again(&self, reason: &str) -> Failure {
        match self.remove() {
            Ok(()) => Failure::passing(reason),
            Err(source) => Failure::write(&self.path, source, None, 0),
        }
    }
}

/// One file to download.
#[derive(Debug)]
pub(super) struct Job {
    pub url: String,
    pub part: Part,
    pub accept: Accept,
}

/// What becomes of a complete part.
#[derive(Debug)]
pub(super) enum Accept {
    /// It stays a part.
    Keep,
    /// It must decode as an image of this size, then gets its name.
    Image {
        to: PathBuf,
        size: Option<(u64, u64)>,
    },
}

/// Bigger files are no photographs.
const MOST_IMAGE_BYTES: u64 = 256 << 20;

impl Job {
    fn most_bytes(&self) -> u64 {
        match self.accept {
            Accept::Keep => u64::MAX,
            Accept::Image { .. } => MOST_IMAGE_BYTES,
        }
    }

    /// Whether the file is still to come.
    pub fn is_open(&self) -> bool {
        match &self.accept {
            Accept::Keep => true,
            Accept::Image { to, .. } => !to.exists(),
        }
    }

    fn accept(&self, state: &State) -> Result<(), Failure> {
        let Accept::Image { to, size } = &self.accept else {
            return Ok(());
        };
        if let Err(reason) = check_image(&self.part.path, *size) {
            self.part
                .remove()
                .map_err(|source| Failure::write(&self.part.path, source, None, 0))?;
            return Err(Failure::Content(reason));
        }
        self.part
            .becomes(to)
            .map_err(|source| Failure::write(to, source, None, state.have()))
    }
}

/// Decodes the whole image; its size must be the annotated one, as stored or upright.
fn check_image(path: &Path, size: Option<(u64, u64)>) -> Result<(), String> {
    use crate::data::decode::{probe, read_rgb};
    let header = probe(path).map_err(|error| error.reason())?;
    read_rgb(path).map_err(|error| error.reason())?;
    let wide = |(width, height): (u32, u32)| (u64::from(width), u64::from(height));
    match size {
        Some(size) if size != wide(header.upright()) && size != wide(header.stored) => {
            let (width, height) = header.upright();
            Err(format!(
                "the image there is {width} x {height}, but {} x {} is annotated",
                size.0, size.1
            ))
        }
        _ => Ok(()),
    }
}

/// How far a job is, for whoever shows it.
#[derive(Debug, Default)]
pub(super) struct State {
    have: AtomicU64,
    /// 0: not known.
    length: AtomicU64,
}

impl State {
    pub fn have(&self) -> u64 {
        self.have.load(Ordering::Relaxed)
    }

    pub fn length(&self) -> Option<u64> {
        Some(self.length.load(Ordering::Relaxed)).filter(|&length| length > 0)
    }

    fn set(&self, have: u64, length: Option<u64>) {
        self.have.store(have, Ordering::Relaxed);
        self.length.store(length.unwrap_or(0), Ordering::Relaxed);
    }
}

/// Why a try failed, in words that follow the address.
#[derive(Debug)]
pub(super) enum Failure {
    /// May be over in a moment.
    Passing {
        reason: String,
        wait: Duration,
    },
    /// Nobody answers at this address.
    Unreachable(String),
    /// What came is not what should have come.
    Content(String),
    /// Asking again is of no use.
    Final(String),
    Write {
        path: PathBuf,
        source: io::Error,
        /// Bytes that are still to come, where that is known.
        missing: Option<u64>,
    },
    Stopped,
}

impl Failure {
    /// Whether the other files of the same errand will fail too.
    pub fn ends_everything(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Write { .. })
    }

    fn passing(reason: impl Into<String>) -> Self {
        Self::Passing {
            reason: reason.into(),
            wait: Duration::ZERO,
        }
    }

    fn write(path: &Path, source: io::Error, length: Option<u64>, have: u64) -> Self {
        Self::Write {
            path: path.to_path_buf(),
            source,
            missing: length.map(|length| length.saturating_sub(have)),
        }
    }
}

fn too_large(length: u64, job: &Job) -> Failure {
    Failure::Final(format!(
        "it has {}, and {} is the most for an image",
        bytes(length),
        bytes(job.most_bytes())
    ))
}

fn cut(error: &io::Error, have: u64, length: Option<u64>) -> Failure {
    let of = match length {
        Some(length) => format!("{have} of {length} bytes"),
        None => format!("{have} bytes"),
    };
    let why = match error
        .get_ref()
        .and_then(|e| e.downcast_ref::<ureq::Error>())
    {
        Some(ureq::Error::Timeout(_)) => no_answer(),
        _ if error.kind() == ErrorKind::UnexpectedEof => "the connection was closed".to_owned(),
        _ => error.to_string(),
    };
    Failure::passing(format!("{why} after {of}"))
}

fn no_answer() -> String {
    format!("no answer for {} seconds", SILENCE.as_secs())
}

fn failure(error: &ureq::Error) -> Failure {
    match error {
        ureq::Error::HostNotFound => unknown_host(),
        // The standard library gives the failed look-up of a name no kind of its own.
        ureq::Error::Io(e) if e.to_string().contains("lookup address") => unknown_host(),
        ureq::Error::ConnectionFailed => Failure::Unreachable("no connection".to_owned()),
        ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => {
            Failure::Unreachable(format!(
                "no connection within {} seconds",
                CONNECT.as_secs()
            ))
        }
        ureq::Error::Timeout(_) => Failure::passing(no_answer()),
        ureq::Error::Io(e) => match e.kind() {
            ErrorKind::ConnectionRefused
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NetworkDown
            | ErrorKind::AddrNotAvailable => Failure::Unreachable(e.to_string()),
            _ => Failure::passing(e.to_string()),
        },
        ureq::Error::Protocol(e) => Failure::passing(e.to_string()),
        ureq::Error::BodyStalled => Failure::passing(no_answer()),
        other => Failure::Final(other.to_string()),
    }
}

fn unknown_host() -> Failure {
    Failure::Unreachable("the name of the host cannot be resolved (is there a network?)".to_owned())
}

/// A status that brings no file.
fn refused(status: StatusCode, headers: &HeaderMap) -> Failure {
    let reason = match status.canonical_reason() {
        Some(words) => format!("the server answers {} ({words})", status.as_u16()),
        None => format!("the server answers {}", status.as_u16()),
    };
    let passing = status.is_server_error()
        || matches!(
            status,
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS
        );
    if !passing {
        return Failure::Final(reason);
    }
    let wait = text(headers, header::RETRY_AFTER).and_then(|seconds| seconds.parse().ok());
    Failure::Passing {
        reason,
        wait: Duration::from_secs(wait.unwrap_or(0)),
    }
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<String> {
    let value = headers.get(name)?.to_str().ok()?.trim();
    (!value.is_empty()).then(|| value.to_owned())
}

/// First byte and length of the whole from `bytes 100-199/200`.
fn content_range(value: &str) -> Option<(u64, Option<u64>)> {
    let (range, length) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    Some((start.trim().parse().ok()?, length.trim().parse().ok()))
}

fn pause(duration: Duration, stop: &AtomicBool) -> Result<(), Failure> {
    const SLICE: Duration = Duration::from_millis(50);
    let mut left = duration;
    while !left.is_zero() {
        if stop.load(Ordering::Relaxed) {
            return Err(Failure::Stopped);
        }
        let slice = left.min(SLICE);
        thread::sleep(slice);
        left -= slice;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_coco_go_to_the_mirror() {
        let client =
            |mirror: Option<&str>| Client::new(Retry::default(), mirror.map(str::to_owned), None);
        let url = "http://images.cocodataset.org/train2017/9.jpg";
        assert_eq!(client(None).address(url), url);
        let mirrored = client(Some("http://localhost:1/coco/"));
        assert_eq!(
            mirrored.address(url),
            "http://localhost:1/coco/train2017/9.jpg"
        );
        for other in [
            "http://images.cocodataset.org.evil.org/a.jpg",
            "https://a.org/http://images.cocodataset.org/a.jpg",
        ] {
            assert_eq!(mirrored.address(other), other);
        }
    }

    #[test]
    fn a_content_range_gives_its_start_and_the_whole_length() {
        assert_eq!(content_range("bytes 100-199/200"), Some((100, Some(200))));
        assert_eq!(content_range("bytes 0-0/*"), Some((0, None)));
        for bad in ["", "bytes", "bytes */200", "100-199/200", "bytes -5/9"] {
            assert_eq!(content_range(bad), None, "{bad}");
        }
    }
}
