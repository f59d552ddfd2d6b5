//! Streams and events. A stream is a thread that works its queue off; an event counts how often it was recorded and how
//! often that was reached.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

type Op = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    ops: VecDeque<Op>,
    /// Also that which runs.
    outstanding: usize,
    closed: bool,
}

#[derive(Default)]
pub struct Stream {
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// All streams of the process, for what concerns a whole context.
static STREAMS: Mutex<Vec<Arc<Stream>>> = Mutex::new(Vec::new());

impl Stream {
    fn start() -> Arc<Self> {
        let stream = Arc::new(Stream::default());
        let own = stream.clone();
        std::thread::spawn(move || {
            loop {
                let mut queue = own.queue.lock().unwrap();
                while queue.ops.is_empty() && !queue.closed {
                    queue = own.changed.wait(queue).unwrap();
                }
                let Some(op) = queue.ops.pop_front() else {
                    return;
                };
                drop(queue);
                op();
                own.queue.lock().unwrap().outstanding -= 1;
                own.changed.notify_all();
            }
        });
        STREAMS.lock().unwrap().push(stream.clone());
        stream
    }

    pub fn push(&self, op: impl FnOnce() + Send + 'static) {
        let mut queue = self.queue.lock().unwrap();
        queue.outstanding += 1;
        queue.ops.push_back(Box::new(op));
        self.changed.notify_all();
    }

    pub fn is_idle(&self) -> bool {
        self.queue.lock().unwrap().outstanding == 0
    }

    pub fn wait(&self) {
        let mut queue = self.queue.lock().unwrap();
        while queue.outstanding > 0 {
            queue = self.changed.wait(queue).unwrap();
        }
    }

    fn close(&self) {
        self.queue.lock().unwrap().closed = true;
        self.changed.notify_all();
    }
}

/// Handles are leaked references; the null stream is one like the others.
pub fn create() -> *const Stream {
    Arc::into_raw(Stream::start())
}

pub unsafe fn of(handle: *const Stream) -> Arc<Stream> {
    static DEFAULT: OnceLock<Arc<Stream>> = OnceLock::new();
    if handle.is_null() {
        return DEFAULT.get_or_init(Stream::start).clone();
    }
    unsafe {
        Arc::increment_strong_count(handle);
        Arc::from_raw(handle)
    }
}

pub unsafe fn destroy(handle: *const Stream) {
    let stream = unsafe { of(handle) };
    stream.close();
    STREAMS.lock().unwrap().retain(|s| !Arc::ptr_eq(s, &stream));
}

pub fn all() -> Vec<Arc<Stream>> {
    STREAMS.lock().unwrap().clone()
}

/// Whether all streams came to rest in that time.
pub fn rest(at_most: Duration) -> bool {
    let end = Instant::now() + at_most;
    while !all().iter().all(|s| s.is_idle()) {
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    true
}

#[derive(Default)]
pub struct Event {
    /// Recorded, reached.
    counts: Mutex<(u64, u64)>,
    changed: Condvar,
}

impl Event {
    fn recorded(&self) -> u64 {
        let mut counts = self.counts.lock().unwrap();
        counts.0 += 1;
        counts.0
    }

    fn reached(&self, record: u64) {
        let mut counts = self.counts.lock().unwrap();
        counts.1 = counts.1.max(record);
        self.changed.notify_all();
    }

    pub fn is_done(&self) -> bool {
        let counts = self.counts.lock().unwrap();
        counts.1 >= counts.0
    }

    pub fn wait(&self) {
        let record = self.counts.lock().unwrap().0;
        self.wait_for(record);
    }

    fn wait_for(&self, record: u64) {
        let mut counts = self.counts.lock().unwrap();
        while counts.1 < record {
            counts = self.changed.wait(counts).unwrap();
        }
    }
}

pub fn event() -> *const Event {
    Arc::into_raw(Arc::new(Event::default()))
}

pub unsafe fn event_of(handle: *const Event) -> Arc<Event> {
    unsafe {
        Arc::increment_strong_count(handle);
        Arc::from_raw(handle)
    }
}

/// Reached once all these streams have come so far.
pub fn record(event: &Arc<Event>, streams: &[Arc<Stream>]) {
    let record = event.recorded();
    if streams.is_empty() {
        event.reached(record);
    }
    let left = Arc::new(AtomicUsize::new(streams.len()));
    for stream in streams {
        let (event, left) = (event.clone(), left.clone());
        stream.push(move || {
            if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                event.reached(record);
            }
        });
    }
}

pub fn wait_event(event: &Arc<Event>, streams: &[Arc<Stream>]) {
    let record = event.counts.lock().unwrap().0;
    for stream in streams {
        let event = event.clone();
        stream.push(move || event.wait_for(record));
    }
}
