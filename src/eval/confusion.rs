//! Which classes are taken for which.
//!
//! At one confidence and one IoU, over each image: pairs of a ground truth that is no crowd region and a detection above
//! the confidence, of any classes, whose IoU is greater than the threshold, are walked from the greatest IoU down (of
//! equals the better score, then the earlier); a pair is taken where both are still free. Each pair counts for (class
//! of the detection, class of the truth); each truth that is left for (background, its class): missed; each detection
//! that is left for (its class, background): false, unless so much of it lies in a crowd region of its class, as in the
//! COCO API: then it is not counted.

use std::collections::BTreeMap;

use hotcoco::primitives::sim::bbox_iou_flat;

use super::Predictions;
use super::results::CocoDetection;
use crate::data::Truth;

/// Counts of pairs at one confidence and one IoU.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfusionMatrix {
    /// Classes; the class number after the last one stands for the background.
    pub classes: usize,
    /// Only scores above it count. Rounded as scores are, to f32, so that a score of 0.3 is not above 0.3.
    pub confidence: f64,
    /// Only overlaps above it match.
    pub iou: f64,
    /// (predicted, true); pairs that never occurred are missing.
    pub counts: BTreeMap<(usize, usize), u64>,
}

impl ConfusionMatrix {
    /// Nothing counted yet.
    #[must_use]
    pub fn new(classes: usize, confidence: f64, iou: f64) -> Self {
        Self {
            classes,
            confidence: f64::from(confidence as f32),
            iou,
            counts: BTreeMap::new(),
        }
    }

    /// Of all images in `predictions`.
    #[must_use]
    pub fn of(predictions: &Predictions<'_>, confidence: f64, iou: f64) -> Self {
        let (split, images) = predictions.images();
        let class_of: BTreeMap<u64, usize> = split.category_ids.iter().copied().zip(0..).collect();
        let mut matrix = Self::new(split.names.len(), confidence, iou);
        for (index, found) in images {
            let found: Vec<(usize, CocoDetection)> = found
                .iter()
                .filter_map(|d| Some((*class_of.get(&d.category_id)?, *d)))
                .collect();
            matrix.add(&split.images[index].truths, &found);
        }
        matrix
    }

    /// The background's row and column.
    #[must_use]
    pub fn background(&self) -> usize {
        self.classes
    }

    /// One image.
    pub(super) fn add(&mut self, truths: &[Truth], found: &[(usize, CocoDetection)]) {
        let (crowds, truths): (Vec<&Truth>, Vec<&Truth>) = truths.iter().partition(|t| t.crowd);
        let mut found: Vec<&(usize, CocoDetection)> = found
            .iter()
            .filter(|(_, d)| d.score > self.confidence)
            .collect();
        found.sort_by(|a, b| b.1.score.total_cmp(&a.1.score));

        let boxes: Vec<[f64; 4]> = found.iter().map(|f| f.1.bbox).collect();
        let overlaps = |with: &[&Truth], crowd: bool| {
            let others: Vec<[f64; 4]> = with.iter().map(|t| t.bbox).collect();
            bbox_iou_flat(&boxes, &others, &vec![crowd; others.len()])
        };
        let ious = overlaps(&truths, false);
        let mut pairs: Vec<(usize, usize, f64)> = (0..boxes.len())
            .flat_map(|d| (0..truths.len()).map(move |t| (d, t)))
            .map(|(d, t)| (d, t, ious[d * truths.len() + t]))
            .filter(|p| p.2 > self.iou)
            .collect();
        // Stable: of equals the better score, then the earlier truth.
        pairs.sort_by(|a, b| b.2.total_cmp(&a.2));

        let mut truth_free = vec![true; truths.len()];
        let mut found_free = vec![true; boxes.len()];
        for (d, t, _) in pairs {
            if found_free[d] && truth_free[t] {
                (found_free[d], truth_free[t]) = (false, false);
                self.count(found[d].0, truths[t].class);
            }
        }
        for (truth, _) in truths.iter().zip(truth_free).filter(|(_, free)| *free) {
            self.count(self.background(), truth.class);
        }
        let in_crowds = overlaps(&crowds, true);
        for (d, (class, _)) in found.iter().enumerate().filter(|(d, _)| found_free[*d]) {
            let own = |(c, crowd): (usize, &&Truth)| {
                crowd.class == *class && in_crowds[d * crowds.len() + c] > self.iou
            };
            if !crowds.iter().enumerate().any(own) {
                self.count(*class, self.background());
            }
        }
    }

    fn count(&mut self, predicted: usize, truth: usize) {
        *self.counts.entry((predicted, truth)).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::drawn_set;
    use super::*;

    fn truth(class: usize, bbox: [f64; 4], crowd: bool) -> Truth {
        Truth {
            id: 1,
            class,
            bbox,
            area: bbox[2] * bbox[3],
            crowd,
        }
    }

    fn found(class: usize, bbox: [f64; 4], score: f64) -> (usize, CocoDetection) {
        let d = CocoDetection {
            category_id: 1,
            bbox,
            score,
        };
        (class, d)
    }

    const A: [f64; 4] = [0.0, 0.0, 10.0, 10.0];
    const NEAR_A: [f64; 4] = [1.0, 0.0, 10.0, 10.0];
    const B: [f64; 4] = [100.0, 0.0, 10.0, 10.0];
    const CROWD: [f64; 4] = [300.0, 0.0, 200.0, 200.0];
    const IN_CROWD: [f64; 4] = [310.0, 10.0, 20.0, 20.0];

    #[test]
    fn a_small_example_counts_as_by_hand() {
        let truths = [
            truth(0, A, false),
            truth(1, B, false),
            truth(1, [200.0, 0.0, 9.0, 9.0], false),
            truth(2, CROWD, true),
        ];
        let detections = [
            found(1, NEAR_A, 0.99),  // A is taken by the nearer one below: false
            found(0, A, 0.5),        // right
            found(0, B, 0.9),        // 1 taken for 0
            found(2, IN_CROWD, 0.8), // in a crowd region of its class: not counted
            found(1, IN_CROWD, 0.8), // of another class: false
            found(2, [200.0, 0.0, 9.0, 9.0], 0.25), // not above 0.25
            found(0, [500.0, 0.0, 9.0, 9.0], 0.3), // false
            found(0, [206.0, 0.0, 9.0, 9.0], 0.3), // IoU 0.2: false, and the truth is missed
        ];
        let mut matrix = ConfusionMatrix::new(3, 0.25, 0.45);
        matrix.add(&truths, &detections);
        let expected = [
            ((0, 0), 1),
            ((0, 1), 1),
            ((0, 3), 2),
            ((1, 3), 2),
            ((3, 1), 1),
        ];
        assert_eq!(matrix.counts, BTreeMap::from(expected));
    }

    #[test]
    fn of_equal_overlaps_the_better_score_wins() {
        let mut matrix = ConfusionMatrix::new(2, 0.25, 0.45);
        matrix.add(&[truth(0, A, false)], &[found(1, A, 0.5), found(0, A, 0.6)]);
        assert_eq!(matrix.counts, BTreeMap::from([((0, 0), 1), ((1, 2), 1)]));
        matrix.add(&[], &[]);
        assert_eq!(matrix.counts.values().sum::<u64>(), 2);
    }

    #[test]
    fn columns_sum_to_the_truths_and_rows_to_the_detections_that_count() {
        for seed in 0..8 {
            let (split, detections) = drawn_set(seed);
            let mut predictions = Predictions::new(&split);
            for (index, found) in detections.iter().enumerate() {
                predictions.add(index, found).unwrap();
            }
            let matrix = ConfusionMatrix::of(&predictions, 0.3, 0.45);
            let background = matrix.background();
            let sum = |line: &dyn Fn(&(usize, usize)) -> bool| -> u64 {
                let own = matrix.counts.iter().filter(|(at, _)| line(at));
                own.map(|(_, n)| n).sum()
            };
            for class in 0..split.names.len() {
                let truths = split.images.iter().flat_map(|i| &i.truths);
                let truths = truths.filter(|t| t.class == class && !t.crowd).count() as u64;
                assert_eq!(sum(&|at| at.1 == class), truths, "class {class}");
                let above = detections.iter().flatten();
                let above = above.filter(|d| d.class == class && d.score > 0.3).count() as u64;
                let counted = sum(&|at| at.0 == class);
                let crowds = split.images.iter().flat_map(|i| &i.truths);
                let crowded = crowds.filter(|t| t.crowd && t.class == class).count() > 0;
                assert!(
                    counted == above || (crowded && counted < above),
                    "class {class}"
                );
            }
            assert_eq!(sum(&|at| *at == (background, background)), 0);
            let without_crowds = drop_crowds(split.clone());
            let mut predictions = Predictions::new(&without_crowds);
            for (index, found) in detections.iter().enumerate() {
                predictions.add(index, found).unwrap();
            }
            let matrix = ConfusionMatrix::of(&predictions, 0.3, 0.45);
            let above = detections
                .iter()
                .flatten()
                .filter(|d| d.score > 0.3)
                .count() as u64;
            let rows = matrix.counts.iter().filter(|(at, _)| at.0 != background);
            assert_eq!(rows.map(|(_, n)| n).sum::<u64>(), above);
        }
    }

    fn drop_crowds(mut split: crate::data::Split) -> crate::data::Split {
        split
            .images
            .iter_mut()
            .for_each(|i| i.truths.retain(|t| !t.crowd));
        split
    }
}
