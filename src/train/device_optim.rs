//! The optimizer on GPUs: the rules of [`super::optim`] as the tables that the kernels of [`crate::ops::gpu::optim`]
//! read, and the state of a run on the device.

use super::muon;
use super::optim::{ADAM_EPS, Algorithm, BETA2, Motion, Optimizer};
use super::schedule::Rates;
use crate::model::layout::{ClassPart, ParamInfo};
use crate::model::{HeadOf, Layout, ParamKind};
use crate::ops::gpu::flat;
use crate::ops::gpu::optim::{
    self, Adam, Flat, Groups, Rule, Status, Totals, blend_statistics, gradient_norm,
};
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;

/// What decides how a parameter moves: parameters with the same are one group.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Key {
    kind: ParamKind,
    head: HeadOf,
    boosted: bool,
    trained: bool,
    muon: bool,
}

impl Key {
    fn of(p: &ParamInfo) -> Self {
        Self {
            kind: p.kind,
            head: p.head,
            boosted: p.class != ClassPart::None,
            trained: p.trained(),
            muon: muon::applies(p),
        }
    }
}

/// Optimizer and its state on a device.
#[derive(Debug)]
pub struct DeviceOptimizer {
    /// Algorithm, rates and steps; its buffers are empty, those on the device count.
    plain: Optimizer,
    groups: Groups,
    /// A parameter of each group.
    examples: Vec<ParamInfo>,
    matrices: optim::muon::Matrices,
    /// A byte for each running statistic: whether it is frozen.
    frozen: Groups,
    first: CubeTensor,
    second: Option<CubeTensor>,
    muon: Option<CubeTensor>,
}

/// What a step multiplies the gradient by, and what it is clipped to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepFactor {
    /// Of each head's gradient, besides its normaliser; holds the inverse of a loss scale.
    pub factor: f64,
    /// Most norm.
    pub bound: f64,
    /// Decay of the average.
    pub average_decay: f64,
}

impl DeviceOptimizer {
    /// Goes on from the state of `optimizer`, for parameters as in `layout`.
    ///
    /// # Panics
    /// If its buffers are not of so many parameters.
    #[must_use]
    pub fn new(layout: &Layout, optimizer: &Optimizer, device: &CubeDevice) -> Self {
        assert_eq!(
            optimizer.first.len(),
            layout.param_len,
            "state of all parameters"
        );
        let (mut keys, mut examples, mut parts, mut matrices) = (vec![], vec![], vec![], vec![]);
        let ends = layout.params.iter().skip(1).map(|p| p.offset);
        let ends = ends.chain([layout.param_len]);
        for (p, end) in layout.params.iter().zip(ends) {
            let key = Key::of(p);
            let group = keys.iter().position(|k| *k == key).unwrap_or_else(|| {
                keys.push(key);
                examples.push(p.clone());
                keys.len() - 1
            });
            // with what lies before the next one: zeros, which no rule moves
            parts.push((p.offset..end, group));
            if optimizer.algorithm == Algorithm::MuSgd && key.muon && key.trained {
                let [rows, columns] = muon::matrix(p);
                matrices.push(optim::muon::Matrix {
                    offset: p.offset,
                    rows,
                    columns,
                    group,
                });
            }
        }
        let groups = Groups::new(&parts, device);
        let norms = layout.norms.iter();
        let frozen: Vec<_> = norms
            .map(|n| (n.mean().start..n.var().end, usize::from(n.frozen)))
            .collect();
        let state = |v: &Vec<f32>| (!v.is_empty()).then(|| flat::upload_f32(device, v));
        Self {
            matrices: optim::muon::Matrices::new(&matrices, &groups),
            frozen: Groups::new(&frozen, device),
            groups,
            examples,
            first: flat::upload_f32(device, &optimizer.first),
            second: state(&optimizer.second),
            muon: state(&optimizer.muon),
            plain: Optimizer {
                first: vec![],
                second: vec![],
                muon: vec![],
                ..optimizer.clone()
            },
        }
    }

    /// Steps done, those that were skipped included until [`Self::skipped`].
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.plain.steps
    }

    /// A step's status said that it was not finite: it does not count.
    pub fn skipped(&mut self) {
        self.plain.steps = self.plain.steps.saturating_sub(1);
    }

    /// Rates of the groups, for results.csv.
    #[must_use]
    pub fn group_rates(&self, rates: &Rates) -> Vec<f64> {
        self.plain.group_rates(rates)
    }

    /// State on the device, `[param_len]` each, by the names of [`Optimizer::buffers`].
    #[must_use]
    pub fn buffers(&self) -> Vec<(&'static str, &CubeTensor)> {
        let all = [
            ("first", Some(&self.first)),
            ("second", self.second.as_ref()),
            ("muon", self.muon.as_ref()),
        ];
        all.into_iter()
            .filter_map(|(name, b)| Some((name, b?)))
            .collect()
    }

    /// Rules of the groups for step `self.plain.steps`.
    fn rules(&self, rates: &Rates) -> Vec<Rule> {
        let correction = 1.0 - rates.momentum.powi(self.time());
        self.examples
            .iter()
            .map(|p| {
                let one_to_one = p.head == HeadOf::OneToOne;
                let Some(Motion { lr, decay, muon }) = self.plain.motion(p, rates) else {
                    return Rule {
                        one_to_one,
                        fixed: true,
                        ..Rule::default()
                    };
                };
                let (rate, decay) = match self.plain.algorithm {
                    Algorithm::Sgd | Algorithm::MuSgd => (lr, decay),
                    Algorithm::AdamW => (lr / correction, 1.0 - lr * decay),
                };
                Rule {
                    rate: rate as f32,
                    decay: decay as f32,
                    one_to_one,
                    fixed: false,
                    muon: muon.map(|m| m as f32),
                }
            })
            .collect()
    }

    fn time(&self) -> i32 {
        i32::try_from(self.plain.steps).unwrap_or(i32::MAX)
    }

    /// A step as [`super::flat::step`] does it: parameters, average and state move, the gradient is cleared. `totals` are
    /// those of the lanes of all ranks. What comes back is known once it is read; where it says that the gradient was not
    /// finite nothing but the gradient has changed, and [`Self::skipped`] is to be called.
    ///
    /// # Panics
    /// If something has not the layout's length.
    pub fn step(&mut self, flat: Flat, rates: &Rates, totals: &Totals, size: StepFactor) -> Status {
        self.plain.steps += 1;
        let rules = self.rules(rates);
        let (gradient, d) = (flat.gradient, size.average_decay);
        let status = gradient_norm(
            gradient,
            &self.groups,
            &rules,
            totals,
            size.factor,
            size.bound,
        );
        if let Some(state) = &self.muon {
            let (groups, params) = (&self.groups, flat.params);
            optim::muon::muon(
                &self.matrices,
                groups,
                &status,
                params,
                gradient,
                state,
                rates.momentum,
            );
        }
        match &self.second {
            Some(second) => {
                let adam = Adam {
                    beta1: rates.momentum,
                    beta2: BETA2,
                    eps: ADAM_EPS,
                    root: (1.0 - BETA2.powi(self.time())).sqrt(),
                };
                optim::adamw(&self.groups, &status, flat, &self.first, second, adam, d);
            }
            None => optim::sgd(&self.groups, &status, flat, &self.first, rates.momentum, d),
        }
        status
    }

    /// The average of running statistics follows them, as those on the host do, where the step counted.
    ///
    /// # Panics
    /// If something has not the layout's length.
    pub fn blend_statistics(
        &self,
        status: &Status,
        average: &CubeTensor,
        values: &CubeTensor,
        d: f64,
    ) {
        blend_statistics(&self.frozen, status, average, values, d);
    }
}

#[cfg(test)]
#[path = "device_optim_tests.rs"]
mod tests;
