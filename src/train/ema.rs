//! Exponential moving average of parameters and running statistics.

use crate::model::Layout;

const DECAY: f64 = 0.9999;
/// Reference steps over which the decay rises.
const RAMP: f64 = 2000.0;

/// Decay after `updates` reference steps (images seen / reference batch), for steps that are `ratio` reference
/// steps long: `[0.9999 (1 - exp(-updates / 2000))]^ratio`.
#[must_use]
pub fn decay(updates: f64, ratio: f64) -> f64 {
    (DECAY * (1.0 - (-updates / RAMP).exp())).powf(ratio)
}

/// `average = d average + (1 - d) values`.
pub fn blend(average: &mut [f32], values: &[f32], d: f64) {
    let (d, e) = (d as f32, (1.0 - d) as f32);
    average
        .iter_mut()
        .zip(values)
        .for_each(|(a, v)| *a = d * *a + e * v);
}

/// [`blend`] of running statistics. Those of frozen norms are copied: the average of equal numbers is theirs only to
/// rounding.
pub fn blend_statistics(layout: &Layout, average: &mut [f32], values: &[f32], d: f64) {
    for n in &layout.norms {
        let at = n.mean().start..n.var().end;
        let (average, values) = (&mut average[at.clone()], &values[at]);
        if n.frozen {
            average.copy_from_slice(values);
        } else {
            blend(average, values, d);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::init::State;

    #[test]
    fn decay_rises_from_zero_and_two_half_steps_make_one() {
        assert_eq!(decay(0.0, 1.0), 0.0);
        assert!((decay(1e9, 1.0) - DECAY).abs() < 1e-12);
        assert!((decay(500.0, 0.5).powi(2) - decay(500.0, 1.0)).abs() < 1e-12);
    }

    #[test]
    fn a_constant_state_stays_itself() {
        let s = State {
            params: vec![1.5; 3],
            buffers: vec![-2.0],
            batches_tracked: 7,
        };
        let mut a = s.clone();
        blend(&mut a.params, &s.params, 0.25);
        blend(&mut a.buffers, &s.buffers, 0.25);
        assert_eq!(a, s);
    }
}
