//! Optimizers over flat parameters.

use super::schedule::Rates;
use crate::model::{HeadOf, Layout, ParamKind};

/// Gradients are clipped to this global norm.
pub const MAX_NORM: f64 = 10.0;
pub(super) const BETA2: f64 = 0.999;
pub(super) const ADAM_EPS: f64 = 1e-8;

/// Which update rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// Stochastic gradient descent with Nesterov momentum (Sutskever et al. 2013), decay added to the gradient.
    Sgd,
    /// Adam with decoupled decay (Loshchilov and Hutter 2019).
    AdamW,
}

impl Algorithm {
    /// Exponent of (images of a step / reference batch) in the rate: linear for SGD (Goyal et al. 2017), square root
    /// for Adam (Malladi et al. 2022).
    #[must_use]
    pub fn scaling_exponent(self) -> f64 {
        match self {
            Self::Sgd => 1.0,
            Self::AdamW => 0.5,
        }
    }
}

/// Optimizer and its state.
#[derive(Debug, Clone, PartialEq)]
pub struct Optimizer {
    pub algorithm: Algorithm,
    /// Decay of convolution weights.
    pub weight_decay: f64,
    /// Momentum, or Adam's first moment.
    pub first: Vec<f32>,
    /// Adam's second moment; empty for SGD.
    pub second: Vec<f32>,
    /// Steps done.
    pub steps: u64,
}

impl Optimizer {
    /// For `len` parameters.
    #[must_use]
    pub fn new(algorithm: Algorithm, weight_decay: f64, len: usize) -> Self {
        let second = if algorithm == Algorithm::AdamW {
            vec![0.0; len]
        } else {
            vec![]
        };
        Self {
            algorithm,
            weight_decay,
            first: vec![0.0; len],
            second,
            steps: 0,
        }
    }

    /// State to save besides `steps`: every buffer that this algorithm uses with its name, in a fixed order.
    #[must_use]
    pub fn buffers(&self) -> Vec<(&'static str, &[f32])> {
        let all = [("first", &self.first), ("second", &self.second)];
        let used = all.into_iter().filter(|(_, b)| !b.is_empty());
        used.map(|(name, b)| (name, b.as_slice())).collect()
    }

    /// As [`Self::buffers`], to fill when a run goes on.
    #[must_use]
    pub fn buffers_mut(&mut self) -> Vec<(&'static str, &mut [f32])> {
        let all = [("first", &mut self.first), ("second", &mut self.second)];
        let used = all.into_iter().filter(|(_, b)| !b.is_empty());
        used.map(|(name, b)| (name, b.as_mut_slice())).collect()
    }

    /// One step: `params` change, `gradient` is as clipped.
    pub fn step(&mut self, layout: &Layout, params: &mut [f32], gradient: &[f32], rates: &Rates) {
        self.steps += 1;
        for p in &layout.params {
            let (lr, decay) = match p.kind {
                ParamKind::Weight => (rates.lr, self.weight_decay),
                ParamKind::Norm => (rates.lr, 0.0),
                ParamKind::Bias => (rates.bias_lr, 0.0),
                ParamKind::Constant => continue,
            };
            let at = p.range();
            let (w, g, m) = (
                &mut params[at.clone()],
                &gradient[at.clone()],
                &mut self.first[at.clone()],
            );
            match self.algorithm {
                Algorithm::Sgd => sgd(w, g, m, lr, rates.momentum, decay),
                Algorithm::AdamW => adamw(
                    w,
                    g,
                    m,
                    &mut self.second[at],
                    lr,
                    rates.momentum,
                    decay,
                    self.steps,
                ),
            }
        }
    }
}

fn sgd(w: &mut [f32], g: &[f32], m: &mut [f32], lr: f64, momentum: f64, decay: f64) {
    let (lr, momentum, decay) = (lr as f32, momentum as f32, decay as f32);
    for ((w, g), m) in w.iter_mut().zip(g).zip(m) {
        let g = g + decay * *w;
        *m = momentum * *m + g;
        *w -= lr * (g + momentum * *m);
    }
}

#[allow(clippy::too_many_arguments)]
fn adamw(
    w: &mut [f32],
    g: &[f32],
    m: &mut [f32],
    v: &mut [f32],
    lr: f64,
    beta1: f64,
    decay: f64,
    t: u64,
) {
    let t = i32::try_from(t).unwrap_or(i32::MAX);
    let step = (lr / (1.0 - beta1.powi(t))) as f32;
    let root = (1.0 - BETA2.powi(t)).sqrt() as f32;
    let (keep, b1, b2) = ((1.0 - lr * decay) as f32, beta1 as f32, BETA2 as f32);
    for (((w, g), m), v) in w.iter_mut().zip(g).zip(m).zip(v) {
        *m = b1 * *m + (1.0 - b1) * g;
        *v = b2 * *v + (1.0 - b2) * g * g;
        *w = *w * keep - step * *m / (v.sqrt() / root + ADAM_EPS as f32);
    }
}

/// Turns summed numerator gradients into the gradient of a step: each head's part is divided by its normaliser,
/// everything multiplied by `factor`, then clipped. Returns the norm before clipping, summed in float64 in the
/// order of parameters.
pub fn finish_gradient(
    layout: &Layout,
    gradient: &mut [f32],
    normalisers: [f64; 2],
    factor: f64,
) -> f64 {
    let mut square = 0.0f64;
    for p in &layout.params {
        let n = match p.head {
            HeadOf::OneToMany => normalisers[0],
            HeadOf::OneToOne => normalisers[1],
        };
        let f = (factor / n.max(1.0)) as f32;
        for g in &mut gradient[p.range()] {
            *g *= f;
            square += f64::from(*g) * f64::from(*g);
        }
    }
    let norm = square.sqrt();
    if norm > MAX_NORM {
        let f = (MAX_NORM / (norm + 1e-6)) as f32;
        gradient.iter_mut().for_each(|g| *g *= f);
    }
    norm
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::model::ModelSpec;
    use crate::model::Network;

    /// One weight (with decay), one scale, one bias, following the network's own layout.
    fn layout() -> Layout {
        Network::new(ModelSpec::resolve("yolo26n").unwrap(), 1).layout
    }

    #[test]
    fn sgd_follows_the_written_formula_in_float64() {
        let l = layout();
        let mut o = Optimizer::new(Algorithm::Sgd, 5e-4, l.param_len);
        let mut w = vec![0.5f32; l.param_len];
        let p = &l.params[0];
        let (mut expected, mut m) = (0.5f64, 0.0f64);
        for step in 1..=5 {
            let g = 0.1 * f64::from(step);
            let grad = vec![g as f32; l.param_len];
            o.step(
                &l,
                &mut w,
                &grad,
                &Rates {
                    lr: 0.01,
                    bias_lr: 0.05,
                    momentum: 0.9,
                },
            );
            let d = g + 5e-4 * expected;
            m = 0.9 * m + d;
            expected -= 0.01 * (d + 0.9 * m);
            assert!((f64::from(w[p.offset]) - expected).abs() < 1e-6);
        }
    }

    #[test]
    fn adamw_first_step_moves_by_the_rate_and_decays_weights_only() {
        let l = layout();
        let mut o = Optimizer::new(Algorithm::AdamW, 0.1, l.param_len);
        let mut w = vec![1.0f32; l.param_len];
        let grad = vec![0.3f32; l.param_len];
        o.step(
            &l,
            &mut w,
            &grad,
            &Rates {
                lr: 0.01,
                bias_lr: 0.02,
                momentum: 0.9,
            },
        );
        let at = |k: ParamKind| w[l.params.iter().find(|p| p.kind == k).unwrap().offset];
        assert!((at(ParamKind::Weight) - (1.0 - 0.01 * 0.1 - 0.01)).abs() < 1e-6);
        assert!((at(ParamKind::Norm) - 0.99).abs() < 1e-6);
        assert!((at(ParamKind::Bias) - 0.98).abs() < 1e-6);
    }

    #[test]
    fn gradients_are_normalised_by_their_own_head_and_clipped_together() {
        let l = layout();
        let mut g = vec![1.0f32; l.param_len];
        let norm = finish_gradient(&l, &mut g, [10.0, 0.5], 2.0);
        let many: usize = l
            .params
            .iter()
            .filter(|p| p.head == HeadOf::OneToMany)
            .map(|p| p.len())
            .sum();
        let expected = (many as f64 * 0.04 + (l.param_len - many) as f64 * 4.0).sqrt();
        assert!(
            (norm / expected - 1.0).abs() < 1e-6,
            "a normaliser below 1 counts as 1"
        );
        let clipped = g.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
        assert!((clipped - MAX_NORM).abs() < 1e-3);
    }
}
