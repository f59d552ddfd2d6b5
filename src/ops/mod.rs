//! The detector's differentiable operations on NHWC activations (`[batch, height, width, channel]`).
//!
//! Each is written here in plain operations of the tensor library, which run on any device and in float32 and
//! float64; they are the reference for the kernels that go underneath. The network calls nothing else.

mod conv;
pub mod cpu;
mod norm;
mod shape;

pub use conv::{conv, conv_bias};
pub use norm::{BatchStats, NORM_EPS, Norm, batch_norm};
pub use shape::{add, attend, concat, max_pool5, split_channels, upsample2};

use burn::tensor::{Tensor, activation};

/// What follows a batch norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    Silu,
    Identity,
}

/// Convolution without bias, padding `k/2`, batch norm, activation.
///
/// `x` `[n, h, w, ci]`, `weight` `[k, k, ci/groups, co]`, `gamma` and `beta` `[co]`.
/// Returns `[n, ceil(h/stride), ceil(w/stride), co]`, and the batch's statistics where they were used.
#[allow(clippy::too_many_arguments)]
pub fn conv_norm_act(
    x: Tensor<4>,
    weight: Tensor<4>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    stride: usize,
    groups: usize,
    norm: Norm,
    act: Activation,
) -> (Tensor<4>, Option<BatchStats>) {
    let (y, stats) = batch_norm(conv(x, weight, stride, groups), gamma, beta, norm);
    let y = match act {
        Activation::Silu => activation::silu(y),
        Activation::Identity => y,
    };
    (y, stats)
}
