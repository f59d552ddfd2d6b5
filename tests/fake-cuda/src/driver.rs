//! The driver: GPUs, memory, copies; kernels do nothing.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Mutex;
use std::time::Duration;

use crate::stream::{self, Event, Stream};
use crate::{OK, number, uuid, visible, write_text};

const INVALID_VALUE: c_int = 1;
const OUT_OF_MEMORY: c_int = 2;
const NO_DEVICE: c_int = 100;
const INVALID_DEVICE: c_int = 101;
const NOT_FOUND: c_int = 500;
const NOT_READY: c_int = 600;

/// An address that goes into another thread.
#[derive(Clone, Copy)]
pub struct Address(pub u64);

unsafe impl Send for Address {}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_: c_uint) -> c_int {
    match number("FAKE_CUDA_INIT", 0) as c_int {
        OK if visible().is_empty() => NO_DEVICE,
        code => code,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    unsafe { *version = number("FAKE_CUDA_DRIVER", 13_000) as c_int };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    unsafe { *count = visible().len() as c_int };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, index: c_int) -> c_int {
    if index as usize >= visible().len() {
        return INVALID_DEVICE;
    }
    unsafe { *device = index };
    OK
}

fn physical(device: c_int) -> usize {
    visible().get(device as usize).copied().unwrap_or_default()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(text: *mut c_char, room: c_int, device: c_int) -> c_int {
    let name = format!("Fake GPU {}", physical(device));
    unsafe { write_text(&name, text, room as usize) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid(to: *mut [u8; 16], device: c_int) -> c_int {
    unsafe { *to = uuid(physical(device)) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(to: *mut [u8; 16], device: c_int) -> c_int {
    unsafe { cuDeviceGetUuid(to, device) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(v: *mut c_int, attribute: c_int, _: c_int) -> c_int {
    let value = match attribute {
        1..=3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65_535,
        8 => 49_152,
        10 => 32,
        16 => 132,
        39 => 2048,
        75 => 9,
        76 => 0,
        81 | 97 => 232_448,
        // waiting for values in memory
        92 | 122 => 1,
        _ => 0,
    };
    unsafe { *v = value };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _: c_int) -> c_int {
    unsafe { *bytes = (number("FAKE_CUDA_MEMORY", 8192) as usize) << 20 };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(text: *mut c_char, room: c_int, d: c_int) -> c_int {
    let id = format!("0000:{:02x}:00.0", physical(d) + 1);
    unsafe { write_text(&id, text, room as usize) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(ctx: *mut *mut c_void, device: c_int) -> c_int {
    unsafe { *ctx = (device as usize + 0x1000) as *mut c_void };
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(_: c_int) -> c_int {
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(_: *mut c_void) -> c_int {
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> c_int {
    for stream in stream::all() {
        stream.wait();
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetStreamPriorityRange(low: *mut c_int, high: *mut c_int) -> c_int {
    unsafe { (*low, *high) = (0, -5) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(_: c_int, text: *mut *const c_char) -> c_int {
    unsafe { *text = c"an error of the fake driver".as_ptr() };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: c_int, text: *mut *const c_char) -> c_int {
    let name = match code {
        OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
        NO_DEVICE => c"CUDA_ERROR_NO_DEVICE",
        803 => c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        999 => c"CUDA_ERROR_UNKNOWN",
        _ => return INVALID_VALUE,
    };
    unsafe { *text = name.as_ptr() };
    OK
}

/// NVRTC asks for a private table; it does without.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetExportTable(table: *mut *const c_void, _: *const c_void) -> c_int {
    unsafe { *table = std::ptr::null() };
    NOT_FOUND
}

// --- streams and events ---

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(to: *mut *const Stream, _: c_uint) -> c_int {
    unsafe { *to = stream::create() };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(
    to: *mut *const Stream,
    flags: c_uint,
    _: c_int,
) -> c_int {
    unsafe { cuStreamCreate(to, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamDestroy_v2(handle: *const Stream) -> c_int {
    unsafe { stream::destroy(handle) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamSynchronize(handle: *const Stream) -> c_int {
    unsafe { stream::of(handle) }.wait();
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamQuery(handle: *const Stream) -> c_int {
    match unsafe { stream::of(handle) }.is_idle() {
        true => OK,
        false => NOT_READY,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWaitEvent(
    handle: *const Stream,
    event: *const Event,
    _: c_uint,
) -> c_int {
    unsafe { stream::wait_event(&stream::event_of(event), &[stream::of(handle)]) };
    OK
}

/// Flags: 0 at least the value, 1 equal.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWaitValue64_v2(
    handle: *const Stream,
    address: u64,
    value: u64,
    flags: c_uint,
) -> c_int {
    let address = Address(address);
    unsafe { stream::of(handle) }.push(move || {
        let address = address;
        loop {
            let now = unsafe { std::ptr::read_volatile(address.0 as *const u64) };
            if now == value || flags == 0 && now >= value {
                return;
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    });
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(to: *mut *const Event, _: c_uint) -> c_int {
    unsafe { *to = stream::event() };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(event: *const Event, handle: *const Stream) -> c_int {
    unsafe { stream::record(&stream::event_of(event), &[stream::of(handle)]) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxRecordEvent(_: *mut c_void, event: *const Event) -> c_int {
    unsafe { stream::record(&stream::event_of(event), &stream::all()) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxWaitEvent(_: *mut c_void, event: *const Event) -> c_int {
    unsafe { stream::wait_event(&stream::event_of(event), &stream::all()) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventQuery(event: *const Event) -> c_int {
    match unsafe { stream::event_of(event) }.is_done() {
        true => OK,
        false => NOT_READY,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventSynchronize(event: *const Event) -> c_int {
    unsafe { stream::event_of(event) }.wait();
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(event: *const Event) -> c_int {
    drop(unsafe { std::sync::Arc::from_raw(event) });
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(
    ms: *mut f32,
    _: *const Event,
    _: *const Event,
) -> c_int {
    unsafe { *ms = 1.0 };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime_v2(
    ms: *mut f32,
    a: *const Event,
    b: *const Event,
) -> c_int {
    unsafe { cuEventElapsedTime(ms, a, b) }
}

// --- memory ---

static MEMORY: Mutex<Option<HashMap<u64, Box<[u128]>>>> = Mutex::new(None);

fn allocate(bytes: usize) -> u64 {
    // more than is needed: blocks begin at multiples of 256, as the driver's do
    let memory = vec![0_u128; bytes.div_ceil(16) + 17].into_boxed_slice();
    let address = (memory.as_ptr() as u64).next_multiple_of(256);
    let mut all = MEMORY.lock().unwrap();
    all.get_or_insert_default().insert(address, memory);
    address
}

fn release(address: u64) {
    // what is never given back by a hanging collective is kept
    let memory = MEMORY
        .lock()
        .unwrap()
        .get_or_insert_default()
        .remove(&address);
    drop(memory);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(to: *mut u64, bytes: usize) -> c_int {
    if bytes > (number("FAKE_CUDA_MEMORY", 8192) as usize) << 20 {
        return OUT_OF_MEMORY;
    }
    unsafe { *to = allocate(bytes) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(to: *mut u64, bytes: usize, _: *const Stream) -> c_int {
    unsafe { cuMemAlloc_v2(to, bytes) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(to: *mut u64, bytes: usize, _: c_uint) -> c_int {
    unsafe { *to = allocate(bytes) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocHost_v2(to: *mut u64, bytes: usize) -> c_int {
    unsafe { cuMemHostAlloc(to, bytes, 0) }
}

/// Waits for the device, as the driver does; a collective that hangs keeps the memory.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: u64) -> c_int {
    if stream::rest(Duration::from_secs(5)) {
        release(address);
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeAsync(address: u64, handle: *const Stream) -> c_int {
    unsafe { stream::of(handle) }.push(move || release(address));
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(address: u64) -> c_int {
    cuMemFree_v2(address)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> c_int {
    let all = (number("FAKE_CUDA_MEMORY", 8192) as usize) << 20;
    unsafe { (*free, *total) = (all, all) };
    OK
}

unsafe fn copy(from: u64, to: u64, bytes: usize) {
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(to: u64, from: u64, bytes: usize) -> c_int {
    unsafe { copy(from, to, bytes) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(to: u64, from: u64, bytes: usize) -> c_int {
    unsafe { copy(from, to, bytes) };
    OK
}

/// The source is read at once, as that of pageable memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: u64,
    from: u64,
    bytes: usize,
    handle: *const Stream,
) -> c_int {
    let staged = unsafe { std::slice::from_raw_parts(from as *const u8, bytes) }.to_vec();
    unsafe { stream::of(handle) }.push(move || unsafe { copy(staged.as_ptr() as u64, to, bytes) });
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: u64,
    from: u64,
    bytes: usize,
    handle: *const Stream,
) -> c_int {
    unsafe { stream::of(handle) }.push(move || unsafe { copy(from, to, bytes) });
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoDAsync_v2(
    to: u64,
    from: u64,
    bytes: usize,
    handle: *const Stream,
) -> c_int {
    unsafe { cuMemcpyDtoHAsync_v2(to, from, bytes, handle) }
}

/// `CUDA_MEMCPY2D`, without arrays.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Copy2d {
    from_x: usize,
    from_y: usize,
    from_type: c_uint,
    from_host: u64,
    from_device: u64,
    from_array: u64,
    from_pitch: usize,
    to_x: usize,
    to_y: usize,
    to_type: c_uint,
    to_host: u64,
    to_device: u64,
    to_array: u64,
    to_pitch: usize,
    width: usize,
    height: usize,
}

const HOST: c_uint = 1;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpy2DAsync_v2(what: *const Copy2d, handle: *const Stream) -> c_int {
    let c = unsafe { *what };
    let from = if c.from_type == HOST {
        c.from_host
    } else {
        c.from_device
    };
    let to = if c.to_type == HOST {
        c.to_host
    } else {
        c.to_device
    };
    let row = move |y: usize| from + ((c.from_y + y) * c.from_pitch + c.from_x) as u64;
    let staged: Option<Vec<Vec<u8>>> = (c.from_type == HOST).then(|| {
        let read = |y| unsafe { std::slice::from_raw_parts(row(y) as *const u8, c.width) }.to_vec();
        (0..c.height).map(read).collect()
    });
    unsafe { stream::of(handle) }.push(move || {
        for y in 0..c.height {
            let from = match &staged {
                Some(rows) => rows[y].as_ptr() as u64,
                None => row(y),
            };
            let to = to + ((c.to_y + y) * c.to_pitch + c.to_x) as u64;
            unsafe { copy(from, to, c.width) };
        }
    });
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8Async(
    to: u64,
    value: u8,
    bytes: usize,
    handle: *const Stream,
) -> c_int {
    unsafe { stream::of(handle) }
        .push(move || unsafe { std::ptr::write_bytes(to as *mut u8, value, bytes) });
    OK
}

// --- kernels, which do nothing ---

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(to: *mut *mut c_void, _: *const c_void) -> c_int {
    unsafe { *to = 0x4000 as *mut c_void };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    to: *mut *mut c_void,
    _: *mut c_void,
    _: *const c_char,
) -> c_int {
    unsafe { *to = 0x5000 as *mut c_void };
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetAttribute(_: *mut c_void, _: c_int, _: c_int) -> c_int {
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchKernel() -> c_int {
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchKernelEx() -> c_int {
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn cuTensorMapEncodeTiled() -> c_int {
    OK
}
