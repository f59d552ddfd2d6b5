//! Precision and recall at the confidence with the best mean F1.
//!
//! Matching at IoU 0.5 is hotcoco's, with the COCO API's rules (best score first, crowd regions absorb) but over all
//! detections kept, not only the first 100 of a class. Then, as detectors of this family do:
//!
//! - confidences c = 0, 1/999, …, 1 (1000 of them);
//! - for class k with n_k > 0 ground truths that are not crowd, over its detections with score > c:
//!   `R_k(c) = TP / n_k`; `P_k(c) = TP / (TP + FP)`, 1 where none of its detections exceeds c, 0 where it has none at
//!   all; `F_k = 2 P R / (P + R)`, 0 where both are 0. Neither TP nor FP are detections matched
//!   to a crowd region, and unmatched ones of negative area (a side inverted), as in the COCO API;
//! - `F(c)` = mean of `F_k(c)` over those classes, smoothed by a moving mean of 101 confidences, the ends repeated;
//! - c* = the first c with the greatest smoothed F. `P_k(c*)` and `R_k(c*)` are reported, and their means over classes.
//!
//! The curves are the exact counts at each c, not interpolated between detections: what is printed is what a user gets
//! who keeps the detections above c*.

use hotcoco::primitives::greedy::{GtMasks, coco_match_floor, greedy_match_masked};
use hotcoco::primitives::sim::bbox_iou_flat;

use super::results::CocoDetection;
use crate::data::Truth;

/// One scored detection that counts: not one matched to a crowd region.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Outcome {
    pub class: usize,
    pub score: f64,
    pub true_positive: bool,
}

/// Precision and recall of each class at one confidence.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct OperatingPoint {
    pub confidence: f64,
    /// By class; `None` where the class has no ground truth.
    pub classes: Vec<Option<(f64, f64)>>,
}

pub(super) const POINTS: usize = 1000;
const SMOOTHING: usize = 101;

/// The outcomes of one image's `detections`, given as (class, detection), against its ground truth, in order of class.
pub(super) fn match_image(
    truths: &[Truth],
    detections: &[(usize, CocoDetection)],
    out: &mut Vec<Outcome>,
) {
    let mut order: Vec<usize> = (0..detections.len()).collect();
    // Stable: equal scores keep their order, as in the COCO API.
    order.sort_by(|&a, &b| {
        let (a, b) = (&detections[a], &detections[b]);
        a.0.cmp(&b.0).then(b.1.score.total_cmp(&a.1.score))
    });
    for of_class in order.chunk_by(|&a, &b| detections[a].0 == detections[b].0) {
        let class = detections[of_class[0]].0;
        let of_truths = |crowd: bool| {
            let fits = move |t: &&Truth| t.class == class && t.crowd == crowd;
            truths.iter().filter(fits).map(|t| t.bbox)
        };
        let mut truth_boxes: Vec<[f64; 4]> = of_truths(false).collect();
        let single = truth_boxes.len();
        truth_boxes.extend(of_truths(true));
        let crowd: Vec<bool> = (0..truth_boxes.len()).map(|i| i >= single).collect();
        let boxes: Vec<[f64; 4]> = of_class.iter().map(|&i| detections[i].1.bbox).collect();

        let matches = greedy_match_masked(
            &bbox_iou_flat(&boxes, &truth_boxes, &crowd),
            boxes.len(),
            truth_boxes.len(),
            single,
            GtMasks {
                rematchable: Some(&crowd),
                phase2_eligible: None,
            },
            &[coco_match_floor(0.5)],
        );
        for (at, &i) in of_class.iter().enumerate() {
            let matched = matches.dt_gt[(0, at)];
            let [_, _, width, height] = boxes[at];
            let counts = match matched {
                Some(truth) => truth < single,
                // As in the COCO API: an area that no range holds.
                None => (0.0..=1e10).contains(&(width * height)),
            };
            if counts {
                out.push(Outcome {
                    class,
                    score: detections[i].1.score,
                    true_positive: matched.is_some(),
                });
            }
        }
    }
}

/// The curves of each class over confidence; `None` where it has no ground truth. `instances[class]` is the number of
/// ground truths.
pub(super) fn confidence_curves(
    outcomes: &[Outcome],
    instances: &[usize],
) -> Vec<Option<ConfidenceCurve>> {
    let mut of_class: Vec<Vec<Outcome>> = vec![Vec::new(); instances.len()];
    for outcome in outcomes {
        of_class[outcome.class].push(*outcome);
    }
    of_class
        .into_iter()
        .zip(instances)
        .map(|(own, &n)| (n > 0).then(|| ConfidenceCurve::of(own, n)))
        .collect()
}

/// The confidence of the best smoothed mean F1 and what it gives.
pub(super) fn best_f1(curves: &[Option<ConfidenceCurve>]) -> OperatingPoint {
    let counted = curves.iter().flatten().count().max(1) as f64;
    let mean_f1: Vec<f64> = (0..POINTS)
        .map(|at| curves.iter().flatten().map(|c| c.f1(at)).sum::<f64>() / counted)
        .collect();
    let best = first_greatest(&smoothed(&mean_f1));
    OperatingPoint {
        confidence: confidence(best),
        classes: curves
            .iter()
            .map(|c| c.as_ref().map(|c| (c.precision[best], c.recall[best])))
            .collect(),
    }
}

/// The `at`-th of the [`POINTS`] confidences.
pub(super) fn confidence(at: usize) -> f64 {
    at as f64 / (POINTS - 1) as f64
}

/// P and R of one class at every confidence.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfidenceCurve {
    pub precision: Vec<f64>,
    pub recall: Vec<f64>,
}

impl ConfidenceCurve {
    fn of(mut ranked: Vec<Outcome>, instances: usize) -> Self {
        ranked.sort_by(|a, b| b.score.total_cmp(&a.score));
        let mut curve = Self {
            precision: vec![if ranked.is_empty() { 0.0 } else { 1.0 }; POINTS],
            recall: vec![0.0; POINTS],
        };
        let (mut above, mut true_positives) = (0_usize, 0_usize);
        for at in (0..POINTS).rev() {
            while let Some(o) = ranked.get(above).filter(|o| o.score > confidence(at)) {
                above += 1;
                true_positives += usize::from(o.true_positive);
            }
            if above > 0 {
                curve.precision[at] = true_positives as f64 / above as f64;
                curve.recall[at] = true_positives as f64 / instances as f64;
            }
        }
        curve
    }

    /// F1 at the `at`-th confidence, 0 where P and R are.
    #[must_use]
    pub fn f1(&self, at: usize) -> f64 {
        let (p, r) = (self.precision[at], self.recall[at]);
        if p + r > 0.0 {
            2.0 * p * r / (p + r)
        } else {
            0.0
        }
    }
}

/// Moving mean of [`SMOOTHING`] values; beyond an end its value repeats.
fn smoothed(values: &[f64]) -> Vec<f64> {
    let half = SMOOTHING / 2;
    let last = values.len() - 1;
    (0..values.len())
        .map(|at| {
            let window = (at..at + SMOOTHING).map(|i| values[i.saturating_sub(half).min(last)]);
            window.sum::<f64>() / SMOOTHING as f64
        })
        .collect()
}

fn first_greatest(values: &[f64]) -> usize {
    let mut best = 0;
    for (at, &value) in values.iter().enumerate() {
        if value > values[best] {
            best = at;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(class: usize, score: f64, true_positive: bool) -> Outcome {
        Outcome {
            class,
            score,
            true_positive,
        }
    }

    /// The definition, read off without sorting or running counts.
    fn naive(outcomes: &[Outcome], instances: &[usize]) -> (f64, Vec<Option<(f64, f64)>>) {
        let at = |c: f64| -> Vec<Option<(f64, f64)>> {
            let of = |k: usize| {
                let own: Vec<_> = outcomes.iter().filter(|o| o.class == k).collect();
                let above: Vec<_> = own.iter().filter(|o| o.score > c).collect();
                let tp = above.iter().filter(|o| o.true_positive).count() as f64;
                let p = match (own.len(), above.len()) {
                    (0, _) => 0.0,
                    (_, 0) => 1.0,
                    (_, n) => tp / n as f64,
                };
                (p, tp / instances[k] as f64)
            };
            (0..instances.len())
                .map(|k| (instances[k] > 0).then(|| of(k)))
                .collect()
        };
        let f1 = |c: f64| {
            let points: Vec<_> = at(c).into_iter().flatten().collect();
            let f = |&(p, r): &(f64, f64)| {
                if p + r > 0.0 {
                    2.0 * p * r / (p + r)
                } else {
                    0.0
                }
            };
            points.iter().map(f).sum::<f64>() / points.len() as f64
        };
        let raw: Vec<f64> = (0..1000).map(|i| f1(i as f64 / 999.0)).collect();
        let mut best = (f64::MIN, 0.0);
        for i in 0..1000_i64 {
            let mean = (i - 50..=i + 50)
                .map(|j| raw[j.clamp(0, 999) as usize])
                .sum::<f64>()
                / 101.0;
            if mean > best.0 {
                best = (mean, i as f64 / 999.0);
            }
        }
        (best.1, at(best.1))
    }

    #[test]
    fn the_operating_point_is_the_definition_read_off_naively() {
        let mut state = 7_u64;
        let mut draw = move || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) as f64 / f64::from(1_u32 << 31)
        };
        for _ in 0..20 {
            let outcomes: Vec<Outcome> = (0..200)
                .map(|_| {
                    let score = draw();
                    outcome((draw() * 4.0) as usize, score, draw() < score)
                })
                .collect();
            let instances = [60, 0, 45, 90, 7];
            let got = best_f1(&confidence_curves(&outcomes, &instances));
            assert_eq!((got.confidence, got.classes), naive(&outcomes, &instances));
        }
    }

    #[test]
    fn separable_scores_give_precision_and_recall_of_one() {
        let outcomes = [
            outcome(0, 0.9, true),
            outcome(0, 0.8, true),
            outcome(0, 0.1, false),
        ];
        let point = best_f1(&confidence_curves(&outcomes, &[2]));
        assert_eq!(point.classes, [Some((1.0, 1.0))]);
        assert!(point.confidence > 0.1 && point.confidence < 0.8);
    }

    #[test]
    fn a_class_without_detections_has_zero_precision_and_one_without_truth_none() {
        let point = best_f1(&confidence_curves(&[outcome(1, 0.5, false)], &[3, 0]));
        assert_eq!(point.classes, [Some((0.0, 0.0)), None]);
        assert_eq!(
            best_f1(&confidence_curves(&[], &[0, 0])).classes,
            [None, None]
        );
    }

    fn truth(bbox: [f64; 4], crowd: bool) -> Truth {
        Truth {
            id: 1,
            class: 0,
            bbox,
            area: bbox[2] * bbox[3],
            crowd,
        }
    }

    fn detection(bbox: [f64; 4], score: f64) -> (usize, CocoDetection) {
        let d = CocoDetection {
            category_id: 1,
            bbox,
            score,
        };
        (0, d)
    }

    #[test]
    fn detections_in_a_crowd_region_count_neither_way_and_a_truth_is_found_once() {
        let truths = [
            truth([0.0, 0.0, 100.0, 100.0], true),
            truth([200.0, 0.0, 50.0, 50.0], false),
        ];
        let detections = [
            detection([200.0, 0.0, 50.0, 50.0], 0.6),
            detection([10.0, 10.0, 20.0, 20.0], 0.9),
            detection([40.0, 40.0, 20.0, 20.0], 0.8),
            detection([201.0, 0.0, 50.0, 50.0], 0.7),
        ];
        let mut out = Vec::new();
        match_image(&truths, &detections, &mut out);
        assert_eq!(out, [outcome(0, 0.7, true), outcome(0, 0.6, false)]);
    }
}
