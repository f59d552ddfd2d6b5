use super::super::criterion::{Gains, ONE_TO_MANY, ONE_TO_ONE, head_loss};
use super::*;
use crate::model::HeadOutput;
use crate::ops::cpu::norm::tree;
use crate::ops::cpu::testing::{Numbers, assert_same, in_threads, quarters};
use burn::tensor::{DType, Device, Tensor, TensorData};

const GAINS: Gains = Gains {
    boxes: 7.5,
    classes: 0.5,
    distances: 1.5,
};

struct Case {
    boxes: Vec<f32>,
    scores: Vec<f32>,
    truths: Vec<Vec<GroundTruth>>,
    anchors: Anchors,
    c: Criterion<'static>,
    classes: usize,
}

/// Random outputs of which some fit the truths; image 1 is a background.
fn case(seed: u64, n: usize, classes: usize, reg_max: usize, objects: usize, one: bool) -> Case {
    let (height, width) = (96, 160);
    let anchors = Anchors::new(height, width, &[8, 16, 32]);
    let a = anchors.len();
    let mut numbers = Numbers::new(seed);
    let scores = (0..n * a * classes)
        .map(|_| numbers.next(-6.0, 3.0))
        .collect();
    let mut object = |_| {
        let (x, y) = (numbers.next(0.0, 140.0), numbers.next(0.0, 80.0));
        let (w, h) = (numbers.next(2.0, 90.0), numbers.next(2.0, 60.0));
        let xyxy = [x, y, (x + w).min(160.0), (y + h).min(96.0)].map(f64::from);
        GroundTruth {
            class: (numbers.next(0.0, 0.999) * classes as f32) as usize,
            xyxy,
        }
    };
    let truths: Vec<Vec<GroundTruth>> = (0..n)
        .map(|i| {
            if i == 1 {
                vec![]
            } else {
                (0..objects).map(&mut object).collect()
            }
        })
        .collect();
    let mut boxes = vec![];
    for of_image in &truths {
        for k in 0..a {
            let ([x, y], s) = (anchors.xy[k], anchors.stride[k]);
            let near = of_image.get(k % objects.max(1));
            for side in 0..4 {
                let distance = match near {
                    Some(t) => {
                        [x - t.xyxy[0], y - t.xyxy[1], t.xyxy[2] - x, t.xyxy[3] - y][side] / s
                    }
                    None => 3.0,
                };
                let distance = distance as f32 + numbers.next(-0.6, 0.6);
                if reg_max == 1 {
                    boxes.push(distance);
                } else {
                    boxes
                        .extend((0..reg_max).map(|b| {
                            numbers.next(-1.0, 1.0) - 0.5 * (b as f32 - distance).powi(2)
                        }));
                }
            }
        }
    }
    let topk = if one { ONE_TO_ONE } else { ONE_TO_MANY };
    Case {
        boxes,
        scores,
        truths,
        anchors,
        c: Criterion {
            reg_max,
            gains: GAINS,
            class_weights: None,
            topk,
        },
        classes,
    }
}

impl Case {
    fn run(&self, isa: Isa, weight: f64) -> (FastLoss, Vec<f32>, Vec<f32>) {
        self.run_images(isa, weight, 0..self.truths.len())
    }

    fn run_images(
        &self,
        isa: Isa,
        weight: f64,
        at: Range<usize>,
    ) -> (FastLoss, Vec<f32>, Vec<f32>) {
        let (b, s) = (
            self.anchors.len() * 4 * self.c.reg_max,
            self.anchors.len() * self.classes,
        );
        let boxes = &self.boxes[at.start * b..at.end * b];
        let scores = &self.scores[at.start * s..at.end * s];
        let (mut db, mut ds) = (vec![f32::NAN; boxes.len()], vec![f32::NAN; scores.len()]);
        let out = RawHead {
            boxes,
            scores,
            classes: self.classes,
        };
        let (truths, lanes) = (&self.truths[at.clone()], quarters(at.len()));
        let loss = head_loss_and_gradient(
            isa,
            out,
            truths,
            &self.anchors,
            &self.c,
            weight,
            &lanes,
            &mut db,
            &mut ds,
        );
        (tree(loss, FastLoss::merge).unwrap(), db, ds)
    }

    /// Sums, sum of targets, positives and gradients of the reference in float64.
    fn reference(&self, weight: f64) -> (FastLoss, Vec<f64>, Vec<f64>) {
        let device = Device::flex().autodiff();
        let tensor = |v: &[f32], last: usize| {
            let v: Vec<f64> = v.iter().map(|&v| f64::from(v)).collect();
            let shape = [self.truths.len(), self.anchors.len(), last];
            Tensor::<3>::from_data(TensorData::new(v, shape), (&device, DType::F64)).require_grad()
        };
        let boxes = tensor(&self.boxes, 4 * self.c.reg_max);
        let scores = tensor(&self.scores, self.classes);
        let out = HeadOutput {
            boxes: boxes.clone(),
            scores: scores.clone(),
        };
        let l = head_loss(&out, &self.truths, &self.anchors, &self.c);
        let grads = (l.total * weight).backward();
        let read = |t: &Tensor<3>| match t.grad(&grads) {
            Some(g) => g.into_data().try_to_vec::<f64>().unwrap(),
            None => vec![0.0; t.shape().num_elements()],
        };
        let loss = FastLoss {
            sums: l.sums,
            score_sum: l.score_sum,
            positives: l.positives,
        };
        (loss, read(&boxes), read(&scores))
    }
}

/// Largest difference beside the largest wanted element.
fn off(got: &[f32], want: &[f64]) -> f64 {
    let scale = want.iter().fold(1e-9f64, |a, v| a.max(v.abs()));
    got.iter()
        .zip(want)
        .fold(0.0f64, |a, (g, w)| a.max((f64::from(*g) - w).abs()))
        / scale
}

#[test]
fn value_and_gradient_equal_the_reference_in_float64_on_every_instruction_set() {
    let mut seed = 0;
    for (n, classes, objects) in [(1, 1, 1), (3, 5, 4), (5, 80, 9), (2, 3, 0), (2, 17, 40)] {
        for reg_max in [1, 16, 9] {
            for one in [false, true] {
                seed += 1;
                let case = case(seed, n, classes, reg_max, objects, one);
                let (want, db, ds) = case.reference(0.7);
                assert_eq!(want.positives > 0, objects > 0, "the case says something");
                for isa in Isa::available() {
                    let (got, gb, gs) = case.run(isa, 0.7);
                    assert_eq!(got.positives, want.positives);
                    let pairs = [
                        (got.sums.boxes, want.sums.boxes),
                        (got.sums.classes, want.sums.classes),
                        (got.sums.distances, want.sums.distances),
                        (got.score_sum, want.score_sum),
                    ];
                    for (g, w) in pairs {
                        assert!(
                            (g - w).abs() <= 1e-6 * w.abs() + 1e-9,
                            "{isa:?} {g} for {w}"
                        );
                    }
                    assert!(off(&gb, &db) < 1e-6, "boxes, {isa:?}: {}", off(&gb, &db));
                    assert!(off(&gs, &ds) < 1e-6, "scores, {isa:?}: {}", off(&gs, &ds));
                }
            }
        }
    }
}

/// Weights that no two classes share.
fn some_weights(classes: usize) -> &'static [f64] {
    let w: Vec<f64> = (0..classes).map(|c| 0.75 + 0.5 * c as f64).collect();
    w.leak()
}

#[test]
fn class_weights_act_as_in_the_reference_and_as_in_a_difference() {
    // more scores than a task has, and a number of classes that does not divide it
    for (n, classes, reg_max) in [(2, 3, 1), (2, 80, 16), (1, 401, 1)] {
        for one in [false, true] {
            let mut case = case(90 + classes as u64, n, classes, reg_max, 5, one);
            let plain = case.run(Isa::best(), 0.7);
            case.c.class_weights = Some(some_weights(classes));
            let (want, db, ds) = case.reference(0.7);
            for isa in Isa::available() {
                let (got, gb, gs) = case.run(isa, 0.7);
                let (g, w) = (got.sums.classes, want.sums.classes);
                assert!((g - w).abs() <= 1e-6 * w, "{isa:?} {g} for {w}");
                assert!(off(&gb, &db) < 1e-6 && off(&gs, &ds) < 1e-6, "{isa:?}");
                assert_eq!(
                    got.score_sum, plain.0.score_sum,
                    "the normaliser has no weights"
                );
            }
            assert!(want.sums.classes > plain.0.sums.classes);
            // each score's slope is its class's weight times the slope without weights
            let gs = case.run(Isa::best(), 0.7).2;
            for (i, (g, p)) in gs.iter().zip(&plain.2).enumerate() {
                let w = some_weights(classes)[i % classes] as f32;
                assert!((g - w * p).abs() <= 1e-5 * g.abs() + 1e-12, "{i}: {g} {p}");
            }
            case.c.class_weights = Some(vec![1.0; classes].leak());
            assert!(
                case.run(Isa::best(), 0.7) == plain,
                "weights of 1 change no byte"
            );
        }
    }
}

#[test]
fn the_slope_with_class_weights_is_that_of_a_finite_difference() {
    let mut case = case(6, 1, 4, 1, 0, false);
    case.c.class_weights = Some(some_weights(4));
    let value = |case: &Case| case.reference(1.0).0.sums.classes * GAINS.classes;
    let slope = case.run(Isa::best(), 1.0).2;
    for at in [0, 5, 402] {
        let x = case.scores[at];
        let h = 1e-2;
        case.scores[at] = x + h;
        let above = value(&case);
        case.scores[at] = x - h;
        let below = value(&case);
        case.scores[at] = x;
        let step = f64::from(x + h) - f64::from(x - h);
        let want = (above - below) / step;
        assert!((f64::from(slope[at]) - want).abs() < 1e-4 * (1.0 + want.abs()));
    }
}

#[test]
fn scores_far_from_zero_keep_their_relative_precision() {
    for isa in Isa::available() {
        let x: Vec<f32> = (-1000..1000).map(|i| i as f32 * 0.03).collect();
        for (i, &x) in x.iter().enumerate() {
            let one = [x; 1];
            let mut d = [0.0];
            let value = isa.run(Negatives {
                x: &one,
                d: &mut d,
                weights: None,
                scale: 1.0,
            });
            let x = f64::from(x);
            let (want, slope) = ((-x.abs()).exp().ln_1p() + x.max(0.0), sigmoid(x));
            assert!(
                (value / want - 1.0).abs() < 5e-7,
                "{isa:?} {i} {x}: {value} for {want}"
            );
            assert!(
                (f64::from(d[0]) / slope - 1.0).abs() < 5e-7,
                "{isa:?} {x}: {} for {slope}",
                d[0]
            );
        }
    }
}

#[test]
fn powers_equal_the_library_and_distances_the_reference() {
    for i in 0..100_000 {
        let x = -f64::from(i) * 0.0071;
        let (got, want) = (exp_below_zero(x), x.exp());
        assert!(
            (got / want - 1.0).abs() < 5e-16 || want < 1e-307,
            "{x}: {got} for {want}"
        );
    }
    assert!(exp_below_zero(f64::NAN).is_nan());
    assert_eq!(exp_below_zero(-1e9), 0.0);
    let raw = Numbers::new(1).vec(64, -9.0, 9.0);
    let want = super::super::anchors::distances(|i| f64::from(raw[i]), 16);
    for isa in Isa::available() {
        let got = isa.run(Sides {
            raw: &raw,
            powers: &mut [0.0; 64],
        });
        assert!(
            got.iter()
                .zip(want)
                .all(|(g, w)| (g.mean - w).abs() < 1e-13)
        );
    }
}

#[test]
fn threads_batch_and_ranks_change_no_byte() {
    let case = case(77, 6, 20, 16, 7, false);
    let (b, s) = (case.anchors.len() * 64, case.anchors.len() * 20);
    for isa in Isa::available() {
        let all = in_threads(1, || case.run(isa, 0.8));
        assert!(all == in_threads(2, || case.run(isa, 0.8)));
        let mut lanes = vec![];
        for lane in quarters(6) {
            let mut of_lane = FastLoss::default();
            for i in lane {
                let (loss, db, ds) = case.run_images(isa, 0.8, i..i + 1);
                assert_same(&db, &all.1[i * b..(i + 1) * b], "boxes alone");
                assert_same(&ds, &all.2[i * s..(i + 1) * s], "scores alone");
                of_lane = of_lane.merge(loss);
            }
            lanes.push(of_lane);
        }
        let ranks = lanes.chunks(2).map(|l| l[0].merge(l[1])).collect();
        assert_eq!(tree(ranks, FastLoss::merge), Some(all.0));
    }
}

#[test]
fn what_is_not_a_number_stays_visible() {
    let mut case = case(5, 1, 3, 1, 2, false);
    case.scores[10] = f32::NAN;
    for isa in Isa::available() {
        assert!(case.run(isa, 1.0).0.sums.classes.is_nan());
    }
}

/// Not a test: `cargo test --release --lib loss::fast::tests::rate -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn rate() {
    use std::time::Instant;
    let best = |f: &mut dyn FnMut()| {
        f();
        let times = (0..5).map(|_| {
            let t = Instant::now();
            f();
            t.elapsed().as_secs_f64() * 1e3
        });
        times.fold(f64::MAX, f64::min)
    };
    for (n, reg_max, objects, large) in [
        (4, 1, 7, 120.0),
        (16, 1, 100, 120.0),
        (16, 16, 100, 120.0),
        (16, 16, 100, 400.0),
    ] {
        let anchors = Anchors::new(640, 640, &[8, 16, 32]);
        let a = anchors.len();
        let mut numbers = Numbers::new(3);
        let scores = numbers.vec(n * a * 80, -12.0, -4.0);
        let boxes = if reg_max == 1 {
            numbers.vec(n * a * 4, 1.0, 6.0)
        } else {
            numbers.vec(n * a * 64, -2.0, 2.0)
        };
        let mut object = |_| {
            let (x, y) = (numbers.next(0.0, 600.0), numbers.next(0.0, 600.0));
            let (w, h) = (numbers.next(8.0, large), numbers.next(8.0, large));
            let xyxy = [x, y, (x + w).min(640.0), (y + h).min(640.0)].map(f64::from);
            GroundTruth { class: 3, xyxy }
        };
        let truths: Vec<Vec<_>> = (0..n)
            .map(|_| (0..objects).map(&mut object).collect())
            .collect();
        let (mut db, mut ds) = (vec![0.0; boxes.len()], vec![0.0; scores.len()]);
        for topk in [ONE_TO_MANY, ONE_TO_ONE] {
            let c = Criterion {
                reg_max,
                gains: GAINS,
                class_weights: None,
                topk,
            };
            let out = RawHead {
                boxes: &boxes,
                scores: &scores,
                classes: 80,
            };
            let lanes = quarters(n);
            let all = best(&mut || {
                let _ = head_loss_and_gradient(
                    Isa::best(),
                    out,
                    &truths,
                    &anchors,
                    &c,
                    1.0,
                    &lanes,
                    &mut db,
                    &mut ds,
                );
            });
            let assigning = best(&mut || {
                for i in 0..n {
                    let image = Image {
                        isa: Isa::best(),
                        boxes: &boxes[i * a * 4 * reg_max..][..a * 4 * reg_max],
                        scores: &scores[i * a * 80..][..a * 80],
                        classes: 80,
                        truths: &truths[i],
                        anchors: &anchors,
                        c: &c,
                        by_score: None,
                        weight: 1.0,
                    };
                    std::hint::black_box(image.positives());
                }
            });
            println!(
                "{n} images, {objects} objects to {large} px, reg_max {reg_max}, top {}: {all:.2} ms, of which assignment on one thread {assigning:.2} ms",
                topk.last
            );
        }
    }
}
