//! NCCL between processes of this machine.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::driver::Address;
use crate::exchange::{Exchange, Miss};
use crate::math;
use crate::stream::{self, Stream};
use crate::{OK, number, variable};

const SYSTEM: c_int = 2;
const INVALID_ARGUMENT: c_int = 4;
const INVALID_USAGE: c_int = 5;
const REMOTE: c_int = 6;
const IN_PROGRESS: c_int = 7;
const MAGIC: u32 = 0xcafe_beef;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId([c_char; 128]);

/// The beginning of `ncclConfig_t`.
#[repr(C)]
pub struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

pub struct Comm {
    exchange: Exchange,
    state: AtomicI32,
    blocking: bool,
    /// Calls that still report to be in progress.
    pending: AtomicI32,
    collectives: AtomicU64,
    /// By peer and whether this rank sends.
    messages: Mutex<HashMap<(usize, bool), u64>>,
}

/// Whether `what` is to fail now.
fn fails(what: &str, rank: Option<usize>, collective: Option<u64>) -> bool {
    let Some(text) = variable("FAKE_NCCL_FAIL") else {
        return false;
    };
    let (text, at) = match text.split_once('#') {
        Some((text, at)) => (text.to_owned(), at.parse::<u64>().ok()),
        None => (text, None),
    };
    let (name, who) = match text.split_once('@') {
        Some((name, who)) => (name, who.parse::<usize>().ok()),
        None => (&text[..], None),
    };
    name == what
        && who.is_none_or(|w| rank.is_none_or(|r| r == w))
        && at.is_none_or(|a| collective.is_none_or(|c| c >= a))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> c_int {
    unsafe { *version = number("FAKE_NCCL_VERSION", 23_003) as c_int };
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(code: c_int) -> *const c_char {
    match code {
        OK => c"no error",
        SYSTEM => c"unhandled system error",
        INVALID_ARGUMENT => c"invalid argument",
        INVALID_USAGE => c"invalid usage",
        REMOTE => c"remote process exited or there was a network error",
        IN_PROGRESS => c"NCCL operation in progress",
        _ => c"unknown result code",
    }
    .as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_: *mut c_void) -> *const c_char {
    c"the fake library was told to fail".as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> c_int {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    if fails("id", None, None) {
        return SYSTEM;
    }
    let parent = variable("FAKE_NCCL_FOLDER").map_or_else(std::env::temp_dir, PathBuf::from);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder = parent.join(format!("fake-nccl-{}-{number}", std::process::id()));
    let mut bytes = [0; 128];
    for (to, from) in bytes.iter_mut().zip(folder.as_os_str().as_encoded_bytes()) {
        *to = *from as c_char;
    }
    unsafe { *id = UniqueId(bytes) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    to: *mut *const Comm,
    world: c_int,
    id: UniqueId,
    rank: c_int,
    config: *const Config,
) -> c_int {
    if unsafe { (*config).magic } != MAGIC || rank >= world {
        return INVALID_ARGUMENT;
    }
    let bytes: Vec<u8> =
        id.0.iter()
            .take_while(|c| **c != 0)
            .map(|c| *c as u8)
            .collect();
    let rank = rank as usize;
    let comm = Arc::new(Comm {
        exchange: Exchange {
            folder: PathBuf::from(String::from_utf8_lossy(&bytes).into_owned()),
            rank,
            world: world as usize,
            aborted: AtomicBool::new(false),
            notices: !fails("silent", None, None),
        },
        state: AtomicI32::new(IN_PROGRESS),
        blocking: unsafe { (*config).blocking } != 0,
        pending: AtomicI32::new(0),
        collectives: AtomicU64::new(0),
        messages: Mutex::default(),
    });
    unsafe { *to = Arc::into_raw(comm.clone()) };
    let blocking = comm.blocking;
    let thread = std::thread::spawn(move || {
        let state = meet(&comm);
        comm.state.store(state, Ordering::Release);
        state
    });
    match blocking {
        true => thread.join().unwrap_or(SYSTEM),
        false => IN_PROGRESS,
    }
}

/// Every rank leaves its card; all are there in the end.
fn meet(comm: &Comm) -> c_int {
    let e = &comm.exchange;
    if fails("init-hang", Some(e.rank), None) {
        e.spin();
        return SYSTEM;
    }
    if fails("init", Some(e.rank), None) {
        return SYSTEM;
    }
    if fs::create_dir_all(&e.folder).is_err() {
        return SYSTEM;
    }
    let text = format!("{} {}", std::process::id(), e.world);
    let own = e.folder.join(format!("card-{}", e.rank));
    if fs::write(&own, text).is_err() || fs::rename(&own, e.card(e.rank)).is_err() {
        return SYSTEM;
    }
    for rank in 0..e.world {
        loop {
            if e.aborted.load(Ordering::Acquire) {
                // the folder may have been made again after the abort
                let _ = fs::remove_dir_all(&e.folder);
                return SYSTEM;
            }
            let card = fs::read_to_string(e.card(rank));
            if let Ok(card) = card.or_else(|_| fs::read_to_string(e.left(rank))) {
                let world = card.split_whitespace().nth(1).map(str::to_owned);
                if world != Some(e.world.to_string()) {
                    return INVALID_USAGE;
                }
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    OK
}

unsafe fn comm_of(handle: *const Comm) -> Arc<Comm> {
    unsafe {
        Arc::increment_strong_count(handle);
        Arc::from_raw(handle)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(handle: *const Comm, to: *mut c_int) -> c_int {
    let comm = unsafe { comm_of(handle) };
    let state = comm.state.load(Ordering::Acquire);
    let pending = comm
        .pending
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| {
            (n > 0).then(|| n - 1)
        });
    unsafe {
        *to = if state == OK && pending.is_ok() {
            IN_PROGRESS
        } else {
            state
        }
    };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommAbort(handle: *const Comm) -> c_int {
    let comm = unsafe { Arc::from_raw(handle) };
    comm.exchange.aborted.store(true, Ordering::Release);
    let _ = fs::remove_dir_all(&comm.exchange.folder);
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommFinalize(_: *const Comm) -> c_int {
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommDestroy(handle: *const Comm) -> c_int {
    let comm = unsafe { Arc::from_raw(handle) };
    let e = &comm.exchange;
    // a rank that comes up later still looks for the card; the last one takes the folder along
    let _ = fs::rename(e.card(e.rank), e.left(e.rank));
    if (0..e.world).all(|rank| e.left(rank).exists()) {
        let _ = fs::remove_dir_all(&e.folder);
    }
    OK
}

/// What all ranks of a collective must have in common, and this rank's part of it.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Reduce = 0,
    Gather = 1,
    Broadcast = 2,
    Scatter = 3,
}

struct Collective {
    kind: Kind,
    from: Address,
    to: Address,
    count: usize,
    dtype: c_int,
    /// Operation or root.
    op: c_int,
}

unsafe fn collective(what: Collective, handle: *const Comm, stream: *const Stream) -> c_int {
    let comm = unsafe { comm_of(handle) };
    let Some(width) = math::width(what.dtype) else {
        return INVALID_ARGUMENT;
    };
    let state = comm.state.load(Ordering::Acquire);
    if state != OK {
        return if state == IN_PROGRESS {
            INVALID_USAGE
        } else {
            state
        };
    }
    let number = comm.collectives.fetch_add(1, Ordering::AcqRel);
    if fails("enqueue", Some(comm.exchange.rank), Some(number)) {
        return INVALID_USAGE;
    }
    if !comm.blocking {
        comm.pending.store(1, Ordering::Release);
    }
    let own = comm.clone();
    unsafe { stream::of(stream) }.push(move || run(&own, &what, width, number));
    if comm.blocking { OK } else { IN_PROGRESS }
}

fn run(comm: &Comm, what: &Collective, width: usize, number: u64) {
    let e = &comm.exchange;
    if fails("exit", Some(e.rank), Some(number)) {
        std::process::exit(9);
    }
    if fails("hang", Some(e.rank), Some(number)) {
        return e.spin();
    }
    if fails("async", Some(e.rank), Some(number)) {
        comm.state.store(SYSTEM, Ordering::Release);
        return e.spin();
    }
    // scattering, every rank reads all of the others' values
    let len = what.count
        * width
        * if what.kind == Kind::Scatter {
            e.world
        } else {
            1
        };
    let sends = what.kind != Kind::Broadcast || what.op as usize == e.rank;
    let own = match sends {
        true => unsafe { std::slice::from_raw_parts(what.from.0 as *const u8, len) }.to_vec(),
        false => vec![],
    };
    let name = |from: usize, to: usize| format!("c{number}-{from}-{to}");
    let head = [
        what.kind as u64,
        what.count as u64,
        what.dtype as u64,
        what.op as u64,
    ];
    let head: Vec<u8> = head.into_iter().flat_map(u64::to_le_bytes).collect();
    let names: Vec<_> = (0..e.world)
        .filter(|&r| r != e.rank)
        .map(|r| name(e.rank, r))
        .collect();
    if !names.is_empty() {
        e.send(&names, &[&head, &own]);
    }
    let mut all = vec![];
    for rank in 0..e.world {
        if rank == e.rank {
            all.push(own.clone());
            continue;
        }
        match e.receive(rank, &name(rank, e.rank)) {
            // as the real library: what does not fit together never ends
            Ok(bytes) if bytes.get(..head.len()) != Some(&head[..]) => return e.spin(),
            Ok(bytes) => all.push(bytes[head.len()..].to_vec()),
            Err(Miss::Aborted) => return,
            Err(Miss::Dead) => {
                comm.state.store(REMOTE, Ordering::Release);
                return e.spin();
            }
        }
    }
    let result = match what.kind {
        Kind::Gather => all.concat(),
        Kind::Broadcast => all.swap_remove(what.op as usize),
        Kind::Reduce | Kind::Scatter => {
            let mut sum = all[0].clone();
            for other in &all[1..] {
                math::join(&mut sum, other, what.dtype, what.op);
            }
            match what.kind {
                Kind::Scatter => {
                    let part = what.count * width;
                    sum[e.rank * part..][..part].to_vec()
                }
                _ => sum,
            }
        }
    };
    unsafe { std::ptr::copy(result.as_ptr(), what.to.0 as *mut u8, result.len()) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllReduce(
    from: u64,
    to: u64,
    count: usize,
    dtype: c_int,
    op: c_int,
    comm: *const Comm,
    stream: *const Stream,
) -> c_int {
    let (from, to) = (Address(from), Address(to));
    let kind = Kind::Reduce;
    let what = Collective {
        kind,
        from,
        to,
        count,
        dtype,
        op,
    };
    unsafe { collective(what, comm, stream) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllGather(
    from: u64,
    to: u64,
    count: usize,
    dtype: c_int,
    comm: *const Comm,
    stream: *const Stream,
) -> c_int {
    let (from, to) = (Address(from), Address(to));
    let kind = Kind::Gather;
    let what = Collective {
        kind,
        from,
        to,
        count,
        dtype,
        op: 0,
    };
    unsafe { collective(what, comm, stream) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclBroadcast(
    from: u64,
    to: u64,
    count: usize,
    dtype: c_int,
    root: c_int,
    comm: *const Comm,
    stream: *const Stream,
) -> c_int {
    let (from, to) = (Address(from), Address(to));
    let kind = Kind::Broadcast;
    let what = Collective {
        kind,
        from,
        to,
        count,
        dtype,
        op: root,
    };
    unsafe { collective(what, comm, stream) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclReduceScatter(
    from: u64,
    to: u64,
    count: usize,
    dtype: c_int,
    op: c_int,
    comm: *const Comm,
    stream: *const Stream,
) -> c_int {
    let (from, to) = (Address(from), Address(to));
    let kind = Kind::Scatter;
    let what = Collective {
        kind,
        from,
        to,
        count,
        dtype,
        op,
    };
    unsafe { collective(what, comm, stream) }
}

struct Message {
    comm: Arc<Comm>,
    address: Address,
    bytes: usize,
    peer: usize,
    sends: bool,
    number: u64,
}

thread_local! {
    /// Depth of groups, and what they hold with the stream it goes to.
    static GROUP: RefCell<(usize, Vec<(Message, Arc<Stream>)>)> = const { RefCell::new((0, vec![])) };
}

unsafe fn message(
    (address, count, dtype): (u64, usize, c_int),
    peer: c_int,
    sends: bool,
    comm: *const Comm,
    stream: *const Stream,
) -> c_int {
    let comm = unsafe { comm_of(comm) };
    let Some(width) = math::width(dtype) else {
        return INVALID_ARGUMENT;
    };
    let peer = peer as usize;
    let number = {
        let mut messages = comm.messages.lock().unwrap();
        let next = messages.entry((peer, sends)).or_default();
        *next += 1;
        *next
    };
    if fails("enqueue", Some(comm.exchange.rank), Some(number)) {
        return INVALID_USAGE;
    }
    let message = Message {
        comm,
        address: Address(address),
        bytes: count * width,
        peer,
        sends,
        number,
    };
    let stream = unsafe { stream::of(stream) };
    GROUP.with_borrow_mut(|(_, held)| held.push((message, stream)));
    flush()
}

/// Hands what the outermost group holds to its streams.
fn flush() -> c_int {
    let held = GROUP.with_borrow_mut(|(depth, held)| match depth {
        0 => std::mem::take(held),
        _ => vec![],
    });
    let mut by_stream: Vec<(Arc<Stream>, Vec<Message>)> = vec![];
    for (message, stream) in held {
        match by_stream.iter_mut().find(|(s, _)| Arc::ptr_eq(s, &stream)) {
            Some((_, messages)) => messages.push(message),
            None => by_stream.push((stream, vec![message])),
        }
    }
    for (stream, messages) in by_stream {
        stream.push(move || exchange(&messages));
    }
    OK
}

fn exchange(messages: &[Message]) {
    let name = |from: usize, to: usize, number: u64| format!("m{number}-{from}-{to}");
    for m in messages.iter().filter(|m| m.sends) {
        let e = &m.comm.exchange;
        if fails("hang", Some(e.rank), Some(m.number)) {
            return e.spin();
        }
        let bytes = unsafe { std::slice::from_raw_parts(m.address.0 as *const u8, m.bytes) };
        e.send(&[name(e.rank, m.peer, m.number)], &[bytes]);
    }
    for m in messages.iter().filter(|m| !m.sends) {
        let e = &m.comm.exchange;
        match e.receive(m.peer, &name(m.peer, e.rank, m.number)) {
            Ok(bytes) if bytes.len() != m.bytes => return e.spin(),
            Ok(bytes) => unsafe {
                std::ptr::copy(bytes.as_ptr(), m.address.0 as *mut u8, bytes.len());
            },
            Err(Miss::Aborted) => return,
            Err(Miss::Dead) => {
                m.comm.state.store(REMOTE, Ordering::Release);
                return e.spin();
            }
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclSend(
    from: u64,
    count: usize,
    dtype: c_int,
    peer: c_int,
    comm: *const Comm,
    stream: *const Stream,
) -> c_int {
    unsafe { message((from, count, dtype), peer, true, comm, stream) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclRecv(
    to: u64,
    count: usize,
    dtype: c_int,
    peer: c_int,
    comm: *const Comm,
    stream: *const Stream,
) -> c_int {
    unsafe { message((to, count, dtype), peer, false, comm, stream) }
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> c_int {
    GROUP.with_borrow_mut(|(depth, _)| *depth += 1);
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> c_int {
    GROUP.with_borrow_mut(|(depth, _)| *depth = depth.saturating_sub(1));
    flush()
}
