//! Convolutions of NHWC activations.

use super::cpu::lanes::Lanes;
use super::extension::{BiasArgs, ConvArgs, Kernels, Record, available};
use super::ranks::Param;
use burn::backend::Dispatch;
use burn::tensor::Tensor;
use burn::tensor::module::conv2d;
use burn::tensor::ops::ConvOptions;

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
    let weight = weight.tensor;
    let [k, _, ci, co] = weight.dims();
    let [n, h, w, _] = x.dims();
    if k == 1 && stride == 1 && groups == 1 {
        return x
            .reshape([n * h * w, ci])
            .matmul(weight.reshape([ci, co]))
            .reshape([n, h, w, co]);
    }
    let p = k / 2;
    let options = ConvOptions::new([stride, stride], [p, p], [1, 1], groups);
    let y = conv2d(
        x.permute([0, 3, 1, 2]),
        weight.permute([3, 2, 0, 1]),
        None,
        options,
    );
    y.permute([0, 2, 3, 1])
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
