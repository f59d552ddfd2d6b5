use proptest::prelude::*;

use super::testing::Draw;
use super::{Detection, SuppressConfig, end_to_end, suppress};

fn iou(a: &[f32; 4], b: &[f32; 4]) -> f32 {
    let area = |b: &[f32; 4]| (b[2] - b[0]) * (b[3] - b[1]);
    let w = (a[2].min(b[2]) - a[0].max(b[0])).max(0.0);
    let h = (a[3].min(b[3]) - a[1].max(b[1])).max(0.0);
    let union = area(a) + area(b) - w * h;
    if union > 0.0 { w * h / union } else { 0.0 }
}

/// All candidates as (anchor, detection), best first.
fn ranked(
    boxes: &[f32],
    scores: &[f32],
    classes: usize,
    c: &SuppressConfig,
) -> Vec<(usize, Detection)> {
    let mut all = Vec::new();
    for (anchor, row) in scores.chunks(classes).enumerate() {
        let best = (0..classes)
            .rev()
            .max_by(|&a, &b| row[a].total_cmp(&row[b]));
        for (class, &score) in row.iter().enumerate() {
            if score > c.conf && (c.multi_label || Some(class) == best) {
                let xyxy = boxes[anchor * 4..anchor * 4 + 4].try_into().unwrap();
                all.push((anchor, Detection { xyxy, score, class }));
            }
        }
    }
    all.sort_by(|(i, a), (j, b)| {
        b.score
            .total_cmp(&a.score)
            .then(i.cmp(j))
            .then(a.class.cmp(&b.class))
    });
    all
}

/// Class by class with flags over all pairs, then merged and cut.
fn naive(boxes: &[f32], scores: &[f32], classes: usize, c: &SuppressConfig) -> Vec<Detection> {
    let mut all = ranked(boxes, scores, classes, c);
    all.truncate(c.max_nms);
    let mut dropped = vec![false; all.len()];
    for class in 0..classes {
        for i in 0..all.len() {
            for j in i + 1..all.len() {
                let (a, b) = (&all[i].1, &all[j].1);
                if a.class == class
                    && b.class == class
                    && !dropped[i]
                    && iou(&a.xyxy, &b.xyxy) > c.iou
                {
                    dropped[j] = true;
                }
            }
        }
    }
    let kept = all.into_iter().zip(dropped).filter(|(_, dropped)| !dropped);
    kept.map(|((_, d), _)| d).take(c.max_det).collect()
}

/// Top-k of the anchors, then top-k of their scores, then the filter: the definition in its own order.
fn naive_end_to_end(
    boxes: &[f32],
    scores: &[f32],
    classes: usize,
    c: &SuppressConfig,
) -> Vec<Detection> {
    let all = SuppressConfig { conf: -1.0, ..*c };
    let one = SuppressConfig {
        multi_label: false,
        ..all
    };
    let k = c.max_det.min(boxes.len() / 4);
    let anchors: Vec<usize> = ranked(boxes, scores, classes, &one)
        .into_iter()
        .take(k)
        .map(|(anchor, _)| anchor)
        .collect();
    ranked(boxes, scores, classes, &all)
        .into_iter()
        .filter(|(anchor, _)| anchors.contains(anchor))
        .take(k)
        .map(|(_, d)| d)
        .filter(|d| d.score > c.conf)
        .collect()
}

/// Boxes on a coarse grid and scores from few values, so that overlaps and ties are common.
fn scene(anchors: usize, classes: usize, levels: usize, seed: u64) -> (Vec<f32>, Vec<f32>) {
    let mut draw = Draw::new(seed);
    let boxes = (0..anchors)
        .flat_map(|_| {
            let (x, y) = (draw.below(12) as f32 * 4.0, draw.below(12) as f32 * 4.0);
            let (w, h) = (draw.below(9) as f32 * 3.0, draw.below(9) as f32 * 3.0);
            [x, y, x + w, y + h]
        })
        .collect();
    let scores = (0..anchors * classes)
        .map(|_| draw.below(levels + 1) as f32 / levels as f32)
        .collect();
    (boxes, scores)
}

proptest! {
    #[test]
    fn suppression_keeps_what_the_naive_version_keeps(
        anchors in 0_usize..60, classes in 1_usize..5, levels in 1_usize..200, seed: u64,
        conf in 0.0_f32..0.9, iou in 0.0_f32..1.0, max_det in 0_usize..40, max_nms in 0_usize..120, multi_label: bool,
    ) {
        let (boxes, scores) = scene(anchors, classes, levels, seed);
        let config = SuppressConfig { conf, iou, max_det, max_nms, multi_label };
        prop_assert_eq!(
            suppress(&boxes, &scores, classes, &config),
            naive(&boxes, &scores, classes, &config)
        );
    }

    #[test]
    fn end_to_end_keeps_what_the_definition_keeps(
        anchors in 0_usize..60, classes in 1_usize..5, levels in 1_usize..200, seed: u64,
        conf in 0.0_f32..0.9, max_det in 0_usize..70,
    ) {
        let (boxes, scores) = scene(anchors, classes, levels, seed);
        let config = SuppressConfig { conf, max_det, ..Default::default() };
        prop_assert_eq!(
            end_to_end(&boxes, &scores, classes, &config),
            naive_end_to_end(&boxes, &scores, classes, &config)
        );
    }

    #[test]
    fn what_is_kept_is_sorted_above_conf_apart_and_stable_under_a_second_pass(
        anchors in 0_usize..200, classes in 1_usize..5, seed: u64,
    ) {
        let (boxes, scores) = scene(anchors, classes, 1000, seed);
        let config = SuppressConfig { conf: 0.2, iou: 0.5, ..Default::default() };
        let kept = suppress(&boxes, &scores, classes, &config);
        prop_assert!(kept.windows(2).all(|w| w[0].score >= w[1].score));
        prop_assert!(kept.iter().all(|d| d.score > 0.2));
        for (i, a) in kept.iter().enumerate() {
            for b in &kept[i + 1..] {
                prop_assert!(a.class != b.class || iou(&a.xyxy, &b.xyxy) <= 0.5);
            }
        }
        let boxes: Vec<f32> = kept.iter().flat_map(|d| d.xyxy).collect();
        let mut scores = vec![0.0; kept.len() * classes];
        for (i, d) in kept.iter().enumerate() {
            scores[i * classes + d.class] = d.score;
        }
        prop_assert_eq!(suppress(&boxes, &scores, classes, &config), kept);
    }
}

#[test]
fn many_candidates_over_several_blocks_keep_what_the_naive_version_keeps() {
    let (boxes, scores) = scene(1500, 4, 5000, 3);
    for max_det in [300, 10_000] {
        let config = SuppressConfig {
            conf: 0.01,
            iou: 0.3,
            max_det,
            max_nms: 5000,
            ..Default::default()
        };
        assert_eq!(
            suppress(&boxes, &scores, 4, &config),
            naive(&boxes, &scores, 4, &config)
        );
    }
}

#[test]
fn equal_scores_go_by_anchor_then_class() {
    let boxes = [0.0, 0.0, 10.0, 10.0, 0.0, 0.0, 10.0, 10.0];
    let scores = [0.5, 0.5, 0.5, 0.5];
    let got = suppress(&boxes, &scores, 2, &SuppressConfig::default());
    let of: Vec<usize> = got.iter().map(|d| d.class).collect();
    assert_eq!(
        of,
        [0, 1],
        "the second anchor is the same box in both classes"
    );
}

#[test]
fn a_box_is_suppressed_only_by_its_own_class_and_only_above_the_threshold() {
    // Halves overlap: intersection 50 of union 150.
    let boxes = [0.0, 0.0, 10.0, 10.0, 5.0, 0.0, 15.0, 10.0];
    let config = |iou| SuppressConfig {
        iou,
        ..Default::default()
    };
    assert_eq!(suppress(&boxes, &[0.9, 0.8], 1, &config(0.3)).len(), 1);
    assert_eq!(
        suppress(&boxes, &[0.9, 0.8], 1, &config(1.0 / 3.0)).len(),
        2
    );
    assert_eq!(
        suppress(&boxes, &[0.9, 0.0, 0.0, 0.8], 2, &config(0.1)).len(),
        2
    );
}

#[test]
fn scores_that_are_not_numbers_and_boxes_without_area_do_no_harm() {
    let boxes = [3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 9.0, 9.0, 2.0, 2.0];
    let got = suppress(&boxes, &[0.9, 0.8, f32::NAN], 1, &SuppressConfig::default());
    assert_eq!(got.len(), 2);
    assert!(suppress(&[], &[], 3, &SuppressConfig::default()).is_empty());
    assert!(end_to_end(&[], &[], 3, &SuppressConfig::default()).is_empty());
}

/// A measurement, not a check: `cargo test --release --lib suppress_speed -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn suppress_speed() {
    for (name, anchors, classes, levels) in [
        ("80 classes", 8400, 80, 1 << 20),
        ("1 class", 8400, 1, 1 << 20),
    ] {
        let mut draw = Draw::new(5);
        let boxes: Vec<f32> = (0..anchors)
            .flat_map(|_| {
                let (x, y) = (draw.unit() as f32 * 600.0, draw.unit() as f32 * 600.0);
                let side = 10.0 + draw.unit() as f32 * 90.0;
                [x, y, x + side, y + side]
            })
            .collect();
        let (_, scores) = scene(anchors, classes, levels, 9);
        let scores: Vec<f32> = scores.iter().map(|s| s * s * 0.05).collect();
        for max_det in [300, 30_000] {
            let config = SuppressConfig {
                max_det,
                ..Default::default()
            };
            let start = std::time::Instant::now();
            let kept = suppress(&boxes, &scores, classes, &config).len();
            println!(
                "{name}, max_det {max_det}: kept {kept} in {:?}",
                start.elapsed()
            );
        }
        let start = std::time::Instant::now();
        let kept = end_to_end(&boxes, &scores, classes, &SuppressConfig::default()).len();
        println!("{name}, end to end: kept {kept} in {:?}", start.elapsed());
    }
}
