//! Forward, backward and optimizer step of one device.

use super::checkpoint::Counters;
use super::ema;
use super::flat::{self, Flat, GradientScale, gradient_norm};
use super::optim::{MAX_NORM, Optimizer, clip_factor, finish_gradient};
use super::schedule::Rates;
use crate::loss::{
    Anchors, Criterion, Gains, MicroBatch, ONE_TO_MANY, ONE_TO_ONE, ShownLoss, weighted_loss,
};
use crate::model::init::{NORM_MOMENTUM, State};
use crate::model::{Heads, Network, Tensors};
use crate::ops;
use burn::tensor::{DType, Device, Tensor};
use std::sync::Arc;
use std::time::Instant;

/// What the micro-batches since the last step have added up to.
#[derive(Debug, Clone)]
struct Window {
    gradient: Vec<f32>,
    score_sums: [f64; 2],
    images: usize,
    micro_batches: usize,
}

/// A step that was done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Norm of the gradient before clipping.
    pub gradient_norm: f64,
    pub images: usize,
}

/// What a step needs to know of the run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepSize {
    /// Reference batch R.
    pub reference: usize,
    /// Images of a full step S.
    pub full: usize,
}

impl StepSize {
    /// Norm that the gradient of a step of `images` images is clipped to: a shorter step keeps the weight n / S that
    /// its gradient has (docs/adr/0008).
    #[must_use]
    pub fn clip_bound(&self, images: usize) -> f64 {
        MAX_NORM * (images as f64 / self.full as f64).min(1.0)
    }
}

/// Seconds of the parts of a micro-batch.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Phases {
    pub forward: f64,
    pub loss: f64,
    pub backward: f64,
}

/// A network in training on one device.
pub struct Engine {
    pub network: Network,
    pub state: State,
    /// Averaged weights: what is validated and saved.
    pub average: State,
    pub optimizer: Optimizer,
    pub gains: Gains,
    /// Momentum of the running statistics.
    pub norm_momentum: f64,
    /// Weights of the classes in the loss; otherwise all are 1.
    pub class_weights: Option<Arc<[f64]>>,
    /// Of the last micro-batch.
    pub phases: Phases,
    /// Images that steps have used.
    pub images_seen: u64,
    device: Device,
    window: Window,
}

impl Engine {
    /// A network that starts at `state` on `device` (without autodiff).
    #[must_use]
    pub fn new(
        network: Network,
        state: State,
        optimizer: Optimizer,
        gains: Gains,
        device: &Device,
    ) -> Self {
        let window = Window {
            gradient: vec![0.0; network.layout.param_len],
            score_sums: [0.0; 2],
            images: 0,
            micro_batches: 0,
        };
        Self {
            average: state.clone(),
            network,
            state,
            optimizer,
            gains,
            norm_momentum: NORM_MOMENTUM,
            class_weights: None,
            phases: Phases::default(),
            images_seen: 0,
            device: device.clone(),
            window,
        }
    }

    /// Whole numbers and sums of what a checkpoint holds.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let w = &self.window;
        Counters {
            steps: self.optimizer.steps,
            images_seen: self.images_seen,
            batches_tracked: [self.state.batches_tracked, self.average.batches_tracked],
            score_sums: w.score_sums,
            images: w.images,
            micro_batches: w.micro_batches,
        }
    }

    /// Puts back what [`Self::counters`] gave.
    pub fn set_counters(&mut self, c: &Counters) {
        self.optimizer.steps = c.steps;
        self.images_seen = c.images_seen;
        [self.state.batches_tracked, self.average.batches_tracked] = c.batches_tracked;
        let w = &mut self.window;
        (w.score_sums, w.images, w.micro_batches) = (c.score_sums, c.images, c.micro_batches);
    }

    /// The arrays of a checkpoint: live weights, average, optimizer, and the gradient of a step that is under way.
    #[must_use]
    pub fn arrays(&self) -> Vec<(String, &[f32])> {
        let (s, a) = (&self.state, &self.average);
        let mut arrays: Vec<(String, &[f32])> = vec![
            ("params".into(), &s.params),
            ("buffers".into(), &s.buffers),
            ("average.params".into(), &a.params),
            ("average.buffers".into(), &a.buffers),
        ];
        let optimizer = self.optimizer.buffers().into_iter();
        arrays.extend(optimizer.map(|(name, b)| (format!("optimizer.{name}"), b)));
        if self.pending() > 0 {
            arrays.push(("gradient".into(), &self.window.gradient));
        }
        arrays
    }

    /// As [`Self::arrays`], to fill when a run goes on; the gradient is always among them.
    pub fn arrays_mut(&mut self) -> Vec<(String, &mut [f32])> {
        let (s, a) = (&mut self.state, &mut self.average);
        let mut arrays: Vec<(String, &mut [f32])> = vec![
            ("params".into(), &mut s.params),
            ("buffers".into(), &mut s.buffers),
            ("average.params".into(), &mut a.params),
            ("average.buffers".into(), &mut a.buffers),
            ("gradient".into(), &mut self.window.gradient),
        ];
        let optimizer = self.optimizer.buffers_mut().into_iter();
        arrays.extend(optimizer.map(|(name, b)| (format!("optimizer.{name}"), b)));
        arrays
    }

    /// Micro-batches since the last step.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.window.micro_batches
    }

    /// Forward and backward of a micro-batch; its gradient is added to the step's. `head_weights` are those of the
    /// one-to-many and the one-to-one head. `None` if the loss is not finite: nothing was added then.
    pub fn accumulate(
        &mut self,
        batch: &MicroBatch,
        head_weights: (f64, f64),
    ) -> Option<ShownLoss> {
        let start = Instant::now();
        let layout = &self.network.layout;
        let device = self.device.clone().autodiff();
        let tensors = Tensors::new(layout, &self.state.params, &device, DType::F32)
            .with_frozen_stats(layout, &self.state.buffers);
        let heads = Heads {
            many: true,
            one: true,
        };
        let out = self.network.forward(&tensors, batch.image(&device), heads);
        let forward = start.elapsed().as_secs_f64();
        let anchors = Anchors::new(batch.height, batch.width, &self.network.strides);
        let mut shown = ShownLoss::default();
        let mut scores = [0.0; 2];
        let mut total: Option<Tensor<1>> = None;
        let heads = [
            (&out.one_to_many, ONE_TO_MANY, head_weights.0),
            (&out.one_to_one, ONE_TO_ONE, head_weights.1),
        ];
        for (i, (head, topk, weight)) in heads.into_iter().enumerate() {
            let Some(head) = head else { continue };
            let c = Criterion {
                reg_max: self.network.spec.reg_max,
                gains: self.gains,
                class_weights: self.class_weights.as_deref(),
                topk,
            };
            let (term, loss) = weighted_loss(head, &batch.truths, &anchors, &c, weight);
            if !loss.is_finite() {
                return None;
            }
            // the last head's is shown: the one-to-one head's where there is one
            (shown, scores[i]) = (loss, loss.score_sum);
            total = Some(match total {
                Some(t) => t + term,
                None => term,
            });
        }
        let total = total.expect("a network has a head");
        let loss = start.elapsed().as_secs_f64() - forward;
        let mut grads = total.backward();
        tensors.accumulate_gradients(layout, &mut grads, &mut self.window.gradient);
        if !out.collected.stats.is_empty() {
            out.collected
                .update_running(layout, &mut self.state.buffers, self.norm_momentum);
            self.state.batches_tracked += 1;
        }
        let backward = start.elapsed().as_secs_f64() - forward - loss;
        self.phases = Phases {
            forward,
            loss,
            backward,
        };
        let w = &mut self.window;
        w.score_sums
            .iter_mut()
            .zip(scores)
            .for_each(|(a, s)| *a += s);
        w.images += batch.truths.len();
        w.micro_batches += 1;
        Some(shown)
    }

    /// The gradient of the step so far, `R n / S dL/dp`, clipped, and its norm before; the window is empty afterwards.
    pub fn take_gradient(&mut self, size: StepSize) -> (Vec<f32>, Step) {
        let len = self.network.layout.param_len;
        let w = &mut self.window;
        let mut gradient = std::mem::replace(&mut w.gradient, vec![0.0; len]);
        let images = w.images;
        let factor = size.reference as f64 * images as f64 / size.full as f64;
        let gradient_norm = finish_gradient(
            &self.network.layout,
            &mut gradient,
            w.score_sums,
            factor,
            size.clip_bound(images),
        );
        (w.score_sums, w.images, w.micro_batches) = ([0.0; 2], 0, 0);
        (
            gradient,
            Step {
                gradient_norm,
                images,
            },
        )
    }

    /// Ends a step: gradient, optimizer, average. `None` if the gradient is not finite: nothing was changed then.
    pub fn step(&mut self, rates: &Rates, size: StepSize) -> Option<Step> {
        let (isa, layout, w) = (ops::isa(), &self.network.layout, &mut self.window);
        let r = size.reference as f64;
        let factor = r * w.images as f64 / size.full as f64;
        let scale = GradientScale {
            normalisers: w.score_sums,
            factor,
        };
        let norm = gradient_norm(isa, layout, &w.gradient, scale);
        let step = Step {
            gradient_norm: norm,
            images: w.images,
        };
        (w.score_sums, w.images, w.micro_batches) = ([0.0; 2], 0, 0);
        if !norm.is_finite() {
            w.gradient.fill(0.0);
            return None;
        }
        self.images_seen += step.images as u64;
        let d = ema::decay(self.images_seen as f64 / r, size.full as f64 / r);
        let flat = Flat {
            params: &mut self.state.params,
            average: &mut self.average.params,
            gradient: &mut w.gradient,
        };
        flat::step(
            isa,
            layout,
            &mut self.optimizer,
            flat,
            rates,
            scale,
            clip_factor(norm, size.clip_bound(step.images)),
            d,
        );
        ema::blend_statistics(layout, &mut self.average.buffers, &self.state.buffers, d);
        self.average.batches_tracked = self.state.batches_tracked;
        Some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::model::ModelSpec;
    use crate::loss::GroundTruth;
    use crate::model::init;
    use crate::train::optim::Algorithm;

    const GAINS: Gains = Gains {
        boxes: 7.5,
        classes: 0.5,
        distances: 1.5,
    };

    fn engine(model: &str) -> Engine {
        let network = Network::new(ModelSpec::resolve(model).unwrap(), 3);
        let state = init::init(&network, 0);
        let optimizer = Optimizer::new(Algorithm::Sgd, 5e-4, network.layout.param_len);
        let mut e = Engine::new(network, state, optimizer, GAINS, &Device::flex());
        freeze_norms(&mut e, true);
        e
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
                        height: 64,
                        width: 64,
                        truths: truths[w[0]..w[1]].to_vec(),
                    };
                    shown.add(e.accumulate(&part, (0.8, 0.2)).unwrap());
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
                height: 64,
                width: 64,
                truths,
            };
            let t = Tensors::new(&e.network.layout, &e.state.params, &device, DType::F32)
                .with_running_stats(&e.network.layout, &e.state.buffers);
            let x = batch.image(&device).require_grad();
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
            let loss = weighted_loss(&out, &batch.truths, &anchors, &c, 1.0).0;
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
            height: 64,
            width: 64,
            truths,
        };
        let norm = |full: usize| {
            let mut e = engine("yolo26n");
            e.accumulate(&batch, (0.8, 0.2)).unwrap();
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
            height: 64,
            width: 64,
            truths,
        };
        let mut e = engine("yolo26n");
        e.state.params[5] = f32::NAN;
        let before = e.state.clone();
        assert!(e.accumulate(&batch, (0.8, 0.2)).is_none());
        assert_eq!(e.pending(), 0);
        assert_eq!(before.buffers, e.state.buffers);
    }

    #[test]
    fn what_is_frozen_keeps_its_bytes_and_the_rest_gets_the_same_gradient() {
        let (pixels, truths) = (pixels(2), truths(2));
        let batch = MicroBatch {
            pixels: &pixels,
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
            whole.accumulate(&batch, (0.8, 0.2)).unwrap();
            e.accumulate(&batch, (0.8, 0.2)).unwrap();
            for p in &e.network.layout.params {
                let at = p.range();
                if p.trained() {
                    assert_eq!(
                        e.window.gradient[at.clone()],
                        whole.window.gradient[at],
                        "{}",
                        p.name
                    );
                } else {
                    assert!(e.window.gradient[at].iter().all(|&g| g == 0.0));
                }
            }
            let rates = Rates {
                lr: 0.01,
                bias_lr: 0.01,
                momentum: 0.9,
            };
            for _ in 0..2 {
                e.step(&rates, size).unwrap();
                e.accumulate(&batch, (0.8, 0.2)).unwrap();
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
            height: 64,
            width: 64,
            truths,
        };
        let loss = |weights: Option<[f64; 3]>| {
            let mut e = engine("yolo26n");
            e.class_weights = weights.map(|w| w.as_slice().into());
            e.accumulate(&batch, (0.8, 0.2)).unwrap().sums.classes
        };
        assert_eq!(loss(None), loss(Some([1.0; 3])));
        assert!((loss(Some([2.0; 3])) / loss(None) - 2.0).abs() < 1e-6);
    }

    #[test]
    fn training_on_one_image_lowers_its_loss() {
        let (pixels, truths) = (pixels(2), truths(2));
        let batch = MicroBatch {
            pixels: &pixels,
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
            let l = e.accumulate(&batch, (0.5, 0.5)).unwrap();
            losses.push(l.items(GAINS).iter().sum::<f64>());
            e.step(
                &rates,
                StepSize {
                    reference: 64,
                    full: 2,
                },
            )
            .unwrap();
        }
        assert!(
            losses[16..].iter().all(|l| *l < 0.8 * losses[0]),
            "{losses:?}"
        );
        assert_ne!(e.average, e.state);
    }
}
