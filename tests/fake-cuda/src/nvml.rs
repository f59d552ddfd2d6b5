//! NVML: who is busy.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::{OK, number, uuid_text, variable, write_text};

const NOT_FOUND: c_int = 6;
const TOO_SMALL: c_int = 7;

#[repr(C)]
pub struct Process {
    pid: c_uint,
    memory: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

#[repr(C)]
pub struct Memory {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// Processes on a GPU with their MiB.
fn busy(physical: usize) -> Vec<(u32, u64)> {
    let text = variable("FAKE_CUDA_BUSY").unwrap_or_default();
    let one = |item: &str| {
        let mut parts = item.split(':').map(str::parse::<u64>);
        let (device, pid, mib) = (
            parts.next()?.ok()?,
            parts.next()?.ok()?,
            parts.next()?.ok()?,
        );
        (device as usize == physical).then_some((pid as u32, mib))
    };
    text.split(',').filter_map(one).collect()
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> c_int {
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> c_int {
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(text: *mut c_char, room: c_uint) -> c_int {
    unsafe { write_text("580.00.00", text, room as usize) };
    OK
}

/// A handle is the physical number plus one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(
    uuid: *const c_char,
    device: *mut *mut c_void,
) -> c_int {
    let wanted = unsafe { CStr::from_ptr(uuid) }.to_string_lossy();
    let mut all = 0..number("FAKE_CUDA_DEVICES", 2) as usize;
    match all.find(|&n| uuid_text(n) == wanted) {
        Some(n) => {
            unsafe { *device = (n + 1) as *mut c_void };
            OK
        }
        None => NOT_FOUND,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: *mut c_void,
    count: *mut c_uint,
    processes: *mut Process,
) -> c_int {
    let all = busy(device as usize - 1);
    unsafe {
        let room = *count as usize;
        *count = all.len() as c_uint;
        if processes.is_null() || room < all.len() {
            return if all.is_empty() { OK } else { TOO_SMALL };
        }
        for (i, (pid, mib)) in all.into_iter().enumerate() {
            processes.add(i).write(Process {
                pid,
                memory: mib << 20,
                gpu_instance: u32::MAX,
                compute_instance: u32::MAX,
            });
        }
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    device: *mut c_void,
    memory: *mut Memory,
) -> c_int {
    let total = (number("FAKE_CUDA_MEMORY", 8192) as u64) << 20;
    let used: u64 = busy(device as usize - 1)
        .iter()
        .map(|(_, mib)| mib << 20)
        .sum();
    unsafe {
        (*memory).total = total;
        (*memory).reserved = 0;
        (*memory).used = used;
        (*memory).free = total - used.min(total);
    }
    OK
}
