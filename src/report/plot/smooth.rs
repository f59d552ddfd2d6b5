//! Smoothing of a series with gaps.

/// Weighted mean around each value: weights fall as a Gaussian of `sigma` places; missing values have no weight and stay
/// missing. Nearer to an end the window is cut to be as long on both sides, so that a straight line stays one.
#[must_use]
pub fn gaussian(values: &[Option<f64>], sigma: f64) -> Vec<Option<f64>> {
    let reach = (3.0 * sigma).ceil() as usize;
    let weight = |d: usize| (-0.5 * (d as f64 / sigma).powi(2)).exp();
    (0..values.len())
        .map(|at| {
            values[at]?;
            let reach = reach.min(at).min(values.len() - 1 - at);
            let (mut sum, mut weights) = (0.0, 0.0);
            for i in at - reach..=at + reach {
                if let Some(value) = values[i] {
                    let w = if i == at { 1.0 } else { weight(i.abs_diff(at)) };
                    sum += w * value;
                    weights += w;
                }
            }
            Some(sum / weights)
        })
        .collect()
}

/// Smoothing for this many epochs: a tenth of a short run, 3 epochs in a long one.
#[must_use]
pub fn sigma(epochs: usize) -> f64 {
    (epochs as f64 / 10.0).clamp(0.25, 3.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn gaps_stay_gaps_and_have_no_weight() {
        let got = gaussian(&[Some(1.0), None, Some(1.0), None, None], 2.0);
        assert_eq!(got, [Some(1.0), None, Some(1.0), None, None]);
        assert_eq!(gaussian(&[], 2.0), []);
        assert_eq!(gaussian(&[None], 2.0), [None]);
    }

    #[test]
    fn a_spike_spreads_evenly_to_both_sides_and_keeps_its_sum() {
        let mut values = vec![Some(0.0); 41];
        values[20] = Some(1.0);
        let got: Vec<f64> = gaussian(&values, 2.0).into_iter().flatten().collect();
        assert!((got.iter().sum::<f64>() - 1.0).abs() < 1e-3);
        assert!(got[20] < 0.25 && got[20] > got[19] && got[19] > got[18]);
        for d in 0..=20 {
            assert_eq!(got[20 - d], got[20 + d]);
        }
    }

    proptest! {
        #[test]
        fn a_line_stays_and_nothing_leaves_the_range(
            slope in -10.0_f64..10.0, n in 1_usize..60, values in proptest::collection::vec(-5.0_f64..5.0, 1..60),
        ) {
            let line: Vec<Option<f64>> = (0..n).map(|i| Some(slope * i as f64 + 3.0)).collect();
            let (smooth, wide) = (gaussian(&line, sigma(n)), 1e-9 * (1.0 + slope.abs()) * n as f64);
            for (a, b) in line.iter().zip(&smooth) {
                prop_assert!((a.unwrap() - b.unwrap()).abs() <= wide);
            }
            let (low, high) = values.iter().fold((9.0_f64, -9.0_f64), |(l, h), &v| (l.min(v), h.max(v)));
            let some: Vec<Option<f64>> = values.iter().copied().map(Some).collect();
            for v in gaussian(&some, 3.0).into_iter().flatten() {
                prop_assert!((low - 1e-9..=high + 1e-9).contains(&v));
            }
        }
    }
}
