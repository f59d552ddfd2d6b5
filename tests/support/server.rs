//! A small HTTP server on this machine, with the faults that servers have.

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// What the server does instead of answering as it should, each once.
#[derive(Debug, Clone)]
pub enum Fault {
    /// An answer of this status, without a body.
    Status(u16),
    /// Announces everything, sends so many bytes of it, closes the connection.
    CutAfter(usize),
    /// Sends so many bytes and then nothing, until the server ends.
    StallAfter(usize),
    /// Sends these bytes in place of the file, as a whole and with their own length.
    Instead(Vec<u8>),
}

#[derive(Debug, Clone)]
pub struct Served {
    pub bytes: Vec<u8>,
    pub etag: Option<String>,
    pub ranges: bool,
    /// What `Content-Length` says instead of the truth.
    pub length: Option<usize>,
    pub faults: VecDeque<Fault>,
}

impl Served {
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self {
            bytes: bytes.into(),
            etag: Some("\"v1\"".to_owned()),
            ranges: true,
            length: None,
            faults: VecDeque::new(),
        }
    }

    pub fn faults(mut self, faults: impl IntoIterator<Item = Fault>) -> Self {
        self.faults.extend(faults);
        self
    }
}

/// A request that came, with the headers that matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub path: String,
    pub range: Option<String>,
    pub if_range: Option<String>,
}

pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    files: Mutex<HashMap<String, Served>>,
    requests: Mutex<Vec<Request>>,
    ended: AtomicBool,
}

impl Server {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let accepting = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.ended.load(Ordering::Relaxed) {
                    return;
                }
                let shared = accepting.clone();
                // A client that goes away is no failure of the server.
                thread::spawn(move || stream.and_then(|stream| shared.answer(&stream)));
            }
        });
        Self { address, shared }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn serve(&self, path: &str, file: Served) {
        let mut files = self.shared.files.lock().unwrap();
        files.insert(path.to_owned(), file);
    }

    /// The next answer for a path stalls after so many bytes.
    pub fn stall(&self, path: &str, after: usize) {
        let mut files = self.shared.files.lock().unwrap();
        let file = files.get_mut(path).expect("it is served");
        file.faults.push_back(Fault::StallAfter(after));
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().unwrap().clone()
    }

    /// Where the requests for a path began, in their order; `None`: no range was asked for.
    pub fn ranges_of(&self, path: &str) -> Vec<Option<String>> {
        let requests = self.requests();
        let of_path = requests.into_iter().filter(|request| request.path == path);
        of_path.map(|request| request.range).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn answer(&self, stream: &TcpStream) -> std::io::Result<()> {
        let request = read_request(stream)?;
        self.requests.lock().unwrap().push(request.clone());
        let (file, fault) = {
            let mut files = self.files.lock().unwrap();
            match files.get_mut(&request.path) {
                Some(file) => {
                    let fault = file.faults.pop_front();
                    (Some(file.clone()), fault)
                }
                None => (None, None),
            }
        };
        let mut stream = stream;
        let Some(file) = file else {
            return head(stream, "404 Not Found", &[], 0);
        };
        if let Some(Fault::Status(status)) = fault {
            return head(stream, &format!("{status} Fault"), &[], 0);
        }
        if let Some(Fault::Instead(bytes)) = fault {
            head(stream, "200 OK", &[], bytes.len())?;
            return stream.write_all(&bytes);
        }
        let same = request.if_range.is_none() || request.if_range == file.etag;
        let start = request
            .range
            .as_deref()
            .filter(|_| file.ranges && same)
            .and_then(|range| range.strip_prefix("bytes="))
            .and_then(|range| range.strip_suffix('-'))
            .and_then(|start| start.parse::<usize>().ok());
        let whole = file.bytes.len();
        let mut headers = Vec::new();
        headers.extend(file.etag.map(|etag| format!("ETag: {etag}")));
        let (status, body) = match start {
            Some(start) if start >= whole => {
                headers.push(format!("Content-Range: bytes */{whole}"));
                return head(stream, "416 Range Not Satisfiable", &headers, 0);
            }
            Some(start) => {
                let last = whole - 1;
                headers.push(format!("Content-Range: bytes {start}-{last}/{whole}"));
                ("206 Partial Content", &file.bytes[start..])
            }
            None => ("200 OK", &file.bytes[..]),
        };
        head(stream, status, &headers, file.length.unwrap_or(body.len()))?;
        match fault {
            Some(Fault::CutAfter(count)) => stream.write_all(&body[..count.min(body.len())])?,
            Some(Fault::StallAfter(count)) => {
                stream.write_all(&body[..count.min(body.len())])?;
                while !self.ended.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(10));
                }
            }
            _ => stream.write_all(body)?,
        }
        stream.shutdown(Shutdown::Both)
    }
}

fn head(
    mut stream: &TcpStream,
    status: &str,
    headers: &[String],
    length: usize,
) -> std::io::Result<()> {
    let mut text =
        format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n");
    for header in headers {
        text.push_str(header);
        text.push_str("\r\n");
    }
    text.push_str("\r\n");
    stream.write_all(text.as_bytes())
}

fn read_request(stream: &TcpStream) -> std::io::Result<Request> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let mut request = Request {
        path: first.split(' ').nth(1).unwrap_or_default().to_owned(),
        range: None,
        if_range: None,
    };
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(':') else {
            break;
        };
        let value = Some(value.trim().to_owned());
        match name.to_ascii_lowercase().as_str() {
            "range" => request.range = value,
            "if-range" => request.if_range = value,
            _ => {}
        }
    }
    Ok(request)
}
