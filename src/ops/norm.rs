//! Batch norm and activation, with the unbiased running variance, eps 1e-3.

use super::cpu::lanes::Lanes;
use super::extension::{ConvArgs, Folded, Kernels, NormArgs, Record, Statistics, available};
use super::ranks::{Param, Running, Synced};
use super::{Activation, conv, reference};
use burn::backend::Dispatch;
use burn::tensor::Tensor;
use std::sync::Arc;

/// Added to the variance (Ioffe and Szegedy 2015; the family's value).
pub const NORM_EPS: f64 = 1e-3;

/// Which statistics normalise.
#[derive(Debug, Clone)]
pub enum Norm {
    /// Those of the batch, which are returned.
    Batch,
    /// Those of the batch on all ranks, which are returned (synchronised batch norm).
    Synced(Synced),
    /// Given means and variances (running statistics), `[channels]` each; constants of the graph.
    Fixed(Arc<(Vec<f32>, Vec<f32>)>),
}

/// Statistics of a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchStats {
    /// Elements per channel.
    pub count: usize,
    /// `[channels]`
    pub mean: Vec<f64>,
    /// Biased variance, `[channels]`.
    pub var: Vec<f64>,
}

/// Parameters of [`conv_norm_act`] besides the input.
pub struct ConvNorm {
    /// `[k, k, ci/groups, co]`
    pub weight: Param<4>,
    /// `[co]`
    pub gamma: Param<1>,
    /// `[co]`
    pub beta: Param<1>,
    pub stride: usize,
    pub groups: usize,
    pub norm: Norm,
    /// Where the running statistics lie on a device: the pass moves them there, or, where they normalise
    /// ([`Norm::Fixed`]), takes them from there.
    pub running: Option<Running>,
    pub act: Activation,
    pub lanes: Lanes,
}

/// Convolution without bias, padding `k/2`, batch norm, activation.
///
/// `x` `[n, h, w, ci]` -> `[n, ceil(h/stride), ceil(w/stride), co]`, and the batch's statistics where they were used (not
/// those of kernels for GPUs, which stay on the device).
pub fn conv_norm_act(x: Tensor<4>, p: ConvNorm) -> (Tensor<4>, Option<BatchStats>) {
    let folds = available(&x) && !super::on_gpu(&x) && !p.weight.tensor.is_autodiff();
    if let (Norm::Fixed(s), true) = (&p.norm, folds) {
        return (folded(x, &p, s), None);
    }
    let y = conv(x, p.weight, p.stride, p.groups, &p.lanes);
    norm_act_moving(y, p.gamma, p.beta, p.norm, p.running, p.act, &p.lanes)
}

/// Inference: the norm is a factor and a summand of the convolution's output.
fn folded(x: Tensor<4>, p: &ConvNorm, statistics: &(Vec<f32>, Vec<f32>)) -> Tensor<4> {
    let host = |t: &Tensor<1>| {
        t.to_data()
            .try_to_vec::<f32>()
            .expect("float32, by `available`")
    };
    let (gamma, beta) = (host(&p.gamma.tensor), host(&p.beta.tensor));
    let (mut scale, mut shift) = (vec![0.0; gamma.len()], vec![0.0; gamma.len()]);
    for i in 0..gamma.len() {
        let s = f64::from(gamma[i]) / (f64::from(statistics.1[i]) + NORM_EPS).sqrt();
        scale[i] = s as f32;
        shift[i] = (f64::from(beta[i]) - f64::from(statistics.0[i]) * s) as f32;
    }
    let a = ConvArgs {
        stride: p.stride,
        groups: p.groups,
        lanes: p.lanes.clone(),
        slot: None,
        filters: Record::new(),
    };
    let f = Folded {
        scale: scale.into(),
        shift: shift.into(),
        silu: p.act == Activation::Silu,
    };
    let (x, w) = (x.into_dispatch(), p.weight.tensor.clone().into_dispatch());
    Tensor::from_dispatch(<Dispatch as Kernels>::conv_folded(x, w, a, f))
}

/// `act((x - mean) / sqrt(var + eps) * gamma + beta)` over the last dimension of `[n, h, w, c]`.
///
/// The variance comes from centred values (two passes), which is stable for means far from zero.
pub fn norm_act(
    x: Tensor<4>,
    gamma: impl Into<Param<1>>,
    beta: impl Into<Param<1>>,
    norm: Norm,
    act: Activation,
    lanes: &Lanes,
) -> (Tensor<4>, Option<BatchStats>) {
    norm_act_moving(x, gamma.into(), beta.into(), norm, None, act, lanes)
}

fn norm_act_moving(
    x: Tensor<4>,
    gamma: Param<1>,
    beta: Param<1>,
    norm: Norm,
    running: Option<Running>,
    act: Activation,
    lanes: &Lanes,
) -> (Tensor<4>, Option<BatchStats>) {
    if available(&x) {
        let statistics = match norm {
            Norm::Batch => Statistics::Batch,
            Norm::Synced(s) => Statistics::Synced(s),
            Norm::Fixed(s) => Statistics::Fixed(s),
        };
        let record = Record::new();
        let a = NormArgs {
            statistics,
            act,
            lanes: lanes.clone(),
            record: record.clone(),
            running,
            gamma: gamma.slot,
            beta: beta.slot,
        };
        let (x, gamma, beta) = (
            x.into_dispatch(),
            gamma.tensor.into_dispatch(),
            beta.tensor.into_dispatch(),
        );
        let y = Tensor::from_dispatch(<Dispatch as Kernels>::norm_act(x, gamma, beta, a));
        let moments = record.get().and_then(|r| r.moments.as_ref());
        let stats = moments.map(|m| BatchStats {
            count: m.count as usize,
            mean: m.mean.clone(),
            var: m.variance(),
        });
        return (y, stats);
    }
    reference::norm_act(x, gamma.tensor, beta.tensor, norm, act)
}
