//! Learning rate, momentum and accumulation as pure functions of the position in the run.

use std::f64::consts::PI;

/// What an optimizer step uses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Rate of convolution weights and scales of batch norms.
    pub lr: f64,
    /// Rate of biases.
    pub bias_lr: f64,
    pub momentum: f64,
}

/// Schedule of a run, in micro-batches.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    pub epochs: usize,
    /// Micro-batches in an epoch.
    pub batches: usize,
    /// Rate after warm-up and before decay, scaled for the images of a step.
    pub lr: f64,
    /// Last rate as a part of the first.
    pub lrf: f64,
    pub cosine: bool,
    pub momentum: f64,
    /// Micro-batches of warm-up.
    pub warmup: usize,
    pub warmup_momentum: f64,
    /// First rate of the biases, scaled as `lr`.
    pub warmup_bias_lr: f64,
    /// Micro-batches of an optimizer step after warm-up.
    pub accumulate: usize,
}

impl Schedule {
    /// Factor of the rate in an epoch: from 1 to `lrf`, linearly or along a cosine (Loshchilov and Hutter 2017).
    #[must_use]
    pub fn decay(&self, epoch: usize) -> f64 {
        let x = epoch as f64 / self.epochs.max(1) as f64;
        if self.cosine {
            (1.0 - (x * PI).cos()) / 2.0 * (self.lrf - 1.0) + 1.0
        } else {
            (1.0 - x) * (1.0 - self.lrf) + self.lrf
        }
    }

    /// How far warm-up is, 0 to 1, at micro-batch `batch` of `epoch`.
    fn warmed(&self, epoch: usize, batch: usize) -> f64 {
        let at = epoch * self.batches + batch;
        if at >= self.warmup {
            1.0
        } else {
            at as f64 / self.warmup as f64
        }
    }

    /// Rates of a step that micro-batch `batch` of `epoch` ends.
    #[must_use]
    pub fn rates(&self, epoch: usize, batch: usize) -> Rates {
        let x = self.warmed(epoch, batch);
        let lr = self.lr * self.decay(epoch);
        let between = |from: f64, to: f64| if x < 1.0 { from + (to - from) * x } else { to };
        Rates {
            lr: between(0.0, lr),
            bias_lr: between(self.warmup_bias_lr, lr),
            momentum: between(self.warmup_momentum, self.momentum),
        }
    }

    /// Micro-batches of a step at micro-batch `batch` of `epoch`: 1 at first, growing in warm-up.
    #[must_use]
    pub fn accumulate(&self, epoch: usize, batch: usize) -> usize {
        let x = self.warmed(epoch, batch);
        (1.0 + (self.accumulate as f64 - 1.0) * x)
            .round_ties_even()
            .max(1.0) as usize
    }

    /// Whether micro-batch `batch` of `epoch` ends a step that `pending` micro-batches, this one included, belong to.
    /// An epoch's last always does.
    #[must_use]
    pub fn ends_step(&self, epoch: usize, batch: usize, pending: usize) -> bool {
        pending >= self.accumulate(epoch, batch) || batch + 1 == self.batches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule() -> Schedule {
        Schedule {
            epochs: 10,
            batches: 20,
            lr: 0.01,
            lrf: 0.01,
            cosine: false,
            momentum: 0.937,
            warmup: 60,
            warmup_momentum: 0.8,
            warmup_bias_lr: 0.1,
            accumulate: 4,
        }
    }

    #[test]
    fn warm_up_goes_from_its_values_to_the_schedule() {
        let s = schedule();
        assert_eq!(
            s.rates(0, 0),
            Rates {
                lr: 0.0,
                bias_lr: 0.1,
                momentum: 0.8
            }
        );
        let half = s.rates(1, 10);
        let target = 0.01 * s.decay(1);
        assert!((half.lr - target / 2.0).abs() < 1e-15);
        assert!((half.bias_lr - (0.1 + target) / 2.0).abs() < 1e-15);
        let after = s.rates(3, 0);
        assert_eq!(
            (after.lr, after.bias_lr, after.momentum),
            (0.01 * s.decay(3), 0.01 * s.decay(3), 0.937)
        );
        assert_eq!(
            (s.accumulate(0, 0), s.accumulate(1, 10), s.accumulate(3, 0)),
            (1, 2, 4)
        );
    }

    #[test]
    fn decay_ends_near_lrf_and_both_forms_start_at_one() {
        let mut s = schedule();
        assert_eq!(s.decay(0), 1.0);
        assert!((s.decay(10) - 0.01).abs() < 1e-15);
        assert!((s.decay(5) - 0.505).abs() < 1e-15);
        s.cosine = true;
        assert_eq!(s.decay(0), 1.0);
        assert!((s.decay(10) - 0.01).abs() < 1e-15);
        assert!(s.decay(2) > 0.9);
    }

    #[test]
    fn every_micro_batch_belongs_to_exactly_one_step() {
        let s = schedule();
        let mut sizes = vec![];
        for epoch in 0..s.epochs {
            let mut pending = 0;
            for batch in 0..s.batches {
                pending += 1;
                if s.ends_step(epoch, batch, pending) {
                    sizes.push(pending);
                    pending = 0;
                }
            }
            assert_eq!(pending, 0, "an epoch's end ends its step");
        }
        assert_eq!(sizes.iter().sum::<usize>(), 200);
        assert_eq!(sizes[..3], [1, 1, 1]);
        assert_eq!(*sizes.last().unwrap(), 4);
    }

    #[test]
    fn a_run_without_warm_up_starts_at_the_schedule() {
        let s = Schedule {
            warmup: 0,
            ..schedule()
        };
        assert_eq!(
            s.rates(0, 0),
            Rates {
                lr: 0.01,
                bias_lr: 0.01,
                momentum: 0.937
            }
        );
    }
}
