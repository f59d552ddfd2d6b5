//! Choosing an image's detections among the boxes of all anchors.

use super::Detection;

/// How detections are chosen; the defaults are those of validation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SuppressConfig {
    /// A score must be greater than this.
    pub conf: f32,
    /// A box is dropped where its IoU with a better box of its class is greater than this.
    pub iou: f32,
    /// Boxes kept per image, over all classes.
    pub max_det: usize,
    /// Candidates (anchor, class) considered per image, best first.
    pub max_nms: usize,
    /// Every class of an anchor above `conf` is a candidate; otherwise only its best class (the first of equals).
    pub multi_label: bool,
}

impl Default for SuppressConfig {
    fn default() -> Self {
        Self {
            conf: 0.001,
            iou: 0.7,
            max_det: 300,
            max_nms: 30_000,
            multi_label: true,
        }
    }
}

/// Candidates are sorted in blocks of this size, because the first few usually fill `max_det`.
const BLOCK: usize = 2048;

/// Greedy non-maximum suppression within each class.
///
/// `boxes` is `[A, 4]` (x1, y1, x2, y2 in pixels), `scores` is `[A, classes]` (probabilities). Returns at most
/// `max_det` detections, best first. Equal scores are ordered by anchor, then class, so the result is a pure function
/// of its arguments. A NaN score is never a candidate.
///
/// Walking the candidates of all classes in one order of score and comparing each with the kept boxes of its own class
/// keeps the same boxes as suppressing class by class and cutting the merged list at `max_det`: whether a box is kept
/// depends only on better boxes of its class. It may therefore stop at the `max_det`-th kept box.
///
/// # Panics
/// Where the lengths of `boxes` and `scores` do not fit one number of anchors.
pub fn suppress(
    boxes: &[f32],
    scores: &[f32],
    classes: usize,
    config: &SuppressConfig,
) -> Vec<Detection> {
    check_shapes(boxes, scores, classes);
    let mut candidates = if config.multi_label {
        above(scores, config.conf)
    } else {
        best_of_each_anchor(scores, classes, config.conf)
    };
    if candidates.len() > config.max_nms {
        candidates.select_nth_unstable(config.max_nms);
        candidates.truncate(config.max_nms);
    }

    let mut kept: Vec<Detection> = Vec::with_capacity(config.max_det.min(candidates.len()));
    let mut kept_of_class: Vec<Vec<Area>> = vec![Vec::new(); classes];
    let mut rest = candidates.as_mut_slice();
    while !rest.is_empty() {
        let block = BLOCK.min(rest.len());
        if block < rest.len() {
            rest.select_nth_unstable(block);
        }
        let (now, later) = rest.split_at_mut(block);
        now.sort_unstable();
        for candidate in now {
            if kept.len() == config.max_det {
                return kept;
            }
            let detection = candidate.detection(boxes, scores, classes);
            let area = Area::of(detection.xyxy);
            let better = &mut kept_of_class[detection.class];
            if !better.iter().any(|b| b.iou_exceeds(&area, config.iou)) {
                better.push(area);
                kept.push(detection);
            }
        }
        rest = later;
    }
    kept
}

/// Detections of the one-to-one head, which needs no suppression (YOLOv10, arXiv 2405.14458, section 3.1): the
/// `k = min(max_det, A)` anchors with the greatest class score, then the best `k` of their `k * classes` scores,
/// then those above `conf`.
///
/// Shapes, order and ties as in [`suppress`]; `iou`, `max_nms` and `multi_label` are not used.
///
/// # Panics
/// As [`suppress`].
pub fn end_to_end(
    boxes: &[f32],
    scores: &[f32],
    classes: usize,
    config: &SuppressConfig,
) -> Vec<Detection> {
    check_shapes(boxes, scores, classes);
    // An anchor that is not above `conf` cannot contribute, and leaving it out early changes no choice: every anchor
    // and score that is ranked before it stays ranked before it.
    let mut anchors = best_of_each_anchor(scores, classes, config.conf);
    let k = config.max_det.min(boxes.len() / 4);
    keep_best(&mut anchors, k);
    let mut candidates: Vec<Candidate> = anchors
        .iter()
        .flat_map(|best| {
            let first = best.flat() / classes * classes;
            (first..first + classes)
                .filter(|&flat| scores[flat] > config.conf)
                .map(|flat| Candidate::new(scores[flat], flat))
        })
        .collect();
    keep_best(&mut candidates, k);
    candidates
        .iter()
        .map(|c| c.detection(boxes, scores, classes))
        .collect()
}

/// The best `k`, sorted.
fn keep_best(candidates: &mut Vec<Candidate>, k: usize) {
    if candidates.len() > k {
        candidates.select_nth_unstable(k);
        candidates.truncate(k);
    }
    candidates.sort_unstable();
}

fn check_shapes(boxes: &[f32], scores: &[f32], classes: usize) {
    assert!(
        classes > 0 && boxes.len().is_multiple_of(4) && scores.len() == boxes.len() / 4 * classes,
        "boxes [A, 4] of length {} and scores [A, {classes}] of length {} disagree",
        boxes.len(),
        scores.len()
    );
    assert!(
        u32::try_from(scores.len()).is_ok(),
        "{} scores in one image are more than 2^32",
        scores.len()
    );
}

fn above(scores: &[f32], conf: f32) -> Vec<Candidate> {
    let mut out = Vec::new();
    for (flat, &score) in scores.iter().enumerate() {
        if score > conf {
            out.push(Candidate::new(score, flat));
        }
    }
    out
}

fn best_of_each_anchor(scores: &[f32], classes: usize, conf: f32) -> Vec<Candidate> {
    let mut out = Vec::new();
    for (anchor, of_anchor) in scores.chunks_exact(classes).enumerate() {
        let mut best = (conf, None);
        for (class, &score) in of_anchor.iter().enumerate() {
            if score > best.0 {
                best = (score, Some(class));
            }
        }
        if let (score, Some(class)) = best {
            out.push(Candidate::new(score, anchor * classes + class));
        }
    }
    out
}

/// (anchor, class) packed so that the integer order is: score descending, anchor ascending, class ascending. The high
/// half holds the score's inverted order key, the low half the position in `scores`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate(u64);

impl Candidate {
    fn new(score: f32, flat: usize) -> Self {
        // Adding zero turns -0 into 0. A negative float's bits fall as it rises, a positive one's rise, so flip
        // accordingly to get one ascending order.
        let bits = (score + 0.0).to_bits();
        let ascending = if bits >> 31 == 1 {
            !bits
        } else {
            bits | 1 << 31
        };
        Self(u64::from(!ascending) << 32 | flat as u64)
    }

    fn flat(self) -> usize {
        (self.0 & u64::from(u32::MAX)) as usize
    }

    fn detection(self, boxes: &[f32], scores: &[f32], classes: usize) -> Detection {
        let flat = self.flat();
        let at = flat / classes * 4;
        Detection {
            xyxy: [boxes[at], boxes[at + 1], boxes[at + 2], boxes[at + 3]],
            score: scores[flat],
            class: flat % classes,
        }
    }
}

/// A box with its area.
#[derive(Debug, Clone, Copy)]
struct Area {
    xyxy: [f32; 4],
    area: f32,
}

impl Area {
    fn of(xyxy: [f32; 4]) -> Self {
        let [x1, y1, x2, y2] = xyxy;
        Self {
            xyxy,
            area: (x2 - x1) * (y2 - y1),
        }
    }

    /// Whether IoU > `threshold`; false where the union is not positive.
    fn iou_exceeds(&self, other: &Self, threshold: f32) -> bool {
        let (a, b) = (self.xyxy, other.xyxy);
        let width = (a[2].min(b[2]) - a[0].max(b[0])).max(0.0);
        let height = (a[3].min(b[3]) - a[1].max(b[1])).max(0.0);
        let intersection = width * height;
        let union = self.area + other.area - intersection;
        union > 0.0 && intersection / union > threshold
    }
}
