//! Operations on GPUs as CubeCL kernels.

pub(crate) mod arrays;
pub mod loss;
pub mod optim;
