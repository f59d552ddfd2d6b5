//! The detector's differentiable operations on NHWC activations (`[batch, height, width, channel]`).
//!
//! Each is written in plain operations of the tensor library, which run on any device and in float32 and float64: the
//! reference. In float32 on the CPU the kernels of `cpu/` go underneath. The network calls nothing else.

mod autodiff;
mod conv;
pub mod cpu;
mod extension;
mod flex;
mod memory;
mod norm;
mod shape;

pub use conv::{conv, conv_bias};
pub use memory::trim;
pub use norm::{BatchStats, ConvNorm, NORM_EPS, Norm, conv_norm_act, norm_act};
pub use shape::{add, attend, concat, max_pool5, part, split_channels, upsample2};

use burn::backend::Dispatch;
use burn::tensor::Tensor;
use extension::Kernels;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

static LANES: AtomicUsize = AtomicUsize::new(4);

/// Lanes that sums over images are formed in (`cpu::lanes`), for graphs that are built from now on.
pub fn set_lanes(lanes: usize) {
    LANES.store(lanes.max(1), Ordering::Relaxed);
}

/// See [`set_lanes`].
pub fn lanes() -> usize {
    LANES.load(Ordering::Relaxed)
}

static KERNELS: AtomicBool = AtomicBool::new(true);

/// Whether operations use the kernels where they can; tests compare with and without.
pub fn set_kernels(on: bool) {
    KERNELS.store(on, Ordering::Relaxed);
}

fn kernels_enabled() -> bool {
    KERNELS.load(Ordering::Relaxed)
}

/// Whether the kernels apply to this tensor: float32 on the CPU.
pub fn kernels_apply<const D: usize>(x: &Tensor<D>) -> bool {
    extension::available(x)
}

/// `[1]` zero whose backward pass gives `x` the gradient `gradient`, computed outside the graph. It must be the end of
/// the graph, alone or as a summand.
pub fn with_gradient<const D: usize>(x: Tensor<D>, gradient: Tensor<D>) -> Tensor<1> {
    Tensor::from_dispatch(<Dispatch as Kernels>::injected(
        x.into_dispatch(),
        gradient.into_dispatch(),
    ))
}

/// What follows a batch norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    Silu,
    Identity,
}
