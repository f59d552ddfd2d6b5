//! Convolutions of NHWC activations.

use super::cpu::lanes::Lanes;
use super::extension::{BiasArgs, ConvArgs, Kernels, Record, available};
use super::ranks::Param;
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
        let a = ConvArgs {
            stride,
            groups,
            lanes: lanes.clone(),
            slot: weight.slot,
            filters: Record::new(),
        };
        return Tensor::from_dispatch(<Dispatch as Kernels>::conv(
            x.into_dispatch(),
            weight.tensor.into_dispatch(),
            a,
        ));
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
    let y = conv(x, weight, 1, 1, lanes);
    let bias = bias.into();
    if available(&y) {
        let a = BiasArgs {
            lanes: lanes.clone(),
            slot: bias.slot,
        };
        return Tensor::from_dispatch(<Dispatch as Kernels>::bias(
            y.into_dispatch(),
            bias.tensor.into_dispatch(),
            a,
        ));
    }
    let c = bias.tensor.dims()[0];
    y + bias.tensor.reshape([1, 1, 1, c])
}
