//! Kernels of a training step on the CPU: float32, NHWC, vector instructions chosen when the program runs.

pub mod aligned;
pub mod attention;
mod buffer;
pub mod conv;
pub mod isa;
pub mod lanes;
pub mod matrix;
pub mod norm;
pub mod peak;
pub mod pool;
pub mod resize;
pub mod shape;
pub mod simd;
#[cfg(test)]
pub(crate) mod testing;
