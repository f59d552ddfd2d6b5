//! Forward, backward and optimizer step of one device among its ranks.

use super::checkpoint::{Checkpoint, CheckpointError, Counters};
use super::ema;
use super::flat::{self, Flat, GradientScale, gradient_norm};
use super::gradients::{Buckets, StepGradient};
use super::optim::{MAX_NORM, Optimizer, clip_factor};
use super::schedule::Rates;
use crate::dist::{Buffer, Call, DistError, GroupRanks, Handle, ProcessGroup, Single};
use crate::loss::{
    Anchors, Components, Criterion, Gains, MicroBatch, ONE_TO_MANY, ONE_TO_ONE, ShownLoss,
    weighted_loss,
};
use crate::model::init::{NORM_MOMENTUM, State};
use crate::model::{Collected, Heads, Network, Tensors};
use crate::ops;
use crate::ops::BatchStats;
use crate::ops::cpu::lanes::Lanes;
use crate::ops::cpu::norm::Moments;
use crate::ops::ranks::{GradientSink, Ranks};
use burn::tensor::{DType, Device, Tensor};
use std::sync::Arc;
use std::time::Instant;

/// Numbers of a lane's loss of one head: box, class, distance, target scores.
const LOSS_NUMBERS: usize = 4;

/// Who trains together, and how their sums are formed.
#[derive(Clone)]
pub struct Team {
    pub group: Arc<dyn ProcessGroup>,
    /// Lanes of all ranks together.
    pub lanes: usize,
    /// Batch norms take the statistics of all ranks' images (SyncBN).
    pub sync_norms: bool,
    pub buckets: Buckets,
}

impl Team {
    /// One rank.
    #[must_use]
    pub fn alone(lanes: usize) -> Self {
        Self {
            group: Arc::new(Single::new()),
            lanes,
            sync_norms: true,
            buckets: Buckets {
                bytes: usize::MAX,
                overlap: true,
            },
        }
    }
}

/// A step that was done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Norm of the gradient before clipping.
    pub gradient_norm: f64,
    pub images: usize,
    /// Seconds that this rank waited for the gradients of others.
    pub waited: f64,
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
    /// In these: waiting for other ranks.
    pub waited: f64,
}

/// A micro-batch's place in the run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Turn {
    /// Images of the micro-batch on all ranks together.
    pub images: usize,
    /// Weights of the one-to-many and the one-to-one head.
    pub head_weights: (f64, f64),
    /// An optimizer step follows.
    pub ends_step: bool,
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
    team: Team,
    ranks: Arc<GroupRanks>,
    growing: Arc<StepGradient>,
    /// The gradient of a step, when it is complete.
    gradient: Vec<f32>,
    /// Sums of target scores of the heads in each lane of all ranks, of the step that is under way.
    lane_scores: Vec<[f64; 2]>,
}

impl Engine {
    /// A network that starts at `state` on `device` (without autodiff), as one rank of `team`.
    #[must_use]
    pub fn new(
        network: Network,
        state: State,
        optimizer: Optimizer,
        gains: Gains,
        device: &Device,
        team: Team,
    ) -> Self {
        let group = team.group.clone();
        let growing = StepGradient::new(&network.layout, group.clone(), team.lanes, team.buckets);
        Self {
            average: state.clone(),
            gradient: vec![0.0; network.layout.param_len],
            network,
            state,
            optimizer,
            gains,
            norm_momentum: NORM_MOMENTUM,
            class_weights: None,
            phases: Phases::default(),
            images_seen: 0,
            device: device.clone(),
            ranks: Arc::new(GroupRanks::new(group)),
            growing: Arc::new(growing),
            lane_scores: vec![[0.0; 2]; team.lanes],
            team,
        }
    }

    /// Who trains together.
    #[must_use]
    pub fn team(&self) -> &Team {
        &self.team
    }

    /// The images of a micro-batch of `images` that this rank holds, by lanes.
    #[must_use]
    pub fn lanes(&self, images: usize) -> Lanes {
        let group = &self.team.group;
        Lanes::of_rank(self.team.lanes, group.rank(), group.size(), images)
    }

    /// Every rank starts from rank 0's weights and running statistics.
    ///
    /// # Errors
    /// Those of a collective.
    pub fn broadcast(&mut self) -> Result<(), DistError> {
        if self.team.group.size() == 1 {
            return Ok(());
        }
        let group = self.team.group.clone();
        let mut arrays = self.arrays_mut();
        for (name, values) in &mut arrays {
            let call = Call::bulk(format!("first {name}"));
            let buffer = Buffer::F32(values.to_vec());
            let got: Option<Vec<f32>> = group.broadcast(call, 0, buffer).wait()?.into_vec();
            values.copy_from_slice(&got.expect("what was given was float32"));
        }
        Ok(())
    }

    /// Whole numbers and sums of what a checkpoint holds.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters {
            steps: self.optimizer.steps,
            images_seen: self.images_seen,
            batches_tracked: [self.state.batches_tracked, self.average.batches_tracked],
            lanes: self.team.lanes,
            score_sums: self.lane_scores.clone(),
            lane_images: self.growing.lane_images(),
            micro_batches: self.pending(),
        }
    }

    /// The arrays of a checkpoint: live weights, average, optimizer.
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
        arrays
    }

    fn arrays_mut(&mut self) -> Vec<(String, &mut [f32])> {
        let (s, a) = (&mut self.state, &mut self.average);
        let mut arrays: Vec<(String, &mut [f32])> = vec![
            ("params".into(), &mut s.params),
            ("buffers".into(), &mut s.buffers),
            ("average.params".into(), &mut a.params),
            ("average.buffers".into(), &mut a.buffers),
        ];
        let optimizer = self.optimizer.buffers_mut().into_iter();
        arrays.extend(optimizer.map(|(name, b)| (format!("optimizer.{name}"), b)));
        arrays
    }

    /// The gradient of a step that is under way, by lanes, which a checkpoint holds as [`Self::PENDING`]; empty where
    /// there is none. All ranks call it.
    ///
    /// # Errors
    /// Those of a collective.
    pub fn pending_gradient(&self) -> Result<Vec<f32>, DistError> {
        self.growing.gather()
    }

    /// Name of [`Self::pending_gradient`] in a checkpoint.
    pub const PENDING: &str = "gradient";

    /// Goes on where a checkpoint was written, on however many ranks.
    ///
    /// # Errors
    /// [`CheckpointError::Content`].
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        let c = &checkpoint.header.counters;
        let pending = c.micro_batches > 0;
        let len = self.team.lanes * self.network.layout.param_len;
        let mut gradients = vec![0.0; if pending { len } else { 0 }];
        let mut targets = self.arrays_mut();
        if pending {
            targets.push((Self::PENDING.into(), &mut gradients));
        }
        checkpoint.restore(&mut targets)?;
        self.growing
            .restore(&gradients, &c.lane_images, c.micro_batches);
        self.optimizer.steps = c.steps;
        self.images_seen = c.images_seen;
        [self.state.batches_tracked, self.average.batches_tracked] = c.batches_tracked;
        self.lane_scores.clone_from(&c.score_sums);
        Ok(())
    }

    /// Micro-batches since the last step.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.growing.pending()
    }

    /// Forward and backward of this rank's part of a micro-batch; its gradient is added to the step's. The loss is that
    /// of all ranks. `None` if it is not finite, on all ranks: the step cannot be completed then.
    ///
    /// # Errors
    /// Another rank is lost, late, or does something else.
    pub fn accumulate(
        &mut self,
        batch: &MicroBatch,
        turn: Turn,
    ) -> Result<Option<ShownLoss>, DistError> {
        let start = Instant::now();
        let alone = self.team.group.size() == 1;
        let lanes = self.lanes(turn.images);
        let ranks: Arc<dyn Ranks> = self.ranks.clone();
        let sink: Arc<dyn GradientSink> = self.growing.clone();
        let layout = &self.network.layout;
        let device = self.device.clone().autodiff();
        let mut tensors = Tensors::new(layout, &self.state.params, &device, DType::F32)
            .with_frozen_stats(layout, &self.state.buffers)
            .with_lanes(lanes.clone())
            .with_sink(sink);
        if self.team.sync_norms && !alone {
            tensors = tensors.with_ranks(layout, &ranks);
        }
        let heads = Heads {
            many: true,
            one: true,
        };
        let out = self.network.forward(&tensors, batch.image(&device), heads);
        let forward = start.elapsed().as_secs_f64();
        let anchors = Anchors::new(batch.height, batch.width, &self.network.strides);
        let own = lanes.own().len();
        let mut numbers = vec![0.0; own * 2 * LOSS_NUMBERS];
        let mut total: Option<Tensor<1>> = None;
        let weights = turn.head_weights;
        let heads = [
            (&out.one_to_many, ONE_TO_MANY, weights.0),
            (&out.one_to_one, ONE_TO_ONE, weights.1),
        ];
        for (i, (head, topk, weight)) in heads.into_iter().enumerate() {
            let Some(head) = head else { continue };
            let c = Criterion {
                reg_max: self.network.spec.reg_max,
                gains: self.gains,
                class_weights: self.class_weights.as_deref(),
                topk,
            };
            let (term, by_lane) = weighted_loss(head, &batch.truths, &anchors, &c, weight, &lanes);
            for (lane, loss) in by_lane.iter().enumerate() {
                let at = (lane * 2 + i) * LOSS_NUMBERS;
                let Components {
                    boxes,
                    classes,
                    distances,
                } = loss.sums;
                numbers[at..at + LOSS_NUMBERS].copy_from_slice(&[
                    boxes,
                    classes,
                    distances,
                    loss.score_sum,
                ]);
            }
            total = Some(match total {
                Some(t) => t + term,
                None => term,
            });
        }
        let total = total.expect("a network has a head");
        let loss = start.elapsed().as_secs_f64() - forward;
        if alone && numbers.iter().any(|v| !v.is_finite()) {
            return Ok(None);
        }
        // it goes round while backward runs
        let losses = self.exchange("losses", numbers);
        self.growing.begin(turn.images, turn.ends_step);
        let mut grads = total.backward();
        // of operations without kernels
        tensors.drain_gradients(layout, &mut grads, |id, values| {
            self.growing.put_whole(id, values);
        });
        self.growing.end();
        let (losses, mut waited) = losses.wait()?;
        self.ranks.check()?;
        let (shown, finite) = self.count(&losses);
        if !finite {
            self.growing.clear();
            return Ok(None);
        }
        let mut collected = out.collected;
        if !self.team.sync_norms && !alone {
            waited += self.share_statistics(&mut collected)?;
        }
        if !collected.stats.is_empty() {
            let layout = &self.network.layout;
            collected.update_running(layout, &mut self.state.buffers, self.norm_momentum);
            self.state.batches_tracked += 1;
        }
        let backward = start.elapsed().as_secs_f64() - forward - loss;
        self.phases = Phases {
            forward,
            loss,
            backward,
            waited: waited + self.ranks.take_waited().as_secs_f64(),
        };
        Ok(Some(shown))
    }

    /// Starts to bring every rank's numbers to all ranks.
    fn exchange(&self, name: &'static str, numbers: Vec<f64>) -> Exchange {
        let group = &self.team.group;
        if group.size() == 1 {
            return Exchange::Own(numbers);
        }
        Exchange::Shared(group.all_gather_variable(Call::latency(name), numbers.into()))
    }

    /// Adds a micro-batch's losses, those of all lanes in their order, to the step's; what is shown of them, and whether
    /// they are finite.
    fn count(&mut self, losses: &[f64]) -> (ShownLoss, bool) {
        if losses.iter().any(|v| !v.is_finite()) {
            return (ShownLoss::default(), false);
        }
        let of_head = |head: usize| -> Vec<ShownLoss> {
            let each = losses.chunks_exact(2 * LOSS_NUMBERS);
            each.map(|lane| {
                let [boxes, classes, distances, score_sum] =
                    std::array::from_fn(|i| lane[head * LOSS_NUMBERS + i]);
                let sums = Components {
                    boxes,
                    classes,
                    distances,
                };
                ShownLoss { sums, score_sum }
            })
            .collect()
        };
        let both = [of_head(0), of_head(1)];
        if self.growing.pending() == 1 {
            self.lane_scores.fill([0.0; 2]);
        }
        for (lane, scores) in self.lane_scores.iter_mut().enumerate() {
            for (sum, head) in scores.iter_mut().zip(&both) {
                *sum += head[lane].score_sum;
            }
        }
        // the last head's is shown: the one-to-one head's where there is one
        let shown = &both[usize::from(self.network.spec.one_to_one)];
        (ShownLoss::over_lanes(shown), true)
    }

    /// Without SyncBN every rank normalises by its own images; the running statistics are those of all of them.
    fn share_statistics(&self, collected: &mut Collected) -> Result<f64, DistError> {
        let mut own = vec![];
        for (_, s) in &collected.stats {
            own.push(s.count as f64);
            own.extend_from_slice(&s.mean);
            own.extend(s.var.iter().map(|v| v * s.count as f64));
        }
        let (all, waited) = self.exchange("running statistics", own).wait()?;
        let width = all.len() / self.team.group.size();
        let mut at = 0;
        for (_, s) in &mut collected.stats {
            let c = s.mean.len();
            let of_rank = |numbers: &[f64]| Moments {
                count: numbers[at],
                mean: numbers[at + 1..at + 1 + c].to_vec(),
                m2: numbers[at + 1 + c..at + 1 + 2 * c].to_vec(),
            };
            let merged = all.chunks_exact(width).map(of_rank).reduce(Moments::merge);
            if let Some(m) = merged {
                *s = BatchStats {
                    count: m.count as usize,
                    var: m.variance(),
                    mean: m.mean,
                };
            }
            at += 1 + 2 * c;
        }
        Ok(waited)
    }

    /// Sums of target scores of the heads over all lanes: what gradients are divided by.
    fn normalisers(&self) -> [f64; 2] {
        let lane = |l: usize| Some(self.lane_scores[l]);
        let add = |a: [f64; 2], b: [f64; 2]| [a[0] + b[0], a[1] + b[1]];
        ops::cpu::lanes::tree(0..self.team.lanes, &mut { lane }, &mut { add }).unwrap_or_default()
    }

    /// Ends a step: gradient, optimizer, average. `None` if the gradient is not finite, on all ranks: nothing was changed
    /// then.
    ///
    /// # Errors
    /// Another rank is lost, late, or does something else.
    pub fn step(&mut self, rates: &Rates, size: StepSize) -> Result<Option<Step>, DistError> {
        let images = self.growing.lane_images().iter().sum();
        let waited = self.growing.finish(&mut self.gradient)?.as_secs_f64();
        let (isa, layout) = (ops::isa(), &self.network.layout);
        let r = size.reference as f64;
        let scale = GradientScale {
            normalisers: self.normalisers(),
            factor: r * images as f64 / size.full as f64,
        };
        let norm = gradient_norm(isa, layout, &self.gradient, scale);
        if !norm.is_finite() {
            self.gradient.fill(0.0);
            return Ok(None);
        }
        self.images_seen += images as u64;
        let d = ema::decay(self.images_seen as f64 / r, size.full as f64 / r);
        let flat = Flat {
            params: &mut self.state.params,
            average: &mut self.average.params,
            gradient: &mut self.gradient,
        };
        flat::step(
            isa,
            layout,
            &mut self.optimizer,
            flat,
            rates,
            scale,
            clip_factor(norm, size.clip_bound(images)),
            d,
        );
        ema::blend_statistics(layout, &mut self.average.buffers, &self.state.buffers, d);
        self.average.batches_tracked = self.state.batches_tracked;
        Ok(Some(Step {
            gradient_norm: norm,
            images,
            waited,
        }))
    }
}

/// Numbers that go round.
enum Exchange {
    Own(Vec<f64>),
    Shared(Handle<Vec<Buffer>>),
}

impl Exchange {
    /// Those of all ranks, one after the other, and the seconds that were waited for them.
    fn wait(self) -> Result<(Vec<f64>, f64), DistError> {
        match self {
            Self::Own(numbers) => Ok((numbers, 0.0)),
            Self::Shared(handle) => {
                let start = Instant::now();
                let all = handle.wait()?;
                let all = all.into_iter().filter_map(Buffer::into_vec::<f64>);
                Ok((all.flatten().collect(), start.elapsed().as_secs_f64()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
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
}
