//! Forward, backward and optimizer step of one device among its ranks.

use super::checkpoint::{Checkpoint, CheckpointError, Counters};
#[cfg(feature = "gpu")]
use super::device::{self, DeviceError, OnDevice};
use super::ema;
use super::fault;
use super::flat::{self, Flat, GradientScale, gradient_norm};
use super::gradients::{Buckets, StepGradient};
use super::optim::{MAX_NORM, Optimizer, clip_factor};
use super::precision::Precision;
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
    /// On devices: sums over ranks have the same order on any number of them, as on CPUs always.
    pub deterministic: bool,
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
            deterministic: false,
        }
    }
}

/// Why a micro-batch or a step failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Another rank is lost, late, or does something else.
    #[error(transparent)]
    Dist(#[from] DistError),
    #[cfg(feature = "gpu")]
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A step that was done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Norm of the gradient before clipping; on a device, which is not waited for, that of an earlier step, or NaN.
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
    /// What was not finite, where [`Self::accumulate`] or [`Self::step`] says that something was not.
    pub culprit: &'static str,
    device: Device,
    #[cfg(feature = "gpu")]
    on_device: Option<OnDevice>,
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
        let ranks = Arc::new(GroupRanks::new(group, team.lanes));
        Self {
            #[cfg(feature = "gpu")]
            on_device: OnDevice::new(
                device,
                &network.layout,
                &state,
                &optimizer,
                &team,
                ranks.clone(),
            ),
            culprit: "loss",
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
            ranks,
            growing: Arc::new(growing),
            lane_scores: vec![[0.0; 2]; team.lanes],
            team,
        }
    }

    /// Computes with these numbers; float32 otherwise. On CPUs there are no others.
    #[must_use]
    #[cfg_attr(not(feature = "gpu"), allow(unused_mut, unused_variables))]
    pub fn with_precision(mut self, precision: Precision) -> Self {
        #[cfg(feature = "gpu")]
        if let Some(d) = &mut self.on_device {
            d.set_precision(precision);
        }
        self
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
    pub fn broadcast(&mut self) -> Result<(), EngineError> {
        if self.team.group.size() == 1 {
            return Ok(());
        }
        self.fetch()?;
        let group = self.team.group.clone();
        let mut arrays = self.arrays_mut();
        for (name, values) in &mut arrays {
            let call = Call::bulk(format!("first {name}"));
            let buffer = Buffer::F32(values.to_vec());
            let got: Option<Vec<f32>> = group.broadcast(call, 0, buffer).wait()?.into_vec();
            values.copy_from_slice(&got.expect("what was given was float32"));
        }
        self.put();
        Ok(())
    }

    /// Brings `state`, `average` and `optimizer` up to date, which live on the device while it trains. On CPUs they always
    /// are.
    ///
    /// # Errors
    /// The device failed.
    pub fn fetch(&mut self) -> Result<(), EngineError> {
        #[cfg(feature = "gpu")]
        if let Some(d) = &mut self.on_device {
            let (state, average) = (&mut self.state, &mut self.average);
            d.fetch(&self.network.layout, state, average, &mut self.optimizer)?;
            self.lane_scores = d.score_sums()?;
        }
        Ok(())
    }

    /// The device goes on from `state`, `average` and `optimizer`.
    pub fn put(&mut self) {
        #[cfg(feature = "gpu")]
        if let Some(d) = &mut self.on_device {
            d.put(
                &self.network.layout,
                &self.state,
                &self.average,
                &self.optimizer,
            );
        }
    }

    /// From now on [`Self::phases`] are waited for on a device too, which slows it down: for measurements.
    pub fn time_phases(&mut self) {
        #[cfg(feature = "gpu")]
        if let Some(d) = &mut self.on_device {
            d.time_phases();
        }
    }

    /// Whether losses come a micro-batch later than their images went in; [`Self::settle`] waits for the last ones.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        #[cfg(feature = "gpu")]
        return self.on_device.is_some();
        #[cfg(not(feature = "gpu"))]
        false
    }

    /// Waits for what the device has still to do: the losses of micro-batches that no call of [`Self::accumulate`] has
    /// returned. `None` if something was not finite, on all ranks.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn settle(&mut self) -> Result<Option<ShownLoss>, EngineError> {
        #[cfg(feature = "gpu")]
        if self.on_device.is_some() {
            return Ok(self.found(0)?);
        }
        Ok(Some(ShownLoss::default()))
    }

    /// Whole numbers and sums of what a checkpoint holds.
    #[must_use]
    pub fn counters(&self) -> Counters {
        #[cfg(feature = "gpu")]
        let loss_scale = self.on_device.as_ref().and_then(OnDevice::loss_scale);
        #[cfg(not(feature = "gpu"))]
        let loss_scale = None;
        Counters {
            steps: self.optimizer.steps,
            images_seen: self.images_seen,
            batches_tracked: [self.state.batches_tracked, self.average.batches_tracked],
            score_sums: self.lane_scores.clone(),
            lane_images: self.lane_images(),
            micro_batches: self.pending(),
            loss_scale,
        }
    }

    /// Images of every lane, of all ranks, in the step so far.
    fn lane_images(&self) -> Vec<usize> {
        #[cfg(feature = "gpu")]
        if let Some(d) = &self.on_device {
            return d.lane_images();
        }
        self.growing.lane_images()
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
    pub fn pending_gradient(&self) -> Result<Vec<f32>, EngineError> {
        #[cfg(feature = "gpu")]
        if let Some(d) = &self.on_device {
            return Ok(d.gather_gradients(&self.network.layout, &*self.team.group)?);
        }
        Ok(self.growing.gather()?)
    }

    /// Name of [`Self::pending_gradient`] in a checkpoint.
    pub const PENDING: &str = "gradient";

    /// Goes on where a checkpoint was written, on however many ranks.
    ///
    /// # Errors
    /// [`CheckpointError::Content`].
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        let mut c = checkpoint.header.counters.clone();
        let pending = c.micro_batches > 0;
        let len = c.lane_images.len().max(1) * self.network.layout.param_len;
        let mut gradients = vec![0.0; if pending { len } else { 0 }];
        let mut targets = self.arrays_mut();
        if pending {
            targets.push((Self::PENDING.into(), &mut gradients));
        }
        checkpoint.restore(&mut targets)?;
        if c.lane_images.len() != self.team.lanes {
            // a run on GPUs that goes on with other lanes: the sum is the same but for rounding
            fold(&mut c, &mut gradients, self.team.lanes);
        }
        #[cfg(feature = "gpu")]
        if let Some(d) = &mut self.on_device {
            d.restore(&self.network.layout, &self.team, &gradients, &c);
        }
        if !self.is_behind() {
            self.growing
                .restore(&gradients, &c.lane_images, c.micro_batches);
        }
        self.optimizer.steps = c.steps;
        self.images_seen = c.images_seen;
        [self.state.batches_tracked, self.average.batches_tracked] = c.batches_tracked;
        self.lane_scores = c.score_sums;
        self.put();
        Ok(())
    }

    /// Micro-batches since the last step.
    #[must_use]
    pub fn pending(&self) -> usize {
        #[cfg(feature = "gpu")]
        if let Some(d) = &self.on_device {
            return d.pending();
        }
        self.growing.pending()
    }

    /// Forward and backward of this rank's part of a micro-batch; its gradient is added to the step's. The loss is that
    /// of all ranks; on a device those of earlier micro-batches that have arrived (see [`Self::settle`]). `None` if it is
    /// not finite, on all ranks: the step cannot be completed then.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn accumulate(
        &mut self,
        batch: &MicroBatch,
        turn: Turn,
    ) -> Result<Option<ShownLoss>, EngineError> {
        self.culprit = "loss";
        #[cfg(feature = "gpu")]
        if self.on_device.is_some() {
            return Ok(self.accumulate_on_device(batch, turn)?);
        }
        Ok(self.accumulate_on_host(batch, turn)?)
    }

    #[cfg(feature = "gpu")]
    fn accumulate_on_device(
        &mut self,
        batch: &MicroBatch,
        turn: Turn,
    ) -> Result<Option<ShownLoss>, DeviceError> {
        let lanes = self.lanes(turn.images);
        let Some(d) = &mut self.on_device else {
            return Ok(None);
        };
        let pass = device::Pass {
            network: &self.network,
            gains: self.gains,
            class_weights: self.class_weights.as_deref(),
            norm_momentum: self.norm_momentum,
            lanes,
            synced: self.team.sync_norms && self.team.group.size() > 1,
            turn,
        };
        let phases = d.accumulate(batch, &pass);
        let phases = phases.map_err(|e| d.sized(e, &self.network))?;
        self.ranks.check()?;
        self.state.batches_tracked += 1;
        let found = self.found(1)?;
        self.phases = Phases {
            waited: self.ranks.take_waited().as_secs_f64(),
            ..phases
        };
        Ok(found)
    }

    /// Losses and norms that have come, but for those of the newest `behind` micro-batches and steps.
    #[cfg(feature = "gpu")]
    fn found(&mut self, behind: usize) -> Result<Option<ShownLoss>, DeviceError> {
        let one_to_one = self.network.spec.one_to_one;
        let Some(d) = &mut self.on_device else {
            return Ok(None);
        };
        let found = d.found(behind, one_to_one);
        let found = found.map_err(|e| d.sized(e, &self.network))?;
        Ok(match found {
            device::Found::Losses(shown) => Some(shown),
            device::Found::NotFinite(what) => {
                self.culprit = what;
                None
            }
        })
    }

    fn accumulate_on_host(
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
        let out = self
            .network
            .forward(&tensors, batch.image(&device, DType::F32), heads);
        let forward = start.elapsed().as_secs_f64();
        self.team.group.beat("loss and backward");
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
    /// then. (On a device that comes out with the next losses.)
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn step(&mut self, rates: &Rates, size: StepSize) -> Result<Option<Step>, EngineError> {
        self.culprit = "gradient";
        #[cfg(feature = "gpu")]
        if self.on_device.is_some() {
            return self.step_on_device(rates, size);
        }
        Ok(self.step_on_host(rates, size)?)
    }

    #[cfg(feature = "gpu")]
    fn step_on_device(
        &mut self,
        rates: &Rates,
        size: StepSize,
    ) -> Result<Option<Step>, EngineError> {
        let group = self.team.group.clone();
        group.beat("optimizer");
        fault::within(&*group, fault::Place::Optimizer)?;
        let Some(d) = &mut self.on_device else {
            return Ok(None);
        };
        let images = d.lane_images().iter().sum();
        let seen = self.images_seen + images as u64;
        let done = d.step(&mut self.optimizer, rates, size, images, seen);
        let done = done.map_err(|e| d.sized(e, &self.network))?;
        let waited = d.waited() + self.ranks.take_waited().as_secs_f64();
        self.ranks.check()?;
        if done == device::Done::NotFinite {
            return Ok(None);
        }
        if done == device::Done::Stepped {
            self.images_seen = seen;
            self.average.batches_tracked = self.state.batches_tracked;
        }
        Ok(Some(Step {
            gradient_norm: d.last_norm(),
            images,
            waited,
        }))
    }

    fn step_on_host(&mut self, rates: &Rates, size: StepSize) -> Result<Option<Step>, DistError> {
        let images = self.growing.lane_images().iter().sum();
        let waited = self.growing.finish(&mut self.gradient)?.as_secs_f64();
        self.team.group.beat("optimizer");
        fault::within(&*self.team.group, fault::Place::Optimizer)?;
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

/// Brings what a step has summed so far to `lanes` lanes: everything is in the first.
fn fold(c: &mut Counters, gradients: &mut Vec<f32>, lanes: usize) {
    let old = c.lane_images.len().max(1);
    let len = gradients.len() / old;
    let (first, rest) = gradients.split_at_mut(len);
    for lane in rest.chunks_exact(len.max(1)) {
        first.iter_mut().zip(lane).for_each(|(f, v)| *f += v);
    }
    gradients.truncate(len);
    gradients.resize(lanes * len, 0.0);
    let scores = c
        .score_sums
        .iter()
        .fold([0.0; 2], |a, b| [a[0] + b[0], a[1] + b[1]]);
    c.score_sums = vec![[0.0; 2]; lanes];
    c.score_sums[0] = scores;
    let images = c.lane_images.iter().sum();
    c.lane_images = vec![0; lanes];
    c.lane_images[0] = images;
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
#[path = "engine_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "ranks_tests.rs"]
mod ranks_tests;

#[cfg(all(test, feature = "gpu"))]
#[path = "device_tests.rs"]
mod device_tests;
