//! Scaling of the loss, so that gradients in float16 are not flushed to zero (Micikevicius et al. 2018): a step whose
//! gradient overflowed is left out and the factor halved, which every rank does alike, as all see the same sum.

use crate::train::checkpoint::LossScale;
use crate::train::precision::Precision;

const FIRST: f32 = 65536.0;
/// Steps without overflow after which the factor is doubled.
const STEPS: u32 = 2000;
const MOST: f32 = 16_777_216.0;
/// Below it the gradient itself is not finite.
const LEAST: f32 = 1.0;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LossScaler {
    scale: f32,
    good: u32,
    active: bool,
}

impl LossScaler {
    pub(super) fn new(precision: Precision) -> Self {
        let active = precision == Precision::Float16;
        Self {
            scale: if active { FIRST } else { 1.0 },
            good: 0,
            active,
        }
    }

    pub(super) fn is_active(&self) -> bool {
        self.active
    }

    pub(super) fn scale(&self) -> f32 {
        self.scale
    }

    /// After a step: whether training may go on.
    pub(super) fn update(&mut self, finite: bool) -> bool {
        if !self.active {
            return finite;
        }
        if !finite {
            self.good = 0;
            if self.scale <= LEAST {
                return false;
            }
            self.scale /= 2.0;
            return true;
        }
        self.good += 1;
        if self.good == STEPS {
            self.good = 0;
            self.scale = (self.scale * 2.0).min(MOST);
        }
        true
    }

    /// For a checkpoint.
    pub(super) fn state(&self) -> Option<LossScale> {
        self.active.then_some(LossScale {
            scale: self.scale,
            good_steps: self.good,
        })
    }

    pub(super) fn restore(&mut self, state: Option<LossScale>) {
        if let (true, Some(s)) = (self.active, state) {
            (self.scale, self.good) = (s.scale, s.good_steps);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overflow_halves_it_and_many_good_steps_double_it() {
        let mut s = LossScaler::new(Precision::Float16);
        assert!(s.update(false));
        assert_eq!(s.scale(), FIRST / 2.0);
        for _ in 0..STEPS {
            assert!(s.update(true));
        }
        assert_eq!(s.scale(), FIRST);
        let saved = s.state();
        let mut other = LossScaler::new(Precision::Float16);
        other.restore(saved);
        assert_eq!(other, s);
        for _ in 0..16 {
            assert!(s.update(false));
        }
        assert!(!s.update(false), "a gradient that is not finite at scale 1");
    }

    #[test]
    fn other_numbers_are_not_scaled() {
        let mut s = LossScaler::new(Precision::Bfloat16);
        assert_eq!(s.scale(), 1.0);
        assert!(s.update(true) && !s.update(false));
        assert_eq!(s.state(), None);
    }
}
