//! What a process allows its GPUs: set before the first step, by the engine.

use std::sync::atomic::{AtomicBool, Ordering};

static TF32: AtomicBool = AtomicBool::new(false);
static DETERMINISTIC: AtomicBool = AtomicBool::new(false);
static CUDNN: AtomicBool = AtomicBool::new(true);

/// Whether products of float32 values may round them to TF32 (10 bits of mantissa). Whoever allows it says so.
pub fn set_tf32(on: bool) {
    TF32.store(on, Ordering::Relaxed);
}

/// See [`set_tf32`].
pub fn tf32() -> bool {
    TF32.load(Ordering::Relaxed)
}

/// Whether runs have to repeat their bits, on any number of ranks: fixed algorithms, one call for each lane.
pub fn set_deterministic(on: bool) {
    DETERMINISTIC.store(on, Ordering::Relaxed);
}

/// See [`set_deterministic`].
pub fn deterministic() -> bool {
    DETERMINISTIC.load(Ordering::Relaxed)
}

/// Whether cuDNN computes convolutions where it can; otherwise the kernels here do, as without it.
pub fn set_cudnn(on: bool) {
    CUDNN.store(on, Ordering::Relaxed);
}

/// See [`set_cudnn`].
pub fn cudnn() -> bool {
    CUDNN.load(Ordering::Relaxed)
}
