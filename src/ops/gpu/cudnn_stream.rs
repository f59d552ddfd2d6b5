//! cuDNN's handle on a runtime's thread, and the stream that it works on; `cudnn.rs` says why so.

use super::cudnn::{Descriptors, Key, Server};
use burn_std::stream::StreamId;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
use cubecl::server::Server as _;
use cudarc::cudnn::{result as cudnn, sys};
use cudarc::driver::sys as driver;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ptr::null_mut;

#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error("{0:?}")]
    Cudnn(#[from] cudnn::CudnnError),
    #[error("{0:?}")]
    Driver(#[from] cudarc::driver::DriverError),
    #[error("a buffer has no memory: {0}")]
    Memory(String),
}

/// cuDNN on the runtime's thread.
pub(super) struct Lib {
    pub handle: sys::cudnnHandle_t,
    side: Option<Side>,
    /// CubeCL's streams, by the number of the stream that asked.
    streams: HashMap<StreamId, Option<driver::CUstream>>,
    pub descriptors: HashMap<Key, Descriptors>,
}

thread_local! {
    // runtimes of several devices have threads of their own
    static LIB: RefCell<Option<Lib>> = const { RefCell::new(None) };
}

/// Calls `f` with this thread's library, which must be a runtime's.
pub(super) fn with_lib<R>(f: impl FnOnce(&mut Lib) -> Result<R, Refused>) -> Result<R, Refused> {
    LIB.with(|lib| {
        let mut lib = lib.borrow_mut();
        let lib = match lib.take() {
            Some(known) => lib.insert(known),
            None => lib.insert(Lib::new()?),
        };
        f(lib)
    })
}

impl Lib {
    fn new() -> Result<Self, Refused> {
        Ok(Self {
            handle: cudnn::create_handle()?,
            side: None,
            streams: HashMap::new(),
            descriptors: HashMap::new(),
        })
    }

    /// The current stream of the runtime, where it can be told.
    fn stream(&mut self, server: &Server) -> Option<driver::CUstream> {
        let id = StreamId::current();
        if let Some(known) = self.streams.get(&id) {
            return *known;
        }
        let stream = stream_of(server, id);
        self.streams.insert(id, stream);
        stream
    }

    /// Calls `f` with cuDNN on a stream that is in order with the runtime's.
    pub fn ordered(
        &mut self,
        server: &Server,
        f: impl FnOnce(&mut Self) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        if let Some(stream) = self.stream(server) {
            // SAFETY: a live stream of the current context.
            unsafe { cudnn::set_stream(self.handle, stream.cast())? };
            return f(self);
        }
        let side = match self.side.take() {
            Some(side) => side,
            None => Side::new()?,
        };
        // SAFETY: as above.
        unsafe { cudnn::set_stream(self.handle, side.stream.cast())? };
        let result = side.before().and_then(|()| {
            f(self)?;
            side.after()
        });
        self.side = Some(side);
        result
    }
}

/// The stream in the pool's place of `id`, where the server's `Debug` output shows it.
pub(super) fn stream_of(server: &Server, id: StreamId) -> Option<driver::CUstream> {
    let places = u64::from(CubeClRuntimeConfig::get().streaming.max_streams);
    let own = id.value % places;
    let at = server.stream_ids().iter().position(|s| s.value == own)?;
    let text = format!("{server:?}");
    let mut found: Vec<driver::CUstream> = vec![];
    for part in text.split("Stream { sys: 0x").skip(1) {
        let digits: String = part.chars().take_while(char::is_ascii_hexdigit).collect();
        if let Ok(address) = usize::from_str_radix(&digits, 16) {
            found.push(address as driver::CUstream);
        }
    }
    found.get(at).copied()
}

/// A stream of our own, ordered against all streams of the context by events (CUDA 12.5).
struct Side {
    context: driver::CUcontext,
    stream: driver::CUstream,
    before: driver::CUevent,
    after: driver::CUevent,
}

impl Side {
    fn new() -> Result<Self, Refused> {
        use cudarc::driver::result::{event, stream};
        let mut context = null_mut();
        // SAFETY: the runtime has made its context the thread's current one.
        unsafe { driver::cuCtxGetCurrent(&mut context).result()? };
        let flags = driver::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        Ok(Self {
            context,
            stream: stream::create(stream::StreamKind::NonBlocking)?,
            before: event::create(flags)?,
            after: event::create(flags)?,
        })
    }
    /// What was submitted to the context so far comes first.
    fn before(&self) -> Result<(), Refused> {
        // SAFETY: context, stream and event are alive.
        unsafe {
            driver::cuCtxRecordEvent(self.context, self.before).result()?;
            driver::cuStreamWaitEvent(self.stream, self.before, 0).result()?;
        }
        Ok(())
    }
    /// What is submitted from now on comes after what is on the stream.
    fn after(&self) -> Result<(), Refused> {
        // SAFETY: as above.
        unsafe {
            driver::cuEventRecord(self.after, self.stream).result()?;
            driver::cuCtxWaitEvent(self.context, self.after).result()?;
        }
        Ok(())
    }
}
