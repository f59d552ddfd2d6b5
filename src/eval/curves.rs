//! The curves that the figures are read from: precision, recall and F1 at IoU 0.5.

use super::best_f1::{ConfidenceCurve, POINTS, confidence};

/// Curves of the classes that have ground truth.
#[derive(Debug, Clone, PartialEq)]
pub struct Curves {
    /// The confidence with the best smoothed mean F1, as in `Metrics`.
    pub best: f64,
    pub classes: Vec<ClassCurves>,
}

/// One class's curves.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassCurves {
    pub class: usize,
    /// Exact precision and recall of the detections above each of [`Curves::confidences`].
    pub by_confidence: ConfidenceCurve,
    /// The COCO API's interpolated precision at each of [`Curves::recalls`]; their mean is the class's AP50.
    pub by_recall: Vec<f64>,
}

impl Curves {
    /// 0, 1/999, …, 1.
    #[must_use]
    pub fn confidences() -> Vec<f64> {
        (0..POINTS).map(confidence).collect()
    }

    /// 0, 0.01, …, 1.
    #[must_use]
    pub fn recalls() -> Vec<f64> {
        (0..=100).map(|r| f64::from(r) / 100.0).collect()
    }

    /// Which of the confidences is the best.
    #[must_use]
    pub fn best_at(&self) -> usize {
        (self.best * (POINTS - 1) as f64).round() as usize
    }

    /// Mean of curves of equal length; zeros where there are none.
    #[must_use]
    pub fn mean<'a>(curves: impl Iterator<Item = &'a [f64]>, points: usize) -> Vec<f64> {
        let mut sums = vec![0.0; points];
        let mut n = 0;
        for curve in curves {
            n += 1;
            sums.iter_mut().zip(curve).for_each(|(s, v)| *s += v);
        }
        let n = f64::from(n.max(1));
        sums.iter().map(|s| s / n).collect()
    }
}
