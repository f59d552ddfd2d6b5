//! Pooling, upsampling, concatenation, residuals and the products of an attention block.

use burn::tensor::module::{interpolate, max_pool2d};
use burn::tensor::ops::{InterpolateMode, InterpolateOptions, MaxPoolOptions};
use burn::tensor::{Tensor, activation};

/// Maximum over 5x5 windows, stride 1, padding 2: `[n, h, w, c]` -> `[n, h, w, c]`.
pub fn max_pool5(x: Tensor<4>) -> Tensor<4> {
    let options = MaxPoolOptions::new([5, 5])
        .with_stride([1, 1])
        .with_padding([2, 2]);
    max_pool2d(x.permute([0, 3, 1, 2]), options).permute([0, 2, 3, 1])
}

/// Nearest-neighbour doubling: `[n, h, w, c]` -> `[n, 2h, 2w, c]`.
pub fn upsample2(x: Tensor<4>) -> Tensor<4> {
    let [_, h, w, _] = x.dims();
    let options =
        InterpolateOptions::new(InterpolateMode::Nearest).with_output_size([2 * h, 2 * w]);
    interpolate(x.permute([0, 3, 1, 2]), options).permute([0, 2, 3, 1])
}

/// Concatenation of channels.
pub fn concat(parts: Vec<Tensor<4>>) -> Tensor<4> {
    Tensor::cat(parts, 3)
}

/// Channels `start..start + len`.
pub fn split_channels(x: Tensor<4>, start: usize, len: usize) -> Tensor<4> {
    x.narrow(3, start, len)
}

/// Residual addition.
pub fn add(a: Tensor<4>, b: Tensor<4>) -> Tensor<4> {
    a + b
}

/// Multi-head attention over the positions of an image (Vaswani et al. 2017).
///
/// `qkv` `[n, h, w, heads * (2 * key_dim + head_dim)]`, per head the channels of query, key and value in this order.
/// Returns the attended values and the values themselves, both `[n, h, w, heads * head_dim]`.
pub fn attend(
    qkv: Tensor<4>,
    heads: usize,
    key_dim: usize,
    head_dim: usize,
) -> (Tensor<4>, Tensor<4>) {
    let [n, h, w, _] = qkv.dims();
    let positions = h * w;
    let per_head = qkv
        .reshape([n, positions, heads, 2 * key_dim + head_dim])
        .swap_dims(1, 2);
    let q = per_head.clone().narrow(3, 0, key_dim);
    let k = per_head.clone().narrow(3, key_dim, key_dim);
    let v = per_head.narrow(3, 2 * key_dim, head_dim);
    let weights = activation::softmax(q.matmul(k.swap_dims(2, 3)) / (key_dim as f64).sqrt(), 3);
    let merge = |t: Tensor<4>| t.swap_dims(1, 2).reshape([n, h, w, heads * head_dim]);
    (merge(weights.matmul(v.clone())), merge(v))
}
