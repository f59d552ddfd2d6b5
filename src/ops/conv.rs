//! Convolutions of NHWC activations.

use super::cpu::lanes::Lanes;
use super::extension::{BiasArgs, ConvArgs, Kernels, Record, available};
use super::ranks::{Param, Slot};
use super::reference;
use burn::backend::Dispatch;
use burn::tensor::Tensor;

/// Convolution without bias, padding `k/2`.
///
/// `x` `[n, h, w, ci]`, `weight` `[k, k, ci/groups, co]` -> `[n, ceil(h/stride), ceil(w/stride), co]`.
pub fn conv(
    x: Tensor<4>,
    weight: impl Into<Param<4>>,
    stride: usize,
    groups: usize,
    lanes: &Lanes,
) -> Tensor<4> {
    let weight = weight.into();
    if available(&x) {
        let a = args(stride, groups, lanes, weight.slot);
        let (x, w) = (x.into_dispatch(), weight.tensor.into_dispatch());
        return Tensor::from_dispatch(<Dispatch as Kernels>::conv(x, w, a));
    }
    reference::conv(x, weight.tensor, stride, groups)
}

/// Convolution with bias `[co]`, stride 1, as at the end of a head.
pub fn conv_bias(
    x: Tensor<4>,
    weight: impl Into<Param<4>>,
    bias: impl Into<Param<1>>,
    lanes: &Lanes,
) -> Tensor<4> {
    let (weight, bias) = (weight.into(), bias.into());
    if available(&x) {
        let a = args(1, 1, lanes, weight.slot);
        let of_bias = BiasArgs {
            lanes: lanes.clone(),
            slot: bias.slot,
        };
        let (x, w) = (x.into_dispatch(), weight.tensor.into_dispatch());
        let b = bias.tensor.into_dispatch();
        let y = <Dispatch as Kernels>::conv_bias(x, w, b, a, of_bias);
        return Tensor::from_dispatch(y);
    }
    let c = bias.tensor.dims()[0];
    reference::conv(x, weight.tensor, 1, 1) + bias.tensor.reshape([1, 1, 1, c])
}

pub(super) fn args(stride: usize, groups: usize, lanes: &Lanes, slot: Option<Slot>) -> ConvArgs {
    ConvArgs {
        stride,
        groups,
        lanes: lanes.clone(),
        slot,
        filters: Record::new(),
    }
}
