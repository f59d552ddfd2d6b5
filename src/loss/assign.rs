//! Task-aligned assignment of ground truth to anchors (Feng et al. 2021, TOOD), with enlarged candidates
//! for small objects. Runs on the host in float64; its result is a constant of the loss's graph.

use super::anchors::Anchors;
use super::boxes::Target;

const BETA: i32 = 6;
const EPS: f64 = 1e-9;

/// A ground-truth box of an image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroundTruth {
    pub class: usize,
    /// `x1 y1 x2 y2` in pixels of the network's input.
    pub xyxy: [f64; 4],
}

/// How many anchors an object gets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TopK {
    /// Best anchors per object before conflicts are resolved.
    pub first: usize,
    /// Best anchors per object that remain afterwards.
    pub last: usize,
    /// Sides shorter than this many pixels are enlarged to it when candidates are chosen.
    pub min_side: f64,
}

/// An anchor that answers for an object.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Positive {
    pub anchor: usize,
    /// Index of the object in the image's list.
    pub truth: usize,
    /// Soft target of the object's class.
    pub score: f64,
}

struct Pair {
    anchor: usize,
    truth: usize,
    metric: f64,
    overlap: f64,
}

/// Assigns one image's objects; positives come in the order of anchors.
///
/// `score(anchor, class)` is a probability (at most 1), `boxes(anchor)` a box in pixels. The alignment of an anchor with
/// an object is `score^0.5 * max(CIoU, 0)^6` and counts only where the anchor's centre is strictly inside the
/// (enlarged) object. Ties go to the lower anchor, conflicts to the object with the larger overlap.
pub fn assign(
    anchors: &Anchors,
    truths: &[GroundTruth],
    topk: TopK,
    score: impl Fn(usize, usize) -> f64,
    boxes: impl Fn(usize) -> [f64; 4],
) -> Vec<Positive> {
    let mut chosen: Vec<Pair> = vec![];
    let mut best: Vec<Pair> = vec![];
    for (truth, t) in truths.iter().enumerate() {
        let target = Target::new(t.xyxy);
        candidates(anchors, t.xyxy, topk.min_side, |anchor| {
            // An anchor without alignment has target 0 and cannot win a conflict: leaving it out changes nothing.
            // Nor does leaving out one that cannot come before the last of the best, which all have lower anchors.
            let floor = if best.len() < topk.first {
                0.0
            } else {
                best.last().map_or(f64::INFINITY, |p| p.metric)
            };
            let b = boxes(anchor);
            let iou = target.iou(b);
            let most = iou.max(0.0).powi(BETA);
            if most > floor {
                let root = score(anchor, t.class).sqrt();
                if root * most > floor {
                    let overlap = target.ciou(b, iou).max(0.0);
                    let metric = root * overlap.powi(BETA);
                    if metric > floor {
                        best.truncate(topk.first - 1);
                        let at = best.partition_point(|p| p.metric >= metric);
                        best.insert(
                            at,
                            Pair {
                                anchor,
                                truth,
                                metric,
                                overlap,
                            },
                        );
                    }
                }
            }
        });
        chosen.append(&mut best);
    }
    // an anchor claimed by several objects stays with the one it overlaps most
    chosen.sort_by(|a, b| {
        a.anchor
            .cmp(&b.anchor)
            .then(b.overlap.total_cmp(&a.overlap))
            .then(a.truth.cmp(&b.truth))
    });
    chosen.dedup_by_key(|p| p.anchor);
    if topk.last < topk.first {
        chosen.sort_by(|a, b| {
            a.truth
                .cmp(&b.truth)
                .then(b.metric.total_cmp(&a.metric))
                .then(a.anchor.cmp(&b.anchor))
        });
        let mut rank = (usize::MAX, 0);
        chosen.retain(|p| {
            rank = if p.truth == rank.0 {
                (p.truth, rank.1 + 1)
            } else {
                (p.truth, 0)
            };
            rank.1 < topk.last
        });
        chosen.sort_by_key(|p| p.anchor);
    }
    let mut best = vec![(0.0f64, 0.0f64); truths.len()];
    for p in &chosen {
        let b = &mut best[p.truth];
        *b = (b.0.max(p.metric), b.1.max(p.overlap));
    }
    chosen
        .into_iter()
        .map(|p| {
            let (metric, overlap) = best[p.truth];
            Positive {
                anchor: p.anchor,
                truth: p.truth,
                score: p.metric * overlap / (metric + EPS),
            }
        })
        .collect()
}

/// Anchors whose centre is strictly inside the box, each side of it at least `min_side` long.
fn candidates(anchors: &Anchors, b: [f64; 4], min_side: f64, mut f: impl FnMut(usize)) {
    let grow = |lo: f64, hi: f64| {
        if hi - lo < min_side {
            let centre = (lo + hi) / 2.0;
            (centre - min_side / 2.0, centre + min_side / 2.0)
        } else {
            (lo, hi)
        }
    };
    let ((x1, x2), (y1, y2)) = (grow(b[0], b[2]), grow(b[1], b[3]));
    for l in &anchors.levels {
        let s = l.stride as f64;
        // cells that can lie inside, one more on each side; the exact test follows
        let first = |lo: f64| ((lo / s - 0.5).floor().max(0.0)) as usize;
        let last =
            |hi: f64, n: usize| ((hi / s - 0.5).ceil().max(-1.0) + 1.0).min(n as f64) as usize;
        for row in first(y1)..last(y2, l.rows) {
            for col in first(x1)..last(x2, l.cols) {
                let anchor = l.first + row * l.cols + col;
                let [x, y] = anchors.xy[anchor];
                if (x - x1).min(y - y1).min(x2 - x).min(y2 - y) > EPS {
                    f(anchor);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::boxes::ciou;
    use super::*;
    use proptest::prelude::*;

    const MANY: TopK = TopK {
        first: 10,
        last: 10,
        min_side: 16.0,
    };
    const ONE: TopK = TopK {
        first: 7,
        last: 1,
        min_side: 16.0,
    };

    fn truth(xyxy: [f64; 4]) -> GroundTruth {
        GroundTruth { class: 0, xyxy }
    }

    #[test]
    fn a_tiny_object_between_centres_still_gets_anchors() {
        let a = Anchors::new(64, 64, &[8, 16, 32]);
        let tiny = truth([16.5, 16.5, 18.5, 18.5]);
        let near = |anchor: usize| {
            let [x, y] = a.xy[anchor];
            [x - 5.0, y - 5.0, x + 5.0, y + 5.0]
        };
        let with = assign(&a, &[tiny], MANY, |_, _| 0.5, near);
        let without = assign(
            &a,
            &[tiny],
            TopK {
                min_side: 0.0,
                ..MANY
            },
            |_, _| 0.5,
            near,
        );
        assert!(!with.is_empty());
        assert!(
            without.is_empty(),
            "no centre lies inside a 2 px object at (17.5, 17.5)"
        );
    }

    #[test]
    fn one_to_one_keeps_one_anchor_per_object_and_gives_it_its_overlap() {
        let a = Anchors::new(64, 64, &[8, 16, 32]);
        let t = truth([8.0, 8.0, 40.0, 40.0]);
        let shifted = |anchor: usize| [8.0 + anchor as f64 * 0.01, 8.0, 40.0, 40.0];
        let p = assign(&a, &[t], ONE, |_, _| 0.3, shifted);
        assert_eq!(p.len(), 1);
        let overlap = ciou(t.xyxy, shifted(p[0].anchor));
        assert!(
            (p[0].score - overlap).abs() < 1e-6,
            "the best anchor's target is its overlap"
        );
    }

    /// The definition, written over the dense matrix of all pairs.
    fn dense(
        a: &Anchors,
        truths: &[GroundTruth],
        k: TopK,
        score: &[f64],
        boxes: &[[f64; 4]],
    ) -> Vec<(usize, usize, f64)> {
        let (n, m) = (a.len(), truths.len());
        let mut metric = vec![vec![0.0; n]; m];
        let mut overlap = vec![vec![0.0; n]; m];
        let mut mask = vec![vec![false; n]; m];
        for (g, t) in truths.iter().enumerate() {
            let mut b = t.xyxy;
            for d in 0..2 {
                if b[d + 2] - b[d] < k.min_side {
                    let c = (b[d] + b[d + 2]) / 2.0;
                    (b[d], b[d + 2]) = (c - k.min_side / 2.0, c + k.min_side / 2.0);
                }
            }
            for i in 0..n {
                let [x, y] = a.xy[i];
                if x - b[0] > EPS && y - b[1] > EPS && b[2] - x > EPS && b[3] - y > EPS {
                    overlap[g][i] = ciou(t.xyxy, boxes[i]).max(0.0);
                    metric[g][i] = score[i].sqrt() * overlap[g][i].powi(6);
                }
            }
            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by(|&i, &j| metric[g][j].total_cmp(&metric[g][i]).then(i.cmp(&j)));
            order[..k.first.min(n)]
                .iter()
                .for_each(|&i| mask[g][i] = metric[g][i] > 0.0);
        }
        for i in 0..n {
            let best = (0..m)
                .filter(|&g| mask[g][i])
                .max_by(|&g, &h| overlap[g][i].total_cmp(&overlap[h][i]).then(h.cmp(&g)));
            (0..m).for_each(|g| mask[g][i] &= Some(g) == best);
        }
        let mut out = vec![];
        for g in 0..m {
            let mut own: Vec<usize> = (0..n).filter(|&i| mask[g][i]).collect();
            own.sort_by(|&i, &j| metric[g][j].total_cmp(&metric[g][i]).then(i.cmp(&j)));
            own.truncate(k.last);
            let best_metric = own.iter().map(|&i| metric[g][i]).fold(0.0, f64::max);
            let best_overlap = own.iter().map(|&i| overlap[g][i]).fold(0.0, f64::max);
            out.extend(
                own.iter()
                    .map(|&i| (i, g, metric[g][i] * best_overlap / (best_metric + EPS))),
            );
        }
        out.sort_by_key(|p| p.0);
        out
    }

    proptest! {
        #[test]
        fn sparse_assignment_equals_the_dense_definition(
            raw in prop::collection::vec((0.0..60.0f64, 0.0..60.0f64, 1.0..50.0f64, 1.0..50.0f64), 0..6),
            noise in prop::collection::vec((0.0..1.0f64, -6.0..6.0f64, -6.0..6.0f64, 4.0..30.0f64), 84),
            one in any::<bool>(),
        ) {
            let a = Anchors::new(64, 64, &[8, 16, 32]);
            let truths: Vec<_> = raw.iter().map(|&(x, y, w, h)| truth([x, y, (x + w).min(64.0), (y + h).min(64.0)])).collect();
            let boxes: Vec<[f64; 4]> = (0..a.len()).map(|i| {
                let ([x, y], (_, dx, dy, r)) = (a.xy[i], noise[i]);
                [x + dx - r, y + dy - r, x + dx + r, y + dy + r]
            }).collect();
            let score: Vec<f64> = noise.iter().map(|n| n.0).collect();
            let k = if one { ONE } else { MANY };
            let got: Vec<_> = assign(&a, &truths, k, |i, _| score[i], |i| boxes[i])
                .into_iter().map(|p| (p.anchor, p.truth, p.score)).collect();
            prop_assert_eq!(got, dense(&a, &truths, k, &score, &boxes));
        }
    }
}
