use super::*;
use crate::config::model::ModelSpec;
use crate::loss::GroundTruth;
use crate::model::init;
use crate::train::optim::{Algorithm, finish_gradient};

const GAINS: Gains = Gains {
    boxes: 7.5,
    classes: 0.5,
    distances: 1.5,
};

fn engine(model: &str) -> Engine {
    let network = Network::new(ModelSpec::resolve(model).unwrap(), 3);
    let state = init::init(&network, 0);
    let optimizer = Optimizer::new(Algorithm::Sgd, 5e-4, network.layout.param_len);
    let team = Team::alone(4);
    let mut e = Engine::new(network, state, optimizer, GAINS, &Device::flex(), team);
    freeze_norms(&mut e, true);
    e
}

impl Engine {
    fn add(&mut self, batch: &MicroBatch, head_weights: (f64, f64)) -> Option<ShownLoss> {
        let turn = Turn {
            images: batch.truths.len(),
            head_weights,
            ends_step: false,
        };
        self.accumulate(batch, turn).unwrap()
    }

    /// The gradient of the step so far, `R n / S dL/dp`, clipped, and its norm before.
    fn take_gradient(&mut self, size: StepSize) -> (Vec<f32>, Step) {
        let images = self.growing.lane_images().iter().sum();
        self.growing.finish(&mut self.gradient).unwrap();
        let factor = size.reference as f64 * images as f64 / size.full as f64;
        let mut gradient = self.gradient.clone();
        let gradient_norm = finish_gradient(
            &self.network.layout,
            &mut gradient,
            self.normalisers(),
            factor,
            size.clip_bound(images),
        );
        let step = Step {
            gradient_norm,
            images,
            waited: 0.0,
        };
        (gradient, step)
    }
}

fn freeze_norms(e: &mut Engine, frozen: bool) {
    for n in &mut e.network.layout.norms {
        n.frozen = frozen;
    }
}

fn pixels(n: usize) -> Vec<u8> {
    (0..n * 64 * 64 * 3)
        .map(|i| (init::uniform(3, i as u64) * 255.0) as u8)
        .collect()
}

fn truths(n: usize) -> Vec<Vec<GroundTruth>> {
    let b = |i: usize| GroundTruth {
        class: i % 3,
        xyxy: [4.0 + i as f64, 6.0, 40.0, 30.0 + 5.0 * i as f64],
    };
    // the third image is a background
    (0..n)
        .map(|i| {
            if i == 2 {
                vec![]
            } else {
                (0..=i).map(b).collect()
            }
        })
        .collect()
}

#[test]
fn micro_batches_add_up_to_the_gradient_of_the_large_batch() {
    for model in ["yolo26n", "yolov8n"] {
        let (pixels, truths) = (pixels(5), truths(5));
        let size = StepSize {
            reference: 64,
            full: 5,
        };
        let one = 64 * 64 * 3;
        let gradient = |cuts: &[usize]| {
            let mut e = engine(model);
            let mut shown = ShownLoss::default();
            for w in cuts.windows(2) {
                let part = MicroBatch {
                    pixels: &pixels[w[0] * one..w[1] * one],
                    size: (64, 64),
                    height: 64,
                    width: 64,
                    truths: truths[w[0]..w[1]].to_vec(),
                };
                shown.add(e.add(&part, (0.8, 0.2)).unwrap());
            }
            assert_eq!(e.pending(), cuts.len() - 1);
            let (g, step) = e.take_gradient(size);
            assert_eq!((step.images, e.pending()), (5, 0));
            (g, step.gradient_norm, shown, e.network.layout.clone())
        };
        let (large, norm, loss, layout) = gradient(&[0, 5]);
        for cuts in [&[0, 2, 5][..], &[0, 1, 2, 3, 4, 5]] {
            let (parts, _, parts_loss, _) = gradient(cuts);
            let clip = crate::train::optim::MAX_NORM.min(norm);
            for p in &layout.params {
                let n = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
                let (a, b) = (&large[p.range()], &parts[p.range()]);
                let d = n(&mut a.iter().zip(b).map(|(a, b)| f64::from(a - b)));
                let g = n(&mut a.iter().map(|&a| f64::from(a)));
                assert!(
                    d <= 1e-3 * g + 1e-6 * clip,
                    "{model} {cuts:?} {}: {d:.2e} of {g:.2e}",
                    p.name
                );
            }
            assert!((parts_loss.score_sum / loss.score_sum - 1.0).abs() < 1e-5);
        }
    }
}

#[test]
fn with_frozen_norms_an_image_gives_the_same_bytes_alone_and_in_a_batch() {
    let (pixels, truths) = (pixels(3), truths(3));
    let one = 64 * 64 * 3;
    let e = engine("yolo26n");
    let device = Device::flex().autodiff();
    let run = |pixels: &[u8], truths: Vec<Vec<GroundTruth>>| {
        let batch = MicroBatch {
            pixels,
            size: (64, 64),
            height: 64,
            width: 64,
            truths,
        };
        let t = Tensors::new(&e.network.layout, &e.state.params, &device, DType::F32)
            .with_running_stats(&e.network.layout, &e.state.buffers);
        let x = batch.image(&device, DType::F32).require_grad();
        let out = e
            .network
            .forward(
                &t,
                x.clone(),
                Heads {
                    many: true,
                    one: true,
                },
            )
            .one_to_many
            .unwrap();
        let c = Criterion {
            reg_max: 1,
            gains: GAINS,
            class_weights: None,
            topk: ONE_TO_MANY,
        };
        let anchors = Anchors::new(64, 64, &e.network.strides);
        let loss = weighted_loss(&out, &batch.truths, &anchors, &c, 1.0, t.lanes()).0;
        let gradient = x.grad(&loss.backward()).unwrap();
        let bytes = |t: Vec<f32>| t.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let scores = out.scores.inner().into_data().try_to_vec::<f32>().unwrap();
        (
            bytes(scores),
            bytes(gradient.into_data().try_to_vec::<f32>().unwrap()),
        )
    };
    let (scores, gradient) = run(&pixels, truths.clone());
    for i in 0..3 {
        let (s, g) = run(&pixels[i * one..(i + 1) * one], truths[i..=i].to_vec());
        assert!(
            s == scores[i * s.len()..(i + 1) * s.len()],
            "forward of image {i}"
        );
        assert!(
            g == gradient[i * g.len()..(i + 1) * g.len()],
            "gradient of image {i}"
        );
        assert!(
            g.iter().any(|&b| f32::from_bits(b) != 0.0),
            "a gradient arrives at the image"
        );
    }
}

#[test]
fn a_step_shorter_than_a_full_one_weighs_its_images() {
    let (pixels, truths) = (pixels(1), truths(1));
    let batch = MicroBatch {
        pixels: &pixels,
        size: (64, 64),
        height: 64,
        width: 64,
        truths,
    };
    let norm = |full: usize| {
        let mut e = engine("yolo26n");
        e.add(&batch, (0.8, 0.2)).unwrap();
        e.take_gradient(StepSize {
            reference: 64,
            full,
        })
        .1
        .gradient_norm
    };
    assert!((norm(1) / norm(4) - 4.0).abs() < 1e-4);
}

#[test]
fn a_loss_that_is_not_finite_is_reported_and_changes_nothing() {
    let (pixels, truths) = (pixels(1), truths(1));
    let batch = MicroBatch {
        pixels: &pixels,
        size: (64, 64),
        height: 64,
        width: 64,
        truths,
    };
    let mut e = engine("yolo26n");
    e.state.params[5] = f32::NAN;
    let before = e.state.clone();
    assert!(e.add(&batch, (0.8, 0.2)).is_none());
    assert_eq!(e.pending(), 0);
    assert_eq!(before.buffers, e.state.buffers);
}

#[test]
fn what_is_frozen_keeps_its_bytes_and_the_rest_gets_the_same_gradient() {
    let (pixels, truths) = (pixels(2), truths(2));
    let batch = MicroBatch {
        pixels: &pixels,
        size: (64, 64),
        height: 64,
        width: 64,
        truths,
    };
    let size = StepSize {
        reference: 64,
        full: 2,
    };
    for (request, model) in [
        ("10", "yolo26n"),
        ("22.cv2,22.cv3.1,3", "yolov8n"),
        ("23.cv2,23.cv3,23.one2one_cv2", "yolo26n"),
    ] {
        // as the frozen one, but with every gradient
        let mut whole = engine(model);
        let mut e = engine(model);
        freeze_norms(&mut e, false);
        e.network.freeze(request).unwrap();
        for (n, frozen) in whole
            .network
            .layout
            .norms
            .iter_mut()
            .zip(&e.network.layout.norms)
        {
            n.frozen = frozen.frozen;
        }
        let before = e.state.clone();
        whole.add(&batch, (0.8, 0.2)).unwrap();
        e.add(&batch, (0.8, 0.2)).unwrap();
        let all = |e: &Engine| {
            let lanes = e.pending_gradient().unwrap();
            let len = e.network.layout.param_len;
            (0..len)
                .map(|i| lanes.iter().skip(i).step_by(len).sum::<f32>())
                .collect::<Vec<_>>()
        };
        let (of_frozen, of_whole) = (all(&e), all(&whole));
        for p in &e.network.layout.params {
            let at = p.range();
            if p.trained() {
                assert_eq!(of_frozen[at.clone()], of_whole[at], "{}", p.name);
            } else {
                assert!(of_frozen[at].iter().all(|&g| g == 0.0));
            }
        }
        let rates = Rates {
            lr: 0.01,
            bias_lr: 0.01,
            momentum: 0.9,
        };
        for _ in 0..2 {
            e.step(&rates, size).unwrap().unwrap();
            e.add(&batch, (0.8, 0.2)).unwrap();
        }
        let bytes = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        for (state, what) in [(&e.state, "weights"), (&e.average, "average")] {
            let mut moved = 0;
            for p in &e.network.layout.params {
                let same = bytes(&state.params[p.range()]) == bytes(&before.params[p.range()]);
                assert!(same || p.trained(), "{what}: {}", p.name);
                // a level without objects gives its box branch no gradient
                moved += usize::from(!same);
            }
            assert!(moved > 50, "{what}: {moved} moved");
            for n in &e.network.layout.norms {
                let same = bytes(&state.buffers[n.mean()]) == bytes(&before.buffers[n.mean()]);
                assert_eq!(same, n.frozen, "{what}: {}", n.name);
            }
        }
    }
}

#[test]
fn class_weights_change_the_loss_of_training() {
    let (pixels, truths) = (pixels(1), truths(1));
    let batch = MicroBatch {
        pixels: &pixels,
        size: (64, 64),
        height: 64,
        width: 64,
        truths,
    };
    let loss = |weights: Option<[f64; 3]>| {
        let mut e = engine("yolo26n");
        e.class_weights = weights.map(|w| w.as_slice().into());
        e.add(&batch, (0.8, 0.2)).unwrap().sums.classes
    };
    assert_eq!(loss(None), loss(Some([1.0; 3])));
    assert!((loss(Some([2.0; 3])) / loss(None) - 2.0).abs() < 1e-6);
}

#[test]
fn training_on_one_image_lowers_its_loss() {
    let (pixels, truths) = (pixels(2), truths(2));
    let batch = MicroBatch {
        pixels: &pixels,
        size: (64, 64),
        height: 64,
        width: 64,
        truths,
    };
    let mut e = engine("yolo26n");
    freeze_norms(&mut e, false);
    e.optimizer = Optimizer::new(Algorithm::AdamW, 0.0, e.network.layout.param_len);
    let rates = Rates {
        lr: 0.001,
        bias_lr: 0.001,
        momentum: 0.9,
    };
    let mut losses = vec![];
    for _ in 0..20 {
        let l = e.add(&batch, (0.5, 0.5)).unwrap();
        losses.push(l.items(GAINS).iter().sum::<f64>());
        e.step(
            &rates,
            StepSize {
                reference: 64,
                full: 2,
            },
        )
        .unwrap()
        .unwrap();
    }
    assert!(
        losses[16..].iter().all(|l| *l < 0.8 * losses[0]),
        "{losses:?}"
    );
    assert_ne!(e.average, e.state);
}
