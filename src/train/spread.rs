//! Median, least and greatest of some measurements.

use serde::Serialize;

/// Of some numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// # Panics
    /// Without a number.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let n = values.len();
        Self {
            median: (values[(n - 1) / 2] + values[n / 2]) / 2.0,
            min: values[0],
            max: values[n - 1],
        }
    }
}
