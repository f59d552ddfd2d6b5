//! Kernels of a training step on the CPU: float32, NHWC, vector instructions chosen when the program runs.

pub mod isa;
pub mod simd;
