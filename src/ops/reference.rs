//! The operations in plain operations of the tensor library, in float32 and float64: what kernels are compared with, and
//! what computes where there are none.
//!
//! A program for GPUs is built without them ([`HAS_REFERENCE`]): everything that it computes has kernels, and the
//! library's own for convolutions and products, which these need, would be a third of it.

// what follows a constant that is false is not linked
#![allow(clippy::assertions_on_constants)]

use super::Activation;
use super::extension::{Kernels, Summed};
use super::norm::{BatchStats, NORM_EPS, Norm};
use super::ranks::Synced;
use super::shape::split_channels;
use burn::backend::Dispatch;
use burn::tensor::module::{conv2d, interpolate, max_pool2d};
use burn::tensor::ops::{ConvOptions, InterpolateMode, InterpolateOptions, MaxPoolOptions};
use burn::tensor::{DType, Tensor, TensorData, activation};

/// Whether this build has them.
pub const HAS_REFERENCE: bool = cfg!(any(test, not(feature = "gpu")));

/// What is said where they are missing.
pub(crate) const NO_REFERENCE: &str =
    "programs for GPUs compute in float32, float16 and bfloat16 only";

/// As [`super::conv()`].
pub(super) fn conv(x: Tensor<4>, weight: Tensor<4>, stride: usize, groups: usize) -> Tensor<4> {
    assert!(HAS_REFERENCE, "{NO_REFERENCE}");
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

/// As [`super::max_pool5`].
pub(super) fn max_pool5(x: Tensor<4>) -> Tensor<4> {
    assert!(HAS_REFERENCE, "{NO_REFERENCE}");
    let options = MaxPoolOptions::new([5, 5])
        .with_stride([1, 1])
        .with_padding([2, 2]);
    max_pool2d(x.permute([0, 3, 1, 2]), options).permute([0, 2, 3, 1])
}

/// As [`super::upsample2`].
pub(super) fn upsample2(x: Tensor<4>) -> Tensor<4> {
    assert!(HAS_REFERENCE, "{NO_REFERENCE}");
    let [_, h, w, _] = x.dims();
    let options =
        InterpolateOptions::new(InterpolateMode::Nearest).with_output_size([2 * h, 2 * w]);
    interpolate(x.permute([0, 3, 1, 2]), options).permute([0, 2, 3, 1])
}

/// Attended values `[n, positions, heads, head_dim]` of `[n, positions, heads, 2 * key_dim + head_dim]`.
pub(super) fn attended(per_head: Tensor<4>, key_dim: usize, head_dim: usize) -> Tensor<4> {
    assert!(HAS_REFERENCE, "{NO_REFERENCE}");
    let [q, k, v] = [(0, key_dim), (key_dim, key_dim), (2 * key_dim, head_dim)]
        .map(|(at, len)| split_channels(per_head.clone(), at, len).swap_dims(1, 2));
    let weights = activation::softmax(q.matmul(k.swap_dims(2, 3)) / (key_dim as f64).sqrt(), 3);
    weights.matmul(v).swap_dims(1, 2)
}

/// As [`super::norm_act`].
pub(super) fn norm_act(
    x: Tensor<4>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    norm: Norm,
    act: Activation,
) -> (Tensor<4>, Option<BatchStats>) {
    assert!(HAS_REFERENCE, "{NO_REFERENCE}");
    let [n, h, w, c] = x.dims();
    let rows = n * h * w;
    let row = |t: Tensor<1>| t.reshape([1, c]);
    let (device, dtype) = (x.device().inner(), x.dtype());
    let x = x.reshape([rows, c]);
    let (centred, var, stats) = match norm {
        Norm::Batch | Norm::Synced(_) => {
            let synced = match &norm {
                Norm::Synced(s) => Some(s),
                _ => None,
            };
            let count = counted(rows, synced);
            let mean_of = |t: Tensor<2>| {
                let sum = t.sum_dim(0).reshape([c]);
                row(over_ranks(sum, synced)) / count.max(1) as f64
            };
            let mean = mean_of(x.clone());
            let d = x - mean.clone();
            let var = mean_of(d.clone().square());
            let host = |t: &Tensor<2>| {
                let data = t.clone().inner().into_data().convert::<f64>();
                data.try_to_vec::<f64>().expect("converted to float64")
            };
            let stats = BatchStats {
                count,
                mean: host(&mean),
                var: host(&var),
            };
            (d, var, Some(stats))
        }
        Norm::Fixed(s) => {
            let upload = |v: &[f32]| {
                let data = TensorData::new(v.to_vec(), [c]);
                let data = if dtype == DType::F64 {
                    data.convert::<f64>()
                } else {
                    data
                };
                Tensor::<1>::from_data(data, (&device, dtype))
            };
            (x - row(upload(&s.0)), row(upload(&s.1)), None)
        }
    };
    let scale = row(gamma) / (var + NORM_EPS).sqrt();
    let z = (centred * scale + row(beta)).reshape([n, h, w, c]);
    let y = match act {
        Activation::Silu => activation::silu(z),
        Activation::Identity => z,
    };
    (y, stats)
}

/// Elements of a channel on all ranks.
fn counted(rows: usize, synced: Option<&Synced>) -> usize {
    let Some(s) = synced else { return rows };
    let own = vec![rows as f64];
    let all = s.ranks.gather(&s.name, "count", own.clone());
    all.unwrap_or_else(|| vec![own])
        .iter()
        .flatten()
        .sum::<f64>() as usize
}

/// Sum over ranks, through which gradients pass.
fn over_ranks(x: Tensor<1>, synced: Option<&Synced>) -> Tensor<1> {
    let Some(s) = synced else { return x };
    let s = Summed {
        ranks: s.ranks.clone(),
        name: s.name.clone(),
    };
    Tensor::from_dispatch(<Dispatch as Kernels>::rank_sum(x.into_dispatch(), s))
}
