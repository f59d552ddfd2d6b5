//! Batch norm and activation, with the unbiased running variance, eps 1e-3.

use super::cpu::lanes::Lanes;
use super::extension::{Folded, Kernels, NormArgs, Record, Statistics, available};
use super::group::{Member, NormGroup};
use super::ranks::{Param, Running, Synced};
use super::{Activation, conv, reference};
use burn::backend::{Dispatch, DispatchTensor};
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
    conv_norm_act_each(vec![(x, p)]).swap_remove(0)
}

/// As [`conv_norm_act`], of several that depend on nothing of each other and read the same images: what their norms tell
/// other ranks goes together.
pub fn conv_norm_act_each(
    each: Vec<(Tensor<4>, ConvNorm)>,
) -> Vec<(Tensor<4>, Option<BatchStats>)> {
    let norms = each.iter().map(|(_, p)| (&p.norm, &p.gamma));
    let mut together = Together::new(norms);
    let mut measured = vec![];
    for (x, p) in each {
        let folds = available(&x) && !super::on_gpu(&x) && !p.weight.tensor.is_autodiff();
        if let (Norm::Fixed(s), true) = (&p.norm, folds) {
            measured.push(Measured::Done(Box::new((folded(x, &p, s), None))));
            continue;
        }
        let y = conv(x, p.weight, p.stride, p.groups, &p.lanes);
        measured.push(together.measure(
            y,
            NormAct {
                gamma: p.gamma,
                beta: p.beta,
                norm: p.norm,
                running: p.running,
                act: p.act,
                lanes: p.lanes,
            },
        ));
    }
    measured.into_iter().map(|m| together.finish(m)).collect()
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
    let a = conv::args(p.stride, p.groups, &p.lanes, None);
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
    let norm = NormAct {
        gamma: gamma.into(),
        beta: beta.into(),
        norm,
        running: None,
        act,
        lanes: lanes.clone(),
    };
    let mut together = Together::new([(&norm.norm, &norm.gamma)].into_iter());
    let measured = together.measure(x, norm);
    together.finish(measured)
}

/// A batch norm and its activation.
struct NormAct {
    gamma: Param<1>,
    beta: Param<1>,
    norm: Norm,
    running: Option<Running>,
    act: Activation,
    lanes: Lanes,
}

/// Norms with statistics of the batch that run side by side: all are measured before the first is finished. That is so on
/// one rank too, as gradients are added in the order of the graph.
struct Together {
    group: Arc<NormGroup>,
    /// The next one's place in it.
    index: usize,
    /// What stands for all that were measured.
    all: Option<DispatchTensor>,
}

/// A norm between its measurement and the activation.
enum Measured {
    Done(Box<(Tensor<4>, Option<BatchStats>)>),
    /// Input, gamma, beta.
    Open(Box<([DispatchTensor; 3], NormArgs)>),
}

impl Together {
    /// Of norms, given with their gammas.
    fn new<'a>(norms: impl Iterator<Item = (&'a Norm, &'a Param<1>)>) -> Self {
        let (mut synced, mut channels) = (None, vec![]);
        for (norm, gamma) in norms {
            match norm {
                Norm::Fixed(_) => continue,
                Norm::Synced(s) => synced = synced.or(Some(s)),
                Norm::Batch => {}
            }
            channels.push(gamma.tensor.dims()[0]);
        }
        let synced = synced.map(|first| Synced {
            ranks: first.ranks.clone(),
            name: match channels.len() {
                1 => first.name.clone(),
                n => format!("{} and {} more", first.name, n - 1).into(),
            },
        });
        Self {
            group: Arc::new(NormGroup::new(synced, channels)),
            index: 0,
            all: None,
        }
    }

    fn next(&mut self) -> Member {
        self.index += 1;
        Member {
            group: self.group.clone(),
            index: self.index - 1,
        }
    }

    fn measure(&mut self, x: Tensor<4>, n: NormAct) -> Measured {
        if !available(&x) {
            let (gamma, beta) = (n.gamma.tensor, n.beta.tensor);
            let done = reference::norm_act(x, gamma, beta, n.norm, n.act);
            return Measured::Done(Box::new(done));
        }
        let statistics = match n.norm {
            Norm::Fixed(s) => Statistics::Fixed(s),
            Norm::Batch | Norm::Synced(_) => Statistics::Batch(self.next()),
        };
        let a = NormArgs {
            statistics,
            act: n.act,
            lanes: n.lanes,
            record: Record::new(),
            running: n.running,
            gamma: n.gamma.slot,
            beta: n.beta.slot,
        };
        let mut x = x.into_dispatch();
        let [gamma, beta] = [n.gamma.tensor, n.beta.tensor].map(Tensor::into_dispatch);
        if a.beside() {
            let before = self.all.take().unwrap_or_else(|| x.clone());
            let (y, all) = <Dispatch as Kernels>::measured(x, before, a.clone());
            (x, self.all) = (y, Some(all));
        }
        Measured::Open(Box::new(([x, gamma, beta], a)))
    }

    fn finish(&self, measured: Measured) -> (Tensor<4>, Option<BatchStats>) {
        let ([x, gamma, beta], a) = match measured {
            Measured::Done(done) => return *done,
            Measured::Open(open) => *open,
        };
        let record = a.record.clone();
        let all = self
            .all
            .as_ref()
            .filter(|_| a.beside())
            .unwrap_or(&x)
            .clone();
        let y = <Dispatch as Kernels>::norm_act(x, gamma, beta, all, a);
        let moments = record.get().and_then(|r| r.moments.as_ref());
        let stats = moments.map(|m| BatchStats {
            count: m.count as usize,
            mean: m.mean.clone(),
            var: m.variance(),
        });
        (Tensor::from_dispatch(y), stats)
    }
}

#[cfg(test)]
#[path = "group_tests.rs"]
mod tests;
