//! The operations that have kernels of their own, as an extension of the tensor library's backends.
//!
//! [`Kernels`] holds forward and backward of each. `Flex` (the CPU backend) implements them in `flex.rs`, and one
//! implementation for `Autodiff` over any backend, in `autodiff.rs`, is all that knows of gradients. The functions of
//! `ops` call these where [`available`] says so, and plain tensor operations elsewhere.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};
use burn::tensor::{DType, Tensor};

/// Convolutions of NHWC activations.
#[backend_extension(Flex, Autodiff)]
pub trait Kernels: Backend {
    /// `x` `[n, h, w, ci]`, `w` `[k, k, ci/groups, co]` -> `[n, ceil(h/stride), ceil(w/stride), co]`.
    fn conv(
        x: FloatTensor<Self>,
        w: FloatTensor<Self>,
        stride: usize,
        groups: usize,
        lanes: usize,
    ) -> FloatTensor<Self>;

    /// Gradient with respect to `x`, whose shape is `like`'s.
    fn conv_dx(
        dy: FloatTensor<Self>,
        w: FloatTensor<Self>,
        like: FloatTensor<Self>,
        stride: usize,
        groups: usize,
    ) -> FloatTensor<Self>;

    /// Gradient with respect to the weights, whose shape is `like`'s.
    fn conv_dw(
        dy: FloatTensor<Self>,
        x: FloatTensor<Self>,
        like: FloatTensor<Self>,
        stride: usize,
        groups: usize,
        lanes: usize,
    ) -> FloatTensor<Self>;
}

/// Whether the kernels take this tensor: float32 on the CPU backend.
pub fn available<const D: usize>(x: &Tensor<D>) -> bool {
    x.dtype() == DType::F32 && super::kernels_enabled()
}
