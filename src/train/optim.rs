//! Optimizers over flat parameters.

use super::muon::{self, CLASS_BOOST, MUON_RATE, Products};
use super::schedule::Rates;
use crate::model::layout::{ClassPart, ParamInfo};
use crate::model::{HeadOf, Layout, ParamKind};

/// The gradient of a full step is clipped to this global norm.
pub const MAX_NORM: f64 = 10.0;
pub(super) const BETA2: f64 = 0.999;
pub(super) const ADAM_EPS: f64 = 1e-8;

/// What a gradient with this norm is multiplied by so that its norm is at most `bound`.
#[must_use]
pub fn clip_factor(norm: f64, bound: f64) -> f32 {
    if norm > bound {
        (bound / (norm + 1e-6)) as f32
    } else {
        1.0
    }
}

/// Which update rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// Stochastic gradient descent with Nesterov momentum (Sutskever et al. 2013), decay added to the gradient.
    Sgd,
    /// Adam with decoupled decay (Loshchilov and Hutter 2019).
    AdamW,
    /// Muon (Jordan et al. 2024) and then SGD, with a momentum each, on convolution weights; SGD on everything else.
    /// Class branches move three times as fast.
    MuSgd,
}

impl Algorithm {
    /// Exponent of (images of a step / reference batch) in the rate: linear for SGD (Goyal et al. 2017), square root
    /// for Adam (Malladi et al. 2022). Of MuSGD it is that of the SGD part.
    #[must_use]
    pub fn scaling_exponent(self) -> f64 {
        match self {
            Self::Sgd | Self::MuSgd => 1.0,
            Self::AdamW => 0.5,
        }
    }

    /// As [`Self::scaling_exponent`], of Muon's part: the length of its update does not depend on the gradient's, as Adam's.
    pub const MUON_SCALING_EXPONENT: f64 = 0.5;

    /// Groups of parameters that have a rate of their own, see [`Optimizer::group_rates`].
    #[must_use]
    pub fn groups(self) -> usize {
        match self {
            Self::Sgd | Self::AdamW => 3,
            Self::MuSgd => 8,
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
    /// Adam's second moment; empty for the others.
    pub second: Vec<f32>,
    /// Muon's momentum; empty for the others.
    pub muon: Vec<f32>,
    /// Rate of Muon's part, as a factor of the rate.
    pub muon_rate: f64,
    /// Steps done.
    pub steps: u64,
}

/// How a parameter moves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Motion {
    pub lr: f64,
    pub decay: f64,
    /// Rate of Muon's part, where it has one.
    pub muon: Option<f64>,
}

impl Optimizer {
    /// For `len` parameters.
    #[must_use]
    pub fn new(algorithm: Algorithm, weight_decay: f64, len: usize) -> Self {
        let only = |user: Algorithm| vec![0.0; if algorithm == user { len } else { 0 }];
        Self {
            algorithm,
            weight_decay,
            first: vec![0.0; len],
            second: only(Algorithm::AdamW),
            muon: only(Algorithm::MuSgd),
            muon_rate: MUON_RATE,
            steps: 0,
        }
    }

    /// State to save besides `steps`: every buffer that this algorithm uses with its name, in a fixed order.
    #[must_use]
    pub fn buffers(&self) -> Vec<(&'static str, &[f32])> {
        let all = [
            ("first", &self.first),
            ("second", &self.second),
            ("muon", &self.muon),
        ];
        let used = all.into_iter().filter(|(_, b)| !b.is_empty());
        used.map(|(name, b)| (name, b.as_slice())).collect()
    }

    /// As [`Self::buffers`], to fill when a run goes on.
    #[must_use]
    pub fn buffers_mut(&mut self) -> Vec<(&'static str, &mut [f32])> {
        let all = [
            ("first", &mut self.first),
            ("second", &mut self.second),
            ("muon", &mut self.muon),
        ];
        let used = all.into_iter().filter(|(_, b)| !b.is_empty());
        used.map(|(name, b)| (name, b.as_mut_slice())).collect()
    }

    /// How a parameter moves; `None` if nothing trains it.
    pub(super) fn motion(&self, p: &ParamInfo, rates: &Rates) -> Option<Motion> {
        if !p.trained() {
            return None;
        }
        let (mut lr, decay) = match p.kind {
            ParamKind::Weight => (rates.lr, self.weight_decay),
            ParamKind::Norm | ParamKind::Constant => (rates.lr, 0.0),
            ParamKind::Bias => (rates.bias_lr, 0.0),
        };
        if self.algorithm != Algorithm::MuSgd {
            return Some(Motion {
                lr,
                decay,
                muon: None,
            });
        }
        let mut muon = rates.lr * self.muon_rate;
        if p.class != ClassPart::None {
            // biases start at their own rate in warm-up, which is not multiplied
            lr += (CLASS_BOOST - 1.0) * rates.lr;
            muon *= CLASS_BOOST;
        }
        let muon = muon::applies(p).then_some(muon);
        Some(Motion { lr, decay, muon })
    }

    /// Rates of the groups, for results.csv: weights, scales of norms, biases; with Muon also Muon's part of the weights,
    /// and then these four once more for class branches.
    #[must_use]
    pub fn group_rates(&self, rates: &Rates) -> Vec<f64> {
        let three = [rates.lr, rates.lr, rates.bias_lr];
        if self.algorithm != Algorithm::MuSgd {
            return three.to_vec();
        }
        let muon = rates.lr * self.muon_rate;
        let boosted = three.map(|r| r + (CLASS_BOOST - 1.0) * rates.lr);
        let mut all = three.to_vec();
        all.push(muon);
        all.extend(boosted);
        all.push(muon * CLASS_BOOST);
        all
    }

    /// One step: `params` change, `gradient` is as clipped.
    pub fn step(&mut self, layout: &Layout, params: &mut [f32], gradient: &[f32], rates: &Rates) {
        self.steps += 1;
        for p in &layout.params {
            let Some(Motion { lr, decay, muon }) = self.motion(p, rates) else {
                continue;
            };
            let at = p.range();
            let (w, g, m) = (
                &mut params[at.clone()],
                &gradient[at.clone()],
                &mut self.first[at.clone()],
            );
            if let Some(lr) = muon {
                let m = &mut self.muon[at.clone()];
                muon_step(
                    &muon::Plain,
                    w,
                    g.iter().copied(),
                    m,
                    muon::matrix(p),
                    lr,
                    rates.momentum,
                );
            }
            match self.algorithm {
                Algorithm::Sgd | Algorithm::MuSgd => sgd(w, g, m, lr, rates.momentum, decay),
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

/// Muon's part of a step on a matrix `[rows, columns]`: `m <- beta m + (1 - beta) g`, and `w` moves by `lr` times the
/// orthogonal factor of `beta m + (1 - beta) g`.
pub(super) fn muon_step(
    products: &impl Products,
    w: &mut [f32],
    g: impl Iterator<Item = f32>,
    m: &mut [f32],
    size: [usize; 2],
    lr: f64,
    momentum: f64,
) {
    let (lr, keep, rest) = (lr as f32, momentum as f32, (1.0 - momentum) as f32);
    let ahead = |(m, g): (&mut f32, f32)| {
        *m = keep * *m + rest * g;
        keep * *m + rest * g
    };
    let mut update: Vec<f32> = m.iter_mut().zip(g).map(ahead).collect();
    muon::orthogonalise(products, &mut update, size);
    for (w, o) in w.iter_mut().zip(&update) {
        *w -= lr * o;
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
/// everything multiplied by `factor`, then clipped to the norm `bound`. Returns the norm before clipping, summed in float64 in the
/// order of parameters.
pub fn finish_gradient(
    layout: &Layout,
    gradient: &mut [f32],
    normalisers: [f64; 2],
    factor: f64,
    bound: f64,
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
    let f = clip_factor(norm, bound);
    if f < 1.0 {
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
    fn musgd_moves_by_muon_then_by_sgd_with_two_momenta_and_class_branches_three_times_as_fast() {
        let l = layout();
        let mut o = Optimizer::new(Algorithm::MuSgd, 5e-4, l.param_len);
        let start = 0.5f32;
        let mut w = vec![start; l.param_len];
        let rates = Rates {
            lr: 0.01,
            bias_lr: 0.05,
            momentum: 0.9,
        };
        let gradient =
            |step: usize, i: usize| f64::from(((i * 7 + step * 13) % 11) as f32 * 0.01 - 0.05f32);
        // a matrix of 16 outputs as the network keeps it: [rows, outputs]
        let hidden = |p: &&ParamInfo| p.class == ClassPart::Hidden && p.kind == ParamKind::Weight;
        let cases = [
            (&l.params[0], 1.0),
            (l.params.iter().find(hidden).unwrap(), 3.0),
        ];
        let mut expected: Vec<_> = cases
            .iter()
            .map(|(p, _)| {
                (
                    vec![f64::from(start); p.len()],
                    vec![0.0; p.len()],
                    vec![0.0; p.len()],
                )
            })
            .collect();
        for step in 1..=3 {
            let grad: Vec<f32> = (0..l.param_len).map(|i| gradient(step, i) as f32).collect();
            o.step(&l, &mut w, &grad, &rates);
            for ((p, boost), (w, m, b)) in cases.iter().zip(&mut expected) {
                let g: Vec<f64> = p.range().map(|i| gradient(step, i)).collect();
                let mut u = vec![0.0f32; p.len()];
                for i in 0..p.len() {
                    m[i] = 0.9 * m[i] + 0.1 * g[i];
                    u[i] = (0.9 * m[i] + 0.1 * g[i]) as f32;
                }
                muon::orthogonalise(&muon::Plain, &mut u, muon::matrix(p));
                for i in 0..p.len() {
                    w[i] -= boost * 0.01 * 0.2 * f64::from(u[i]);
                    let d = g[i] + 5e-4 * w[i];
                    b[i] = 0.9 * b[i] + d;
                    w[i] -= boost * 0.01 * (d + 0.9 * b[i]);
                }
            }
        }
        for ((p, _), (want, ..)) in cases.iter().zip(&expected) {
            for (got, want) in w[p.range()].iter().zip(want) {
                assert!(
                    (f64::from(*got) - want).abs() < 2e-5,
                    "{}: {got} {want}",
                    p.name
                );
            }
        }
        // vectors: SGD alone, without decay
        let norm = l.params.iter().find(|p| p.kind == ParamKind::Norm).unwrap();
        assert!(o.motion(norm, &rates).unwrap().muon.is_none());
        let i = norm.offset;
        let (mut x, mut b) = (f64::from(start), 0.0);
        for step in 1..=3 {
            let g = gradient(step, i);
            b = 0.9 * b + g;
            x -= 0.01 * (g + 0.9 * b);
        }
        assert!((f64::from(w[i]) - x).abs() < 1e-6);
    }

    #[test]
    fn the_groups_of_a_step_have_the_rates_of_their_parameters() {
        let rates = Rates {
            lr: 0.01,
            bias_lr: 0.07,
            momentum: 0.9,
        };
        let l = layout();
        for algorithm in [Algorithm::Sgd, Algorithm::AdamW, Algorithm::MuSgd] {
            let o = Optimizer::new(algorithm, 5e-4, 1);
            let groups = o.group_rates(&rates);
            assert_eq!(groups.len(), algorithm.groups());
            for p in &l.params {
                let rule = o.motion(p, &rates).unwrap();
                let kind = match p.kind {
                    ParamKind::Weight => 0,
                    ParamKind::Norm => 1,
                    _ => 2,
                };
                let boosted = algorithm == Algorithm::MuSgd && p.class != ClassPart::None;
                let first = if boosted { 4 } else { 0 };
                assert_eq!(rule.lr, groups[first + kind], "{}", p.name);
                assert_eq!(rule.decay != 0.0, kind == 0);
                if let Some(muon) = rule.muon {
                    assert_eq!(muon, groups[first + 3], "{}", p.name);
                }
            }
        }
        let o = Optimizer::new(Algorithm::MuSgd, 0.0, 1);
        let want = [0.01, 0.01, 0.07, 0.002, 0.03, 0.03, 0.09, 0.006];
        for (got, want) in o.group_rates(&rates).iter().zip(want) {
            assert!((got - want).abs() < 1e-15, "{got} {want}");
        }
    }

    #[test]
    fn frozen_parameters_do_not_move_whatever_their_gradient() {
        for algorithm in [Algorithm::Sgd, Algorithm::AdamW, Algorithm::MuSgd] {
            let mut l = layout();
            l.params[0].frozen = true;
            let mut o = Optimizer::new(algorithm, 0.1, l.param_len);
            let mut w = vec![0.7f32; l.param_len];
            let rates = Rates {
                lr: 0.1,
                bias_lr: 0.1,
                momentum: 0.9,
            };
            let gradient = vec![1.0; l.param_len];
            o.step(&l, &mut w, &gradient, &rates);
            assert!(w[l.params[0].range()].iter().all(|&w| w == 0.7));
            assert!(w[l.params[1].offset] != 0.7);
        }
    }

    #[test]
    fn buffers_are_what_the_algorithm_keeps() {
        for (algorithm, names) in [
            (Algorithm::Sgd, vec!["first"]),
            (Algorithm::AdamW, vec!["first", "second"]),
            (Algorithm::MuSgd, vec!["first", "muon"]),
        ] {
            let mut o = Optimizer::new(algorithm, 0.0, 3);
            let found: Vec<_> = o.buffers().iter().map(|b| b.0).collect();
            assert_eq!(found, names);
            for (i, (_, b)) in o.buffers_mut().into_iter().enumerate() {
                b.fill(i as f32 + 1.0);
            }
            assert_eq!(
                (o.first[2], o.buffers()[names.len() - 1].1[0]),
                (1.0, names.len() as f32)
            );
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
        let norm = finish_gradient(&l, &mut g, [10.0, 0.5], 2.0, MAX_NORM);
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
