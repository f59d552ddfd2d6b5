use super::super::assign::assign;
use super::super::criterion::{Gains, ONE_TO_MANY, ONE_TO_ONE};
use super::super::{FastLoss, RawHead, anchors as host_anchors, head_loss_and_gradient};
use super::*;
use crate::loss::TopK;
use crate::ops::cpu::isa::Isa;
use crate::ops::cpu::testing::{Numbers, quarters};
use crate::ops::gpu::flat::testing::{device, read, tensor};
use crate::ops::gpu::loss::{assignment, head_loss};
use burn::backend::Backend;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use proptest::prelude::*;
use std::ops::Range;

const GAINS: Gains = Gains {
    boxes: 7.5,
    classes: 0.5,
    distances: 1.5,
};
const WEIGHT: f64 = 0.7;

#[derive(Clone)]
struct Case {
    boxes: Vec<f32>,
    scores: Vec<f32>,
    truths: Vec<Vec<GroundTruth>>,
    anchors: Anchors,
    reg_max: usize,
    classes: usize,
    weights: Option<Vec<f64>>,
    topk: TopK,
}

/// Random outputs of which some fit the objects.
fn fitting(
    seed: u64,
    truths: Vec<Vec<GroundTruth>>,
    classes: usize,
    reg_max: usize,
    topk: TopK,
) -> Case {
    let anchors = Anchors::new(96, 160, &[8, 16, 32]);
    let (n, a) = (truths.len(), anchors.len());
    let mut numbers = Numbers::new(seed);
    let scores = numbers.vec(n * a * classes, -6.0, 3.0);
    let mut boxes = vec![];
    for of_image in &truths {
        for k in 0..a {
            let ([x, y], s) = (anchors.xy[k], anchors.stride[k]);
            let near = of_image.get(k % of_image.len().max(1));
            for side in 0..4 {
                let distance = near.map_or(3.0, |t| {
                    [x - t.xyxy[0], y - t.xyxy[1], t.xyxy[2] - x, t.xyxy[3] - y][side] / s
                });
                let distance = distance as f32 + numbers.next(-0.6, 0.6);
                if reg_max == 1 {
                    boxes.push(distance);
                    continue;
                }
                let bin = |b: usize| -0.5 * (b as f32 - distance).powi(2);
                boxes.extend((0..reg_max).map(|b| numbers.next(-1.0, 1.0) + bin(b)));
            }
        }
    }
    Case {
        boxes,
        scores,
        truths,
        anchors,
        reg_max,
        classes,
        weights: None,
        topk,
    }
}

/// `objects` objects in each image but the second, which has none.
fn objects(seed: u64, n: usize, objects: usize, classes: usize) -> Vec<Vec<GroundTruth>> {
    let mut numbers = Numbers::new(seed);
    let mut object = |_| {
        let (x, y) = (numbers.next(0.0, 140.0), numbers.next(0.0, 80.0));
        let (w, h) = (numbers.next(2.0, 90.0), numbers.next(2.0, 60.0));
        GroundTruth {
            class: (numbers.next(0.0, 0.999) * classes as f32) as usize,
            xyxy: [x, y, (x + w).min(160.0), (y + h).min(96.0)].map(f64::from),
        }
    };
    (0..n)
        .map(|i| {
            (0..if i == 1 { 0 } else { objects })
                .map(&mut object)
                .collect()
        })
        .collect()
}

struct Result {
    lanes: Vec<ShownLoss>,
    d_boxes: Vec<f32>,
    d_scores: Vec<f32>,
}

impl Case {
    fn criterion(&self) -> Criterion<'_> {
        Criterion {
            reg_max: self.reg_max,
            gains: GAINS,
            class_weights: self.weights.as_deref(),
            topk: self.topk,
        }
    }

    fn on_host(&self, lanes: &[Range<usize>]) -> Result {
        let (mut d_boxes, mut d_scores) = (self.boxes.clone(), self.scores.clone());
        let out = RawHead {
            boxes: &self.boxes,
            scores: &self.scores,
            classes: self.classes,
        };
        let loss = head_loss_and_gradient(
            Isa::best(),
            out,
            &self.truths,
            &self.anchors,
            &self.criterion(),
            WEIGHT,
            lanes,
            &mut d_boxes,
            &mut d_scores,
        );
        let lanes = loss
            .iter()
            .map(|l: &FastLoss| ShownLoss {
                sums: l.sums,
                score_sum: l.score_sum,
            })
            .collect();
        Result {
            lanes,
            d_boxes,
            d_scores,
        }
    }

    fn on_device(
        &self,
        device: &CubeDevice,
        lanes: &[Range<usize>],
        dtype: DType,
        scale: f32,
    ) -> Result {
        let (n, a) = (self.truths.len(), self.anchors.len());
        let weights = self.weights.as_ref().map(|w| class_weights(w, device));
        let got = head_loss(
            tensor(device, &self.boxes, &[n, a, 4 * self.reg_max], dtype),
            tensor(device, &self.scores, &[n, a, self.classes], dtype),
            &truths(&self.truths, device),
            &anchors(&self.anchors, device),
            &measure(&self.criterion(), weights),
            WEIGHT,
            scale,
            lanes,
        );
        assert_eq!((got.d_boxes.dtype, got.d_scores.dtype), (dtype, dtype));
        Result {
            lanes: shown(&read(&got.sums)),
            d_boxes: read(&got.d_boxes),
            d_scores: read(&got.d_scores),
        }
    }

    /// (image, object, anchor, target) of the reference in float64, sorted.
    fn positives(&self) -> Vec<(usize, usize, usize, f64)> {
        let (a, width) = (self.anchors.len(), 4 * self.reg_max);
        let mut all = vec![];
        for (image, truths) in self.truths.iter().enumerate() {
            let score = |anchor: usize, class: usize| {
                let x = f64::from(self.scores[(image * a + anchor) * self.classes + class]);
                1.0 / (1.0 + (-x).exp())
            };
            let decode = |anchor: usize| {
                let raw = &self.boxes[(image * a + anchor) * width..][..width];
                let ltrb = host_anchors::distances(|i| f64::from(raw[i]), self.reg_max);
                self.anchors.to_box(anchor, ltrb)
            };
            let found = assign(&self.anchors, truths, self.topk, score, decode);
            all.extend(found.iter().map(|p| (image, p.truth, p.anchor, p.score)));
        }
        all.sort_by_key(|p| (p.0, p.1, p.2));
        all
    }

    fn positives_on_device(&self, device: &CubeDevice) -> Vec<(usize, usize, usize, f64)> {
        let (n, a) = (self.truths.len(), self.anchors.len());
        let (anchor, score) = assignment(
            tensor(device, &self.boxes, &[n, a, 4 * self.reg_max], DType::F32),
            tensor(device, &self.scores, &[n, a, self.classes], DType::F32),
            &truths(&self.truths, device),
            &anchors(&self.anchors, device),
            &measure(&self.criterion(), None),
        );
        let owner = |(image, list): (usize, &Vec<GroundTruth>)| {
            (0..list.len())
                .map(move |truth| (image, truth))
                .collect::<Vec<_>>()
        };
        let owners: Vec<_> = self.truths.iter().enumerate().flat_map(owner).collect();
        let mut all = vec![];
        for (slot, (&anchor, &score)) in anchor.iter().zip(&score).enumerate() {
            let (image, truth) = owners[slot / self.topk.first];
            if anchor != u32::MAX {
                all.push((image, truth, anchor as usize, f64::from(score)));
            }
        }
        all.sort_by_key(|p| (p.0, p.1, p.2));
        all
    }

    /// The same anchors with the same targets as the reference's.
    fn check_assignment(&self, device: &CubeDevice) {
        let (got, want) = (self.positives_on_device(device), self.positives());
        let places = |v: &[(usize, usize, usize, f64)]| {
            v.iter().map(|p| (p.0, p.1, p.2)).collect::<Vec<_>>()
        };
        assert_eq!(places(&got), places(&want));
        for (g, w) in got.iter().zip(&want) {
            assert!((g.3 - w.3).abs() < 2e-5 * (w.3 + 1e-3), "{g:?} for {w:?}");
        }
    }

    fn check(&self, device: &CubeDevice) {
        let lanes = quarters(self.truths.len());
        let want = self.on_host(&lanes);
        let got = self.on_device(device, &lanes, DType::F32, 1.0);
        // float32 there, and wide boxes and narrow ones lose digits
        same_sums(&got, &want, 5e-5);
        // the scale is that of the largest element: gradients of positives
        close(&got.d_boxes, &want.d_boxes, 1e-4, "boxes");
        close(&got.d_scores, &want.d_scores, 5e-5, "scores");
    }
}

fn same_sums(got: &Result, want: &Result, tolerance: f64) {
    assert_eq!(got.lanes.len(), want.lanes.len());
    for (g, w) in got.lanes.iter().zip(&want.lanes) {
        let numbers = |l: &ShownLoss| [l.sums.boxes, l.sums.classes, l.sums.distances, l.score_sum];
        for (g, w) in numbers(g).into_iter().zip(numbers(w)) {
            assert!((g - w).abs() <= tolerance * (w.abs() + 1e-4), "{g} for {w}");
        }
    }
}

fn close(got: &[f32], want: &[f32], tolerance: f32, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let scale = want.iter().fold(1e-6f32, |a, v| a.max(v.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(
            (g - w).abs() <= tolerance * scale,
            "{what} [{i}]: {g} for {w}, largest {scale}"
        );
    }
}

#[test]
fn sums_gradients_and_assignment_equal_those_of_the_host() {
    let Some(device) = device() else { return };
    let mut seed = 0;
    for (n, classes, count) in [(1, 1, 1), (3, 5, 4), (5, 80, 9), (2, 3, 0), (2, 17, 40)] {
        for reg_max in [1, 16, 9] {
            for topk in [ONE_TO_MANY, ONE_TO_ONE] {
                seed += 1;
                let truths = objects(seed, n, count, classes);
                let case = fitting(seed, truths, classes, reg_max, topk);
                case.check_assignment(&device);
                case.check(&device);
            }
        }
    }
}

#[test]
fn hundreds_of_objects_in_an_image_compete_for_its_anchors() {
    let Some(device) = device() else { return };
    for topk in [ONE_TO_MANY, ONE_TO_ONE] {
        let mut truths = objects(3, 1, 400, 4);
        truths.push(vec![]);
        truths.extend(objects(4, 1, 3, 4));
        let case = fitting(5, truths, 4, 1, topk);
        case.check_assignment(&device);
        case.check(&device);
    }
}

#[test]
fn objects_that_are_tiny_doubled_outside_or_empty_are_assigned_as_on_the_host() {
    let Some(device) = device() else { return };
    let at = |class: usize, xyxy: [f64; 4]| GroundTruth { class, xyxy };
    let truths = vec![
        vec![
            at(0, [16.5, 16.5, 18.5, 18.5]),
            at(1, [16.5, 16.5, 18.5, 18.5]),
            at(0, [16.5, 16.5, 18.5, 18.5]),
            at(2, [0.0, 0.0, 160.0, 96.0]),
            at(2, [159.0, 95.0, 160.0, 96.0]),
            at(1, [40.0, 40.0, 40.0, 60.0]),
            at(1, [60.0, 40.0, 60.0, 40.0]),
            at(0, [200.0, 120.0, 240.0, 160.0]),
            at(0, [-80.0, -50.0, -40.0, -20.0]),
            at(0, [-20.0, 10.0, 30.0, 50.0]),
            // sides on centres of cells: those are not inside
            at(2, [12.0, 12.0, 44.0, 44.0]),
        ],
        vec![],
    ];
    for topk in [ONE_TO_MANY, ONE_TO_ONE] {
        for reg_max in [1, 16] {
            let case = fitting(8, truths.clone(), 3, reg_max, topk);
            case.check_assignment(&device);
            case.check(&device);
        }
    }
}

#[test]
fn equal_scores_and_boxes_leave_the_lower_anchors_and_objects() {
    let Some(device) = device() else { return };
    let xyxy = [8.0, 8.0, 72.0, 72.0];
    let truth = GroundTruth { class: 0, xyxy };
    for topk in [ONE_TO_MANY, ONE_TO_ONE] {
        let mut case = fitting(1, vec![vec![truth; 3], vec![truth]], 1, 1, topk);
        case.scores.fill(0.25);
        // every anchor predicts one box, in numbers that float32 has: all alignments are the same to the last bit
        let predicted = [16.0, 16.0, 80.0, 80.0];
        for (row, out) in case.boxes.chunks_exact_mut(4).enumerate() {
            let k = row % case.anchors.len();
            let ([x, y], s) = (case.anchors.xy[k], case.anchors.stride[k]);
            for (side, out) in out.iter_mut().enumerate() {
                let [x1, y1, x2, y2] = predicted;
                *out = ([x - x1, y - y1, x2 - x, y2 - y][side] / s) as f32;
            }
        }
        case.check_assignment(&device);
        let got = case.positives_on_device(&device);
        assert_eq!(got.len(), 2 * topk.last, "the first object has all of them");
        assert!(got.iter().all(|p| p.1 == 0));
        assert_eq!(
            got[0].2,
            case.anchors.levels[0].cols + 1,
            "the lowest anchor inside"
        );
    }
}

#[test]
fn class_weights_multiply_the_class_terms_only() {
    let Some(device) = device() else { return };
    for classes in [3, 80] {
        let mut case = fitting(31, objects(31, 2, 6, classes), classes, 1, ONE_TO_MANY);
        case.weights = Some((0..classes).map(|c| 0.75 + 0.5 * c as f64).collect());
        case.check(&device);
    }
}

#[test]
fn batches_without_images_or_objects_have_a_loss() {
    let Some(device) = device() else { return };
    let empty = fitting(1, vec![], 4, 16, ONE_TO_MANY);
    let got = empty.on_device(&device, &[0..0, 0..0], DType::F32, 1.0);
    assert_eq!(got.lanes, vec![ShownLoss::default(); 2]);
    let background = fitting(2, vec![vec![]; 3], 4, 16, ONE_TO_ONE);
    background.check(&device);
    let got = background.on_device(&device, &quarters(3), DType::F32, 1.0);
    assert!(got.d_boxes.iter().all(|&v| v == 0.0));
}

#[test]
fn an_image_has_the_same_bytes_alone_and_among_others() {
    let Some(device) = device() else { return };
    let case = fitting(77, objects(77, 4, 7, 20), 20, 16, ONE_TO_MANY);
    let all = case.on_device(&device, &[0..1, 1..2, 2..3, 3..4], DType::F32, 1.0);
    let again = case.on_device(&device, &[0..1, 1..2, 2..3, 3..4], DType::F32, 1.0);
    assert_eq!((&all.lanes, &all.d_boxes), (&again.lanes, &again.d_boxes));
    let (b, s) = (case.anchors.len() * 64, case.anchors.len() * 20);
    for i in 0..4 {
        let alone = Case {
            boxes: case.boxes[i * b..(i + 1) * b].to_vec(),
            scores: case.scores[i * s..(i + 1) * s].to_vec(),
            truths: vec![case.truths[i].clone()],
            ..case.clone()
        };
        let got = alone.on_device(&device, &[0..1], DType::F32, 1.0);
        assert_eq!(got.lanes[0], all.lanes[i]);
        assert!(got.d_boxes == all.d_boxes[i * b..(i + 1) * b]);
        assert!(got.d_scores == all.d_scores[i * s..(i + 1) * s]);
    }
}

#[test]
fn half_precision_outputs_have_half_precision_gradients_times_the_loss_scale() {
    let Some(device) = device() else { return };
    for (dtype, tolerance) in [(DType::F16, 1e-3), (DType::BF16, 8e-3)] {
        if !CubeBackend::supports_dtype(&device, dtype) {
            eprintln!("skipped: the device has no {}", dtype.name());
            continue;
        }
        let mut case = fitting(12, objects(12, 3, 5, 8), 8, 16, ONE_TO_MANY);
        for v in case.boxes.iter_mut().chain(&mut case.scores) {
            *v = match dtype {
                DType::F16 => half::f16::from_f32(*v).to_f32(),
                _ => half::bf16::from_f32(*v).to_f32(),
            };
        }
        let lanes = quarters(3);
        let want = case.on_host(&lanes);
        let got = case.on_device(&device, &lanes, dtype, 64.0);
        same_sums(&got, &want, 1e-5);
        let up = |v: &[f32]| v.iter().map(|v| v * 64.0).collect::<Vec<_>>();
        close(&got.d_boxes, &up(&want.d_boxes), tolerance, "boxes");
        close(&got.d_scores, &up(&want.d_scores), tolerance, "scores");
    }
}

/// Says nothing of values: with a stand-in for a driver it shows that the compiler takes the kernels.
#[test]
fn kernels_of_every_type_are_accepted_by_the_device() {
    let Some(device) = device() else { return };
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        if !CubeBackend::supports_dtype(&device, dtype) {
            continue;
        }
        for (classes, reg_max) in [(80, 1), (3, 16)] {
            let mut case = fitting(1, objects(1, 2, 3, classes), classes, reg_max, ONE_TO_MANY);
            for weights in [None, Some(vec![1.5; classes])] {
                case.weights = weights;
                let got = case.on_device(&device, &quarters(2), dtype, 1.0);
                assert_eq!(got.lanes.len(), 4);
            }
        }
    }
}

#[test]
fn what_is_not_a_number_stays_visible() {
    let Some(device) = device() else { return };
    let mut case = fitting(5, objects(5, 1, 2, 3), 3, 1, ONE_TO_MANY);
    case.scores[10] = f32::NAN;
    let got = case.on_device(&device, &[0..1], DType::F32, 1.0);
    assert!(got.lanes[0].sums.classes.is_nan());
    assert!(got.d_scores[10].is_nan());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_objects_are_assigned_as_on_the_host(
        raw in prop::collection::vec(
            prop::collection::vec((0usize..4, -20.0..150.0f32, -20.0..90.0f32, 0.5..120.0f32, 0.5..90.0f32), 0..12),
            1..4,
        ),
        seed in any::<u64>(),
        reg_max in prop::sample::select(vec![1usize, 16]),
        one in any::<bool>(),
    ) {
        let Some(device) = device() else { return Ok(()) };
        let object = |&(class, x, y, w, h): &(usize, f32, f32, f32, f32)| GroundTruth {
            class,
            xyxy: [x, y, x + w, y + h].map(f64::from),
        };
        let truths = raw.iter().map(|l| l.iter().map(object).collect()).collect();
        let case = fitting(seed, truths, 4, reg_max, if one { ONE_TO_ONE } else { ONE_TO_MANY });
        case.check_assignment(&device);
        case.check(&device);
    }
}

/// Not a test: `YOLO_TRAIN_TEST_DEVICE=cuda cargo test --release --features cuda --lib loss::device::tests::rate -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn rate() {
    let Some(device) = device() else { return };
    for (n, reg_max, count) in [(16, 1, 8), (64, 1, 8), (64, 16, 8), (64, 1, 200)] {
        let host = Anchors::new(640, 640, &[8, 16, 32]);
        let a = host.len();
        let mut numbers = Numbers::new(3);
        let mut object = |_| {
            let (x, y) = (numbers.next(0.0, 560.0), numbers.next(0.0, 560.0));
            let (w, h) = (numbers.next(8.0, 80.0), numbers.next(8.0, 80.0));
            GroundTruth {
                class: 3,
                xyxy: [x, y, x + w, y + h].map(f64::from),
            }
        };
        let list: Vec<Vec<_>> = (0..n)
            .map(|_| (0..count).map(&mut object).collect())
            .collect();
        let dtype = match CubeBackend::supports_dtype(&device, DType::BF16) {
            true => DType::BF16,
            false => DType::F32,
        };
        let boxes = Numbers::new(1).vec(n * a * 4 * reg_max, 1.0, 6.0);
        let scores = Numbers::new(2).vec(n * a * 80, -12.0, -4.0);
        let boxes = tensor(&device, &boxes, &[n, a, 4 * reg_max], dtype);
        let scores = tensor(&device, &scores, &[n, a, 80], dtype);
        let (truths, table) = (truths(&list, &device), anchors(&host, &device));
        for topk in [ONE_TO_MANY, ONE_TO_ONE] {
            let c = Criterion {
                reg_max,
                gains: GAINS,
                class_weights: None,
                topk,
            };
            let m = measure(&c, None);
            let lanes = quarters(n);
            let run = |times: usize| {
                let start = std::time::Instant::now();
                let mut last = None;
                for _ in 0..times {
                    let (b, s) = (boxes.clone(), scores.clone());
                    last = Some(head_loss(b, s, &truths, &table, &m, 1.0, 1.0, &lanes));
                }
                read(&last.expect("it ran").sums);
                start.elapsed().as_secs_f64() * 1e3 / times as f64
            };
            run(3);
            let ms = run(20);
            println!("{n} images, {count} objects, {reg_max} bins, {topk:?}: {ms:.3} ms");
        }
    }
}
