//! Convolutions of NHWC activations.

use super::extension::{ConvArgs, Kernels, available};
use super::lanes;
use burn::backend::Dispatch;
use burn::tensor::Tensor;
use burn::tensor::module::conv2d;
use burn::tensor::ops::ConvOptions;

/// Convolution without bias, padding `k/2`.
///
/// `x` `[n, h, w, ci]`, `weight` `[k, k, ci/groups, co]` -> `[n, ceil(h/stride), ceil(w/stride), co]`.
pub fn conv(x: Tensor<4>, weight: Tensor<4>, stride: usize, groups: usize) -> Tensor<4> {
    if available(&x) {
        let a = ConvArgs {
            stride,
            groups,
            lanes: lanes(),
        };
        return Tensor::from_dispatch(<Dispatch as Kernels>::conv(
            x.into_dispatch(),
            weight.into_dispatch(),
            a,
        ));
    }
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
pub fn conv_bias(x: Tensor<4>, weight: Tensor<4>, bias: Tensor<1>) -> Tensor<4> {
    let y = conv(x, weight, 1, 1);
    if available(&y) {
        return Tensor::from_dispatch(<Dispatch as Kernels>::bias(
            y.into_dispatch(),
            bias.into_dispatch(),
            lanes(),
        ));
    }
    let c = bias.dims()[0];
    y + bias.reshape([1, 1, 1, c])
}
