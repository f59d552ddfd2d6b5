//! A stand-in for `libcuda.so.1`, `libnvidia-ml.so.1`, `libnvrtc.so.12`, `libcudnn.so.9` and `libnccl.so.2`, all in one
//! shared library: links under these names lead to it. Device memory is host memory; streams are threads with a queue, so
//! that what is not ordered by events goes wrong here too; kernels do nothing, but cuDNN's convolutions are
//! computed; NCCL ranks are real processes that exchange
//! files in a folder that the unique id names.
//!
//! Environment: `FAKE_CUDA_DEVICES` (number, 2), `FAKE_CUDA_MEMORY` (MiB of each, 8192), `FAKE_CUDA_INIT` (code that
//! `cuInit` gives), `FAKE_CUDA_DRIVER` (13000), `FAKE_CUDA_BUSY` (`device:process:MiB` with commas between),
//! `FAKE_NVRTC_VERSION` (12.4), `FAKE_NCCL_VERSION` (23003), `FAKE_NCCL_FOLDER` (for what ranks exchange), and
//! `FAKE_NCCL_FAIL`: `what`, `what@rank`, `what#collective` or `what@rank#collective` with
//!
//! | what | |
//! |---|---|
//! | `id` | no unique id can be made |
//! | `init` | the communicator fails |
//! | `init-hang` | the communicator never comes up |
//! | `enqueue` | a collective is refused |
//! | `async` | a collective does not end, and an asynchronous error tells of it |
//! | `hang` | a collective does not end, and nothing tells of it |
//! | `exit` | the process ends in a collective |
//! | `silent` | ranks do not notice that others have died |

#![allow(non_snake_case, clippy::missing_safety_doc)]

mod cudnn;
mod driver;
mod exchange;
mod math;
mod nccl;
mod nvml;
mod stream;

use std::ffi::{c_char, c_int};

const OK: c_int = 0;

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|v| !v.is_empty())
}

fn number(name: &str, default: i64) -> i64 {
    variable(name)
        .and_then(|v| v.parse().ok())
        .unwrap_or(default)
}

/// Writes a text with its zero, cut off where it does not fit.
unsafe fn write_text(text: &str, to: *mut c_char, room: usize) {
    let len = text.len().min(room.saturating_sub(1));
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, len);
        *to.add(len) = 0;
    }
}

/// Physical numbers of the GPUs that `CUDA_VISIBLE_DEVICES` leaves.
fn visible() -> Vec<usize> {
    let all = 0..number("FAKE_CUDA_DEVICES", 2) as usize;
    match std::env::var("CUDA_VISIBLE_DEVICES") {
        // as the driver does: up to the first that does not exist
        Ok(list) => list
            .split(',')
            .map_while(|n| n.trim().parse().ok().filter(|n| all.contains(n)))
            .collect(),
        Err(_) => all.collect(),
    }
}

fn uuid(physical: usize) -> [u8; 16] {
    let mut bytes = [0xfa; 16];
    bytes[15] = physical as u8;
    bytes
}

fn uuid_text(physical: usize) -> String {
    let hex: String = uuid(physical).iter().map(|b| format!("{b:02x}")).collect();
    let parts = [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ];
    format!("GPU-{}", parts.join("-"))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> c_int {
    let text = variable("FAKE_NVRTC_VERSION").unwrap_or_else(|| "12.4".into());
    let (a, b) = text.split_once('.').unwrap_or((&text, "0"));
    unsafe {
        *major = a.parse().unwrap_or(12);
        *minor = b.parse().unwrap_or(0);
    }
    OK
}
