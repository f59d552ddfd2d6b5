//! One GPU for collectives: context, streams, events, memory. All calls return at once, except where it is said.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{DriverError, result, sys};

use crate::dist::error::DistError;
use crate::gpu::cuda::name;

/// From here on a driver knows events of a whole context.
const CONTEXT_EVENTS: i32 = 12_050;

fn failed(what: &str) -> impl Fn(DriverError) -> DistError + '_ {
    move |error| DistError::system(format!("{what} on the GPU"), name(error))
}

/// A GPU's primary context, which is the one that the tensor library computes in.
#[derive(Debug)]
pub(super) struct Gpu {
    device: sys::CUdevice,
    context: sys::CUcontext,
    /// Whether the driver knows events of a whole context.
    pub(super) context_events: bool,
    /// Whether a stream can wait for a value in memory.
    pub(super) value_waits: bool,
    pub(super) uuid: [u8; 16],
}

// SAFETY: a context is a handle that any thread may make its current one; all calls here do so first.
unsafe impl Send for Gpu {}
// SAFETY: as above; the driver's functions may be called by several threads.
unsafe impl Sync for Gpu {}

impl Gpu {
    pub(super) fn open(index: u32) -> Result<Arc<Self>, DistError> {
        result::init().map_err(failed("start the driver"))?;
        let device = result::device::get(index as i32).map_err(failed("find the device"))?;
        let uuid = result::device::get_uuid(device).map_err(failed("ask for the device's name"))?;
        let mut version = 0;
        // SAFETY: the pointer is to a live integer.
        unsafe { sys::cuDriverGetVersion(&raw mut version) }
            .result()
            .map_err(failed("ask for the version"))?;
        let waits = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS;
        // SAFETY: `device` is one of the driver's.
        let waits = unsafe { result::device::get_attribute(device, waits) };
        // SAFETY: `device` is one of the driver's; released when this is dropped.
        let context =
            unsafe { result::primary_ctx::retain(device) }.map_err(failed("open a context"))?;
        let gpu = Gpu {
            device,
            context,
            context_events: version >= CONTEXT_EVENTS,
            value_waits: waits.is_ok_and(|can| can == 1),
            uuid: uuid.bytes.map(|b| b as u8),
        };
        gpu.enter()?;
        Ok(Arc::new(gpu))
    }

    /// Makes it the current one of this thread.
    pub(super) fn enter(&self) -> Result<(), DistError> {
        // SAFETY: the context is retained.
        unsafe { result::ctx::set_current(self.context) }.map_err(failed("enter a context"))
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: retained once by `open`. Streams and events that were made hold this, so they are gone.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// A stream beside those of the tensor library.
#[derive(Debug)]
pub(super) struct Stream {
    gpu: Arc<Gpu>,
    raw: sys::CUstream,
}

// SAFETY: a handle into the driver, which takes calls of any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Self, DistError> {
        gpu.enter()?;
        let raw = result::stream::create(result::stream::StreamKind::NonBlocking)
            .map_err(failed("create a stream"))?;
        Ok(Stream {
            gpu: gpu.clone(),
            raw,
        })
    }

    pub(super) fn raw(&self) -> *mut c_void {
        self.raw.cast()
    }

    /// All that was handed to the GPU so far comes before what comes on this stream from now on.
    ///
    /// # Errors
    /// A driver that knows no events of contexts: waiting on the host instead could last for ever.
    pub(super) fn after_everything(&self) -> Result<(), DistError> {
        self.gpu.enter()?;
        if !self.gpu.context_events {
            return Err(DistError::system(
                "order a collective after other work on the GPU",
                "this needs a driver for CUDA 12.5 or newer",
            ));
        }
        let event = Event::new(&self.gpu)?;
        // SAFETY: context, event and stream are live. The driver keeps an event's work when its handle is destroyed.
        unsafe {
            sys::cuCtxRecordEvent(self.gpu.context, event.raw)
                .result()
                .map_err(failed("record an event"))?;
            result::stream::wait_event(
                self.raw,
                event.raw,
                sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT,
            )
            .map_err(failed("wait for an event"))
        }
    }

    /// What comes on this stream from now on waits until the word at `address` has this value.
    pub(super) fn after_value(&self, address: u64, value: u64) -> Result<(), DistError> {
        self.gpu.enter()?;
        let equal = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_EQ as u32;
        // SAFETY: the address is that of a word whose owner is kept until the wait is over.
        unsafe { sys::cuStreamWaitValue64_v2(self.raw, address, value, equal) }
            .result()
            .map_err(failed("wait for a value"))
    }

    /// An event after what is on this stream so far.
    pub(super) fn mark(&self) -> Result<Event, DistError> {
        let event = Event::new(&self.gpu)?;
        // SAFETY: event and stream are live and of one context.
        unsafe { result::event::record(event.raw, self.raw) }.map_err(failed("record an event"))?;
        Ok(event)
    }

    /// Copies to the GPU; the source may be changed at once.
    pub(super) fn upload(&self, to: u64, bytes: &[u8]) -> Result<(), DistError> {
        self.gpu.enter()?;
        // SAFETY: `to` is memory of a [`Memory`] with room for `bytes`. Pageable memory is read before the call returns.
        unsafe { result::memcpy_htod_async(to, bytes, self.raw) }.map_err(failed("copy values to"))
    }

    /// Copies from the GPU and waits for it. Nothing may be on the stream that could hang.
    pub(super) fn download(&self, to: &mut [u8], from: u64) -> Result<(), DistError> {
        self.gpu.enter()?;
        // SAFETY: `from` is memory of a [`Memory`] that has as many bytes; `to` is borrowed until the copy is done.
        unsafe {
            result::memcpy_dtoh_async(to, from, self.raw)
                .and_then(|()| result::stream::synchronize(self.raw))
        }
        .map_err(failed("copy values from"))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: made by `new`; what is on it still runs to its end.
            let _ = unsafe { result::stream::destroy(self.raw) };
        }
    }
}

/// A point on a stream.
#[derive(Debug)]
pub(super) struct Event {
    gpu: Arc<Gpu>,
    raw: sys::CUevent,
}

// SAFETY: a handle into the driver, which takes calls of any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    fn new(gpu: &Arc<Gpu>) -> Result<Self, DistError> {
        gpu.enter()?;
        let raw = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
            .map_err(failed("create an event"))?;
        Ok(Event {
            gpu: gpu.clone(),
            raw,
        })
    }

    /// Whether the stream has come here.
    pub(super) fn has_passed(&self) -> Result<bool, DistError> {
        self.gpu.enter()?;
        // SAFETY: the event is live.
        match unsafe { result::event::query(self.raw) } {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => Err(failed("do a collective")(error)),
        }
    }

    /// Lets all that is handed to the GPU from now on come after it. `false`: this driver cannot, the host has to wait.
    pub(super) fn before_everything(&self) -> Result<bool, DistError> {
        if !self.gpu.context_events {
            return Ok(false);
        }
        self.gpu.enter()?;
        // SAFETY: context and event are live.
        unsafe { sys::cuCtxWaitEvent(self.gpu.context, self.raw) }
            .result()
            .map_err(failed("wait for an event"))?;
        Ok(true)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: made by `new`; the driver keeps what waits for it.
            let _ = unsafe { result::event::destroy(self.raw) };
        }
    }
}

/// Memory of the GPU that belongs to a stream: nothing waits when it is freed.
#[derive(Debug)]
pub(super) struct Memory {
    stream: Arc<Stream>,
    pub(super) address: u64,
}

impl Memory {
    pub(super) fn new(stream: &Arc<Stream>, bytes: usize) -> Result<Self, DistError> {
        stream.gpu.enter()?;
        // SAFETY: freed once, when this is dropped, on the same stream.
        let address = unsafe { result::malloc_async(stream.raw, bytes.max(1)) }
            .map_err(failed(&format!("take {bytes} bytes")))?;
        Ok(Memory {
            stream: stream.clone(),
            address,
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.stream.gpu.enter().is_ok() {
            // SAFETY: taken by `new`; on the stream, all that uses it comes before.
            let _ = unsafe { result::free_async(self.address, self.stream.raw) };
        }
    }
}
