//! The detector's operations on GPUs: CubeCL kernels for CUDA and for WebGPU.
//!
//! `kernels.rs` implements the operations; the files beside it hold their kernels. Sums are float32 and in an order
//! that shapes give; activations may be float16 or bfloat16.

// Kernels know no variable without a value, take their sizes one by one, and ask apart what is known when they are
// built. Tensors are large, and what holds them here is short-lived.
#![allow(
    unused_assignments,
    clippy::too_many_arguments,
    clippy::collapsible_if,
    clippy::large_enum_variant
)]

mod attention;
mod conv;
#[cfg(feature = "cuda")]
mod cudnn;
#[cfg(feature = "cuda")]
mod cudnn_stream;
mod depthwise;
mod failure;
pub mod flat;
mod gemm;
mod image;
mod kernels;
pub mod lanes;
mod launch;
#[cfg(feature = "cuda")]
mod library;
pub mod loss;
mod norm;
mod norm_kernels;
pub mod optim;
mod pool;
pub mod precision;
pub mod running;
mod shape;
mod sums;

pub(crate) use kernels::gather_through_host;

use super::DeviceFailure;
use burn::tensor::{DType, Device, Tensor};
use burn_cubecl::Cube;

/// Pixels `[n, h, w, c]` of 0..=255 as an activation of 0..1 and of size `to` on a GPU.
pub(super) fn image(
    pixels: &[u8],
    shape: [usize; 4],
    to: [usize; 2],
    device: &Device,
    dtype: DType,
) -> Tensor<4> {
    let cube = flat::cube_device(device).expect("the caller asked for the device's kind");
    let t = match to == [shape[1], shape[2]] {
        true => image::image(pixels, shape, &cube, dtype),
        false => image::resized(pixels, shape, to, &cube, dtype),
    };
    let t = Tensor::from_primitive::<Cube>(t);
    if device.is_autodiff() {
        Tensor::from_inner(t)
    } else {
        t
    }
}

/// See [`super::values`].
pub(super) fn values<const D: usize>(t: Tensor<D>) -> Result<Vec<f32>, DeviceFailure> {
    let t = flat::primitive(t).expect("the caller asked where it is");
    flat::download(&launch::dense(t))
}

/// Whether a device is one of these.
pub fn is_gpu(device: &Device) -> bool {
    flat::cube_device(device).is_some()
}

#[cfg(test)]
mod lane_tests;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
