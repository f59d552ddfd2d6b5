//! Kernels of a training step on the CPU: float32, NHWC, vector instructions chosen when the program runs.

mod buffer;
pub mod conv;
pub mod isa;
pub mod lanes;
pub mod simd;
