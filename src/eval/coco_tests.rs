use std::path::{Path, PathBuf};

use hotcoco::metrics::counts::average_precision;

use super::best_f1::{Outcome, match_image};
use super::results::CocoDetection;
use super::testing::{Draw, drawn_set, image, read_coco, split};
use super::{Detection, EvalError, Evaluator, Metrics, Predictions};
use crate::data::{ImageEntry, Split, Truth};

/// What pycocotools 2.0.11 gives for `shared/data/cocoeval` (its README has 16 digits, these are the shortest forms).
const COCOEVAL: [f64; 12] = [
    0.5045806987249628,
    0.6969727247299577,
    0.5729816669904824,
    0.5856257209410443,
    0.5193996948036719,
    0.5013978986347466,
    0.38681277964578054,
    0.5936795762842003,
    0.595352982877607,
    0.6398109626113442,
    0.5664205978994309,
    0.5642905982905982,
];

fn shared(path: &str) -> Option<PathBuf> {
    let root = std::env::var("YOLO_TRAIN_SHARED")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../shared").into());
    let path = PathBuf::from(root).join(path);
    if path.exists() {
        return Some(path);
    }
    println!("skipped: {} is missing", path.display());
    None
}

#[test]
fn shared_cocoeval_is_reproduced_to_the_last_digit() {
    let Some(folder) = shared("data/cocoeval") else {
        return;
    };
    let split = read_coco(&folder.join("instances_val2014_100.json"));
    let text = std::fs::read(folder.join("instances_val2014_fakebbox100_results.json")).unwrap();
    let rows: Vec<serde_json::Value> = serde_json::from_slice(&text).unwrap();
    // The file's decimals are not f32, so they enter behind the conversion of our own detections.
    let mut exact = Evaluator::new(&split).unwrap();
    for (index, image) in split.images.iter().enumerate() {
        let own = rows.iter().filter(|r| r["image_id"] == image.id);
        let detections: Vec<(usize, CocoDetection)> = own
            .map(|r| {
                let category_id = r["category_id"].as_u64().unwrap();
                let d = CocoDetection {
                    category_id,
                    bbox: serde_json::from_value(r["bbox"].clone()).unwrap(),
                    score: r["score"].as_f64().unwrap(),
                };
                let is = |&c: &u64| c == category_id;
                (split.category_ids.iter().position(is).unwrap(), d)
            })
            .collect();
        exact.add_converted(index, &detections).unwrap();
    }
    let metrics = exact.finish();
    assert_eq!(metrics.coco, COCOEVAL);
    assert_eq!((metrics.images, metrics.instances), (100, 830));
}

fn evaluate<'a>(
    split: &'a Split,
    detections: &[Vec<Detection>],
    order: impl Iterator<Item = usize>,
) -> Evaluator<'a> {
    let mut evaluator = Evaluator::new(split).unwrap();
    for index in order {
        evaluator.add(index, &detections[index]).unwrap();
    }
    evaluator
}

/// Writes what pycocotools needs to check these figures: `truth.json`, `predictions.json`, and ours in `figures.txt`.
fn write_for_pycocotools(folder: &Path, split: &Split, detections: &[Vec<Detection>]) {
    std::fs::create_dir_all(folder).unwrap();
    let annotations = split
        .images
        .iter()
        .flat_map(|i| i.truths.iter().map(move |t| (i, t)));
    let json = serde_json::json!({
        "images": split.images.iter().map(|i| serde_json::json!({"id": i.id})).collect::<Vec<_>>(),
        "categories": split.category_ids.iter().map(|id| serde_json::json!({"id": id, "name": id.to_string()})).collect::<Vec<_>>(),
        "annotations": annotations.map(|(i, t)| serde_json::json!({
            "id": t.id, "image_id": i.id, "category_id": split.category_ids[t.class], "bbox": t.bbox, "area": t.area,
            "iscrowd": u8::from(t.crowd),
        })).collect::<Vec<_>>(),
    });
    std::fs::write(folder.join("truth.json"), json.to_string()).unwrap();
    let mut predictions = Predictions::new(split);
    for (index, found) in detections.iter().enumerate() {
        predictions.add(index, found).unwrap();
    }
    predictions.write(&folder.join("predictions.json")).unwrap();
    let metrics = evaluate(split, detections, 0..detections.len()).finish();
    std::fs::write(folder.join("figures.txt"), format!("{:?}", metrics.coco)).unwrap();
}

#[test]
fn a_drawn_set_gives_the_figures_of_the_coco_api_to_the_last_digit() {
    let (split, detections) = drawn_set(11);
    let metrics = evaluate(&split, &detections, 0..60).finish();
    // pycocotools 2.0.11 on what `sets_for_pycocotools` writes.
    let figures = [
        0.16903340532125952,
        0.35802310879569993,
        0.11825817423547019,
        0.18873906983872693,
        0.1829913755298873,
        0.23754137482881876,
        0.17916106031855555,
        0.3129406014605255,
        0.314422082942007,
        0.2606289394985047,
        0.3821367521367522,
        0.3436694677871148,
    ];
    assert_eq!(metrics.coco, figures);
}

/// [`drawn_set`] with id 0 for a box of `class` that is found.
fn with_id_zero(seed: u64, class: usize) -> (Split, Vec<Vec<Detection>>) {
    let (mut split, detections) = drawn_set(seed);
    let close = |t: &Truth, d: &Detection| {
        let [x, y, w, h] = t.bbox;
        let near = [x, y, x + w, y + h]
            .iter()
            .zip(d.xyxy)
            .all(|(a, b)| (a - f64::from(b)).abs() < 0.1 * w.min(h));
        near && t.class == class && d.class == class && !t.crowd
    };
    let (image, found) = split
        .images
        .iter_mut()
        .zip(&detections)
        .find_map(|(image, found)| {
            let at = image
                .truths
                .iter()
                .position(|t| found.iter().any(|d| close(t, d)))?;
            Some((image, at))
        })
        .unwrap();
    image.truths[found].id = 0;
    (split, detections)
}

const ID_ZERO_LARGE: [f64; 12] = [
    0.16778069276721524,
    0.35560594170585663,
    0.11724782900797544,
    0.18873906983872693,
    0.1829913755298873,
    0.23260633921999468,
    0.17690299580242652,
    0.3106825369443965,
    0.312164018425878,
    0.2606289394985047,
    0.3821367521367522,
    0.3354341736694678,
];

const ID_ZERO_SMALL: [f64; 12] = [
    0.1650051584228814,
    0.35179624568492707,
    0.11369704071201782,
    0.18055479568200053,
    0.1829913755298873,
    0.23754137482881876,
    0.17673681789431314,
    0.3105163590362831,
    0.31199784051776464,
    0.2560575109270761,
    0.3821367521367522,
    0.3436694677871148,
];

#[test]
fn annotation_id_zero_counts_as_in_the_coco_api_to_the_last_digit() {
    // pycocotools 2.0.11 on what `sets_for_pycocotools` writes.
    for (class, figures) in [(0, ID_ZERO_LARGE), (4, ID_ZERO_SMALL)] {
        let (mut split, detections) = with_id_zero(11, class);
        let whole = evaluate(&split, &detections, 0..60);
        let metrics = whole.clone().finish();
        assert_eq!(metrics.coco, figures);
        let mut merged = evaluate(&split, &detections, 30..60);
        merged.merge(evaluate(&split, &detections, 0..30)).unwrap();
        same_bits(&merged.finish(), &metrics);
        assert_eq!(super::coco_api_remarks(&split).len(), 1);

        // Ids that are in no file are ours, and mean nothing.
        split.image_id_in_file = false;
        let (plain, _) = drawn_set(11);
        let expected = evaluate(&plain, &detections, 0..60).finish();
        same_bits(&evaluate(&split, &detections, 0..60).finish(), &expected);
        assert!(super::coco_api_remarks(&split).is_empty());
    }
}

/// A check against the real COCO API, not a test. `YOLO_TRAIN_COCO_DUMP=DIR cargo test --release --lib
/// sets_for_pycocotools -- --ignored` writes folders; for each of them, in Python:
/// `t = COCO("truth.json"); e = COCOeval(t, t.loadRes("predictions.json"), "bbox")`, then `evaluate`, `accumulate`,
/// `summarize`, and `e.stats.tolist()` is what figures.txt holds.
#[test]
#[ignore = "writes files for another program"]
fn sets_for_pycocotools() {
    let folder = PathBuf::from(std::env::var("YOLO_TRAIN_COCO_DUMP").unwrap());
    for name in ["coco66", "bccd"] {
        let Some(file) = shared(&format!("data/{name}/annotations/val.json")) else {
            continue;
        };
        let (split, mut draw) = (read_coco(&file), Draw::new(1));
        let mut near = |t: &Truth| {
            let [x, y, w, h] = t.bbox.map(|v| v as f32);
            let mut moved = |v: f32, side: f32| v + (draw.unit() as f32 - 0.5) * 0.3 * side;
            let xyxy = [moved(x, w), moved(y, h), moved(x + w, w), moved(y + h, h)];
            detection(xyxy, draw.unit() as f32, t.class)
        };
        let found: Vec<Vec<Detection>> = split
            .images
            .iter()
            .map(|i| i.truths.iter().chain(&i.truths).map(&mut near).collect())
            .collect();
        let folder = folder.join(name);
        write_for_pycocotools(&folder, &split, &found);
        std::fs::copy(file, folder.join("truth.json")).unwrap();
    }
    for seed in 0..50 {
        let (split, detections) = drawn_set(seed);
        write_for_pycocotools(&folder.join(format!("drawn-{seed}")), &split, &detections);
        let (split, detections) = with_id_zero(seed, [0, 1, 2, 4][seed as usize % 4]);
        write_for_pycocotools(&folder.join(format!("id-zero-{seed}")), &split, &detections);
    }
}

fn same_bits(a: &Metrics, b: &Metrics) {
    // Equality of floats plus equality of their shortest forms leaves no room for -0 against 0.
    assert_eq!(a, b);
    assert_eq!(format!("{a:?}"), format!("{b:?}"));
}

#[test]
fn evaluators_over_disjoint_images_merge_into_the_one_that_saw_all_in_any_order() {
    let (split, detections) = drawn_set(11);
    let whole = evaluate(&split, &detections, 0..60).finish();
    same_bits(
        &whole,
        &evaluate(&split, &detections, (0..60).rev()).finish(),
    );
    for shards in [2, 3, 8] {
        let of = |rank: usize| {
            evaluate(
                &split,
                &detections,
                (0..60).filter(move |i| i % shards == rank),
            )
        };
        let mut first = of(shards - 1);
        for rank in (0..shards - 1).rev() {
            first.merge(of(rank)).unwrap();
        }
        same_bits(&whole, &first.finish());
    }
}

#[test]
fn the_table_per_class_agrees_with_the_figures_and_with_the_matching_behind_precision() {
    let (split, detections) = drawn_set(11);
    let metrics = evaluate(&split, &detections, 0..60).finish();
    let mean = |f: fn(&super::ClassMetrics) -> f64| {
        let of: Vec<f64> = metrics
            .per_class
            .iter()
            .map(f)
            .filter(|&v| v >= 0.0)
            .collect();
        of.iter().sum::<f64>() / of.len() as f64
    };
    assert!((mean(|c| c.ap) - metrics.coco[0]).abs() < 1e-12);
    assert!((mean(|c| c.ap50) - metrics.coco[1]).abs() < 1e-12);
    assert_eq!(mean(|c| c.precision), metrics.precision);
    assert_eq!(mean(|c| c.recall), metrics.recall);

    // Average precision of our outcomes is the AP50 wherever the limit of 100 detections plays no part.
    let mut outcomes: Vec<Outcome> = Vec::new();
    let mut order: Vec<usize> = (0..60).collect();
    order.sort_by_key(|&i| split.images[i].id);
    for i in order {
        let image = &split.images[i];
        let converted: Vec<_> = detections[i]
            .iter()
            .map(|d| (d.class, CocoDetection::new(&split, image, d).unwrap()))
            .collect();
        match_image(&image.truths, &converted, &mut outcomes);
    }
    let recalls = hotcoco::Params::new(hotcoco::IouType::Bbox).rec_thrs;
    for class in &metrics.per_class {
        let truths = split.images.iter().flat_map(|i| &i.truths);
        let n = truths
            .filter(|t| t.class == class.class && !t.crowd)
            .count();
        assert_eq!(class.instances, n);
        if n > 0 && class.class != 1 {
            let own: Vec<_> = outcomes.iter().filter(|o| o.class == class.class).collect();
            let scores: Vec<f64> = own.iter().map(|o| o.score).collect();
            let hits: Vec<bool> = own.iter().map(|o| o.true_positive).collect();
            let ap = average_precision(&scores, &hits, None, n, &recalls);
            assert!(
                (ap - class.ap50).abs() < 1e-12,
                "{}: {ap} {}",
                class.name,
                class.ap50
            );
        }
    }
}

fn truth(id: u64, class: usize, bbox: [f64; 4], crowd: bool) -> Truth {
    let area = bbox[2] * bbox[3];
    Truth {
        id,
        class,
        bbox,
        area,
        crowd,
    }
}

fn detection(xyxy: [f32; 4], score: f32, class: usize) -> Detection {
    Detection { xyxy, score, class }
}

fn one_image(truths: Vec<Truth>) -> Split {
    split(&[5, 9], vec![image(1, truths), image(2, vec![])])
}

#[test]
fn perfect_detections_score_one_and_what_does_not_exist_is_minus_one() {
    let split = one_image(vec![truth(1, 0, [10.0, 10.0, 20.0, 20.0], false)]);
    let mut e = Evaluator::new(&split).unwrap();
    e.add(0, &[detection([10.0, 10.0, 30.0, 30.0], 0.9, 0)])
        .unwrap();
    e.add(1, &[]).unwrap();
    let m = e.finish();
    // The COCO API adds 2^-52 to the number of detections before it divides, so a perfect AP is just below 1.
    let rounded = m.coco.map(|v| v.round());
    assert_eq!(
        rounded,
        [
            1.0, 1.0, 1.0, 1.0, -1.0, -1.0, 1.0, 1.0, 1.0, 1.0, -1.0, -1.0
        ]
    );
    assert!(m.coco[0] > 1.0 - 1e-15);
    assert_eq!(
        (m.precision, m.recall, m.images, m.instances),
        (1.0, 1.0, 2, 1)
    );
    let c = &m.per_class[0];
    assert_eq!(
        (
            c.name.as_str(),
            c.images,
            c.instances,
            c.ap50.round(),
            c.ap.round()
        ),
        ("c5", 1, 1, 1.0, 1.0)
    );
    let c = &m.per_class[1];
    assert_eq!(
        (c.images, c.instances, c.precision, c.recall, c.ap50, c.ap),
        (0, 0, -1.0, -1.0, -1.0, -1.0)
    );
}

#[test]
fn the_table_has_a_line_for_all_and_one_for_each_class() {
    let (split, detections) = drawn_set(11);
    let metrics = evaluate(&split, &detections, 0..60).finish();
    let (all, classes) = metrics.rows();
    assert_eq!(
        (all.name, all.images, all.ap50),
        ("all", 60, metrics.coco[1])
    );
    assert_eq!(classes.len(), 6);
    assert_eq!(
        (classes[0].name, classes[0].ap),
        ("c3", metrics.per_class[0].ap)
    );
    let instances: usize = classes.iter().map(|c| c.instances).sum();
    assert_eq!(all.instances, instances);
}

#[test]
fn detections_in_a_crowd_region_are_not_wrong() {
    let truths = vec![
        truth(1, 0, [0.0, 0.0, 200.0, 200.0], true),
        truth(2, 0, [300.0, 0.0, 50.0, 50.0], false),
    ];
    let split = one_image(truths);
    let mut e = Evaluator::new(&split).unwrap();
    let found = [
        detection([10.0, 10.0, 50.0, 50.0], 0.9, 0),
        detection([90.0, 90.0, 150.0, 150.0], 0.8, 0),
        detection([300.0, 0.0, 350.0, 50.0], 0.7, 0),
    ];
    e.add(0, &found).unwrap();
    let m = e.finish();
    assert_eq!(
        (m.coco[0].round(), m.precision, m.recall, m.instances),
        (1.0, 1.0, 1.0, 1)
    );
}

#[test]
fn nothing_evaluated_and_nothing_detected_are_no_errors() {
    let split = one_image(vec![truth(1, 0, [10.0, 10.0, 20.0, 20.0], false)]);
    assert_eq!(Evaluator::new(&split).unwrap().finish().coco, [-1.0; 12]);
    let mut e = Evaluator::new(&split).unwrap();
    e.add(0, &[]).unwrap();
    let m = e.finish();
    assert_eq!(
        (m.coco[0], m.coco[8], m.precision, m.recall),
        (0.0, 0.0, 0.0, 0.0)
    );
}

#[test]
fn a_split_or_a_detection_that_cannot_be_scored_is_an_error_and_changes_nothing() {
    let good = one_image(vec![]);
    let error = |s: &Split| Evaluator::new(s).err().unwrap().to_string();
    let mut s = good.clone();
    s.category_ids = vec![5, 5];
    assert!(error(&s).starts_with("category id 5 stands for two classes, \"c5\" and \"c9\""));
    s.category_ids.pop();
    assert!(error(&s).starts_with("2 class names but 1 category ids"));
    let twice: Vec<ImageEntry> = vec![image(4, vec![]), image(4, vec![])];
    assert!(error(&split(&[1], twice)).starts_with("image id 4 stands for two images"));
    let s = one_image(vec![truth(8, 2, [0.0; 4], false)]);
    assert!(error(&s).starts_with("1.jpg: ground truth 8 has class 2"));

    let mut e = Evaluator::new(&good).unwrap();
    let d = detection([0.0, 0.0, 1.0, 1.0], 0.5, 0);
    for bad in [
        detection([0.0, 0.0, f32::INFINITY, 1.0], 0.5, 0),
        detection([0.0, 0.0, 1.0, 1.0], f32::NAN, 0),
        detection([0.0, 0.0, 1.0, 1.0], 0.5, 2),
    ] {
        assert!(e.add(0, &[d, bad]).is_err());
    }
    e.add(0, &[d]).unwrap();
    assert!(matches!(e.add(0, &[]), Err(EvalError::ImageTwice { .. })));
    assert!(matches!(e.add(2, &[]), Err(EvalError::ImageIndex { .. })));
    let mut other = Evaluator::new(&good).unwrap();
    other.add(0, &[]).unwrap();
    assert!(matches!(e.merge(other), Err(EvalError::ImageTwice { .. })));
    let s = split(&[5, 8], vec![]);
    assert!(matches!(
        e.merge(Evaluator::new(&s).unwrap()),
        Err(EvalError::OtherSplit)
    ));
    assert_eq!(e.finish().images, 1);
}

/// A measurement, not a check: `cargo test --release --lib evaluator_speed -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn evaluator_speed() {
    let (ids, mut draw) = ((1..=80).collect::<Vec<u64>>(), Draw::new(3));
    let mut bbox = |side: f64| [draw.unit() * 500.0, draw.unit() * 400.0, side, side];
    let images = (0..1000).map(|id| {
        let truths = (0..8).map(|n| truth(id * 8 + n + 1, n as usize * 9, bbox(60.0), false));
        image(id, truths.collect())
    });
    let split = split(&ids, images.collect());
    let found: Vec<Detection> = (0..300)
        .map(|n| {
            let [x, y, w, h] = bbox(60.0).map(|v| v as f32);
            detection([x, y, x + w, y + h], 0.5 - n as f32 / 1000.0, n % 80)
        })
        .collect();
    let start = std::time::Instant::now();
    let mut e = Evaluator::new(&split).unwrap();
    for index in 0..1000 {
        e.add(index, &found).unwrap();
    }
    println!(
        "added 1000 images of 300 detections in {:?}",
        start.elapsed()
    );
    let start = std::time::Instant::now();
    e.finish();
    println!("finished in {:?}", start.elapsed());
}

#[test]
fn the_curves_are_those_that_the_figures_were_read_from() {
    for seed in [3, 11] {
        let (split, detections) = drawn_set(seed);
        let (metrics, curves) = evaluate(&split, &detections, 0..60).finish_with_curves();
        assert_eq!(curves.best, metrics.confidence);
        let at = curves.best_at();
        assert_eq!(super::Curves::confidences()[at], metrics.confidence);
        let with_truth = metrics.per_class.iter().filter(|c| c.instances > 0);
        assert_eq!(curves.classes.len(), with_truth.clone().count());
        for (class, m) in curves.classes.iter().zip(with_truth) {
            assert_eq!(class.class, m.class);
            assert_eq!(class.by_confidence.precision[at], m.precision);
            assert_eq!(class.by_confidence.recall[at], m.recall);
            assert_eq!(class.by_recall.len(), super::Curves::recalls().len());
            let area = class.by_recall.iter().sum::<f64>() / 101.0;
            assert!((area - m.ap50).abs() < 1e-12, "{area} {}", m.ap50);
        }
        let mean = super::Curves::mean(curves.classes.iter().map(|c| c.by_recall.as_slice()), 101);
        let area = mean.iter().sum::<f64>() / 101.0;
        assert!((area - metrics.coco[1]).abs() < 1e-12);
        let precision = curves
            .classes
            .iter()
            .map(|c| c.by_confidence.precision.as_slice());
        let precision = super::Curves::mean(precision, 1000)[at];
        assert!((precision - metrics.precision).abs() < 1e-12);
    }
}
