//! Forward, backward and step on a device. Nothing here waits for the device but the losses of the micro-batch before.

use std::sync::Arc;
use std::time::Instant;

use burn::tensor::{DType, Tensor};
use burn_cubecl::tensor::CubeTensor;
use cubecl::client::Client;

use super::error::Images;
use super::numbers::What;
use super::{DeviceError, OnDevice, SUMS};
use crate::loss::device as device_loss;
use crate::loss::{Anchors, Criterion, Gains, MicroBatch, ONE_TO_MANY, ONE_TO_ONE, ShownLoss};
use crate::model::layout::NormInfo;
use crate::model::{HeadOutput, Heads, Network, Tensors};
use crate::ops;
use crate::ops::DeviceFailure;
use crate::ops::cpu::lanes::{Lanes, cut, lanes_of};
use crate::ops::gpu::flat;
use crate::ops::gpu::lanes as device_lanes;
use crate::ops::gpu::loss::{self, AnchorTable};
use crate::ops::gpu::optim::Flat;
use crate::ops::gpu::running::{self, Channels, NormPlace};
use crate::ops::ranks::{GradientSink, Ranks};
use crate::train::device_optim::StepFactor;
use crate::train::ema;
use crate::train::engine::{Phases, StepSize, Turn};
use crate::train::optim::Optimizer;
use crate::train::schedule::Rates;

/// What a micro-batch is trained with besides its images.
pub(in crate::train) struct Pass<'a> {
    pub network: &'a Network,
    pub gains: Gains,
    pub class_weights: Option<&'a [f64]>,
    pub norm_momentum: f64,
    pub lanes: Lanes,
    /// Batch norms take the statistics of all ranks.
    pub synced: bool,
    pub turn: Turn,
}

impl OnDevice {
    /// Forward and backward of this rank's part of a micro-batch. The seconds are those of the host, which runs ahead, or
    /// with [`Self::time_phases`] those of the device.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub(in crate::train) fn accumulate(
        &mut self,
        batch: &MicroBatch,
        pass: &Pass,
    ) -> Result<Phases, DeviceError> {
        let Pass {
            network,
            lanes,
            turn,
            ..
        } = pass;
        self.ahead = true;
        self.newest = Images {
            count: batch.truths.len(),
            height: batch.height,
            width: batch.width,
        };
        let mut clock = Clock::start(self.timed.then(|| self.params.client.clone()));
        let device = self.burn.clone().autodiff();
        let sink: Arc<dyn GradientSink> = self.gradient.clone();
        let ranks: Arc<dyn Ranks> = self.ranks.clone();
        let weights = self.half.as_ref().unwrap_or(&self.params);
        // without SyncBN a pass leaves the statistics of this rank's images in a copy, and the running ones move towards those
        // of all ranks
        let apart = self.ranks.size() > 1 && !pass.synced;
        let (buffers, momentum) = match apart {
            true => (flat::empty_like(&self.buffers), 1.0),
            false => (self.buffers.clone(), pass.norm_momentum),
        };
        if apart {
            device_lanes::copy_into(&buffers, &self.buffers);
        }
        let moved = flat::tensor::<1>(buffers.clone());
        let mut tensors = Tensors::on_device(&self.layout, weights, &self.params)
            .with_device_stats(&self.layout, &moved, momentum)
            .with_lanes(lanes.clone())
            .with_sink(sink);
        if pass.synced {
            tensors = tensors.with_ranks(&self.layout, &ranks);
        }
        let heads = Heads {
            many: true,
            one: true,
        };
        let image = batch.image(&device, self.precision.dtype());
        let out = network.forward(&tensors, image, heads);
        if apart {
            self.merge_statistics(buffers, &tensors, pass, (batch.height, batch.width))?;
        }
        let forward = clock.lap()?;
        let anchors = self.anchors(network, batch.height, batch.width);
        let truths = device_loss::truths(&batch.truths, &self.device);
        if self.class_weights.is_none() {
            let upload = |w: &[f64]| device_loss::class_weights(w, &self.device);
            self.class_weights = pass.class_weights.map(upload);
        }
        let cut = lanes.cut(batch.truths.len());
        let (many, one) = turn.head_weights;
        let each = [
            (&out.one_to_many, ONE_TO_MANY, many),
            (&out.one_to_one, ONE_TO_ONE, one),
        ];
        let mut total: Option<Tensor<1>> = None;
        let mut sums: Vec<Tensor<2>> = vec![];
        for (head, topk, weight) in each {
            let Some(head) = head else {
                let none = vec![0.0f32; cut.len() * SUMS / 2];
                let none = flat::upload(&self.device, &none, [cut.len(), SUMS / 2], DType::F32);
                sums.push(flat::tensor(none));
                continue;
            };
            let c = Criterion {
                reg_max: network.spec.reg_max,
                gains: pass.gains,
                class_weights: pass.class_weights,
                topk,
            };
            let measure = device_loss::measure(&c, self.class_weights.clone());
            let scale = self.scaler.scale();
            let (boxes, scores) = raw(head)?;
            let g = loss::head_loss(
                boxes, scores, &truths, &anchors, &measure, weight, scale, &cut,
            );
            sums.push(flat::tensor(g.sums));
            let seeds = [(&head.boxes, g.d_boxes), (&head.scores, g.d_scores)];
            for (output, gradient) in seeds {
                let gradient = Tensor::from_inner(flat::tensor(gradient));
                let term = ops::with_gradient(output.clone(), gradient);
                total = Some(match total {
                    Some(t) => t + term,
                    None => term,
                });
            }
        }
        self.share(Tensor::cat(sums, 1))?;
        let loss = clock.lap()?;
        self.gradient.begin(turn.images, turn.ends_step);
        let total = total.expect("a network has a head");
        drop(total.backward());
        self.gradient.end();
        let backward = clock.lap()?;
        Ok(Phases {
            forward,
            loss,
            backward,
            waited: 0.0,
        })
    }

    /// Brings the sums `[own lanes, SUMS]` of every rank to all, so that all divide by the same normalisers and agree on
    /// whether they are finite.
    fn share(&mut self, own: Tensor<2>) -> Result<(), DeviceError> {
        let own = on_device(own)?;
        let all = match self.ranks.size() {
            1 => Some(own),
            _ => self.ranks.gather_device("losses", "sums", own),
        };
        // after a failure, which `GroupRanks` keeps, nothing of this counts
        let Some(all) = all else { return Ok(()) };
        self.numbers.read(What::Losses, &all);
        self.totals.sums = match self.gradient.pending() {
            0 => all,
            _ => {
                let before = flat::tensor::<2>(self.totals.sums.clone());
                on_device(before + flat::tensor::<2>(all))?
            }
        };
        Ok(())
    }

    /// The running statistics move towards those of all ranks' images, of which `own` holds this rank's.
    fn merge_statistics(
        &mut self,
        own: CubeTensor,
        tensors: &Tensors,
        pass: &Pass,
        size: (usize, usize),
    ) -> Result<(), DeviceError> {
        let (ranks, lanes) = (self.ranks.size(), pass.lanes.total());
        // a row for each lane of this rank, as they are gathered; the first one counts
        let row = flat::tensor::<1>(own).unsqueeze::<2>();
        let rows = Tensor::cat(vec![row; pass.lanes.own().len()], 0);
        let all = self
            .ranks
            .gather_device("running statistics", "of ranks", on_device(rows)?);
        // after a failure, which `GroupRanks` keeps, nothing of this counts
        let Some(all) = all else { return Ok(()) };
        let images = cut(pass.turn.images, lanes);
        let of_rank = |rank: usize| {
            let held = lanes_of(rank, ranks, lanes);
            let count = images[held.clone()].iter().map(|l| l.len()).sum();
            (count, held.start)
        };
        let of_ranks: Vec<_> = (0..ranks).map(of_rank).collect();
        let (layout, device) = (&self.layout, &self.device);
        let channels = self.channels.entry(size).or_insert_with(|| {
            let norms = layout.norms.iter().zip(tensors.rows_of_norms());
            let place = |(n, rows): (&NormInfo, u32)| NormPlace {
                mean: n.mean().start,
                var: n.var().start,
                channels: n.channels,
                rows,
            };
            let moving: Vec<_> = norms.filter(|(n, _)| !n.frozen).map(place).collect();
            Arc::new(Channels::new(&moving, device))
        });
        running::merge(&all, &of_ranks, channels, &self.buffers, pass.norm_momentum);
        Ok(())
    }

    fn anchors(&mut self, network: &Network, height: usize, width: usize) -> Arc<AnchorTable> {
        let device = &self.device;
        let table = self.anchors.entry((height, width)).or_insert_with(|| {
            let anchors = Anchors::new(height, width, &network.strides);
            Arc::new(device_loss::anchors(&anchors, device))
        });
        table.clone()
    }

    /// Ends a step. Its norm comes with [`Self::found`]; of float16, whose steps may be left out, it is waited for.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub(in crate::train) fn step(
        &mut self,
        optimizer: &mut Optimizer,
        rates: &Rates,
        size: StepSize,
        images: usize,
        images_seen: u64,
    ) -> Result<Done, DeviceError> {
        // what runs on while others are waited for is no communication: in a measurement it ends first
        let mut clock = Clock::start(self.timed.then(|| self.params.client.clone()));
        clock.lap()?;
        let sum = self.gradient.finish()?;
        self.waited = clock.lap()?;
        let r = size.reference as f64;
        let d = ema::decay(images_seen as f64 / r, size.full as f64 / r);
        let factor = r * images as f64 / size.full as f64 / f64::from(self.scaler.scale());
        let bound = size.clip_bound(images);
        let flat = Flat {
            params: &self.params,
            average: &self.average,
            gradient: &sum,
        };
        let status = self.optimizer.step(
            flat,
            rates,
            &self.totals,
            StepFactor {
                factor,
                bound,
                average_decay: d,
            },
        );
        self.optimizer
            .blend_statistics(&status, &self.average_buffers, &self.buffers, d);
        optimizer.steps = self.optimizer.steps();
        self.narrow();
        self.ahead = true;
        self.numbers.read(What::Norm, &status.numbers);
        if self.timed {
            cubecl::future::block_on(self.params.client.sync())?;
        }
        if !self.scaler.is_active() {
            return Ok(Done::Stepped);
        }
        let before = self.overflows;
        while let Some((what, values)) = self.numbers.next(0)? {
            self.take(what, &values);
        }
        if self.culprit.is_some() {
            return Ok(Done::NotFinite);
        }
        if self.overflows > before {
            self.optimizer.skipped();
            optimizer.steps = self.optimizer.steps();
            return Ok(Done::LeftOut);
        }
        Ok(Done::Stepped)
    }

    /// Takes numbers in that have come.
    fn take(&mut self, what: What, values: &[f32]) {
        let finite = values.iter().all(|v| v.is_finite());
        match what {
            What::Losses if !finite => {
                self.culprit.get_or_insert("loss");
            }
            What::Losses => self.losses.push(values.to_vec()),
            What::Norm => {
                // norm, factor of clipping, whether it is finite
                self.norm = values.first().map_or(f64::NAN, |&n| f64::from(n));
                let finite = values.get(2) == Some(&1.0);
                if !self.scaler.update(finite) {
                    self.culprit.get_or_insert("gradient");
                } else if !finite {
                    self.overflows += 1;
                }
            }
        }
    }

    /// Losses and norms that have come, but for the newest `behind`.
    ///
    /// # Errors
    /// The device failed.
    pub(in crate::train) fn found(
        &mut self,
        behind: usize,
        one_to_one: bool,
    ) -> Result<Found, DeviceError> {
        while let Some((what, values)) = self.numbers.next(behind)? {
            self.take(what, &values);
        }
        if let Some(what) = self.culprit.take() {
            self.numbers.clear();
            self.losses.clear();
            self.gradient.clear();
            return Ok(Found::NotFinite(what));
        }
        let mut all = ShownLoss::default();
        for lanes in self.losses.drain(..) {
            all.add(shown(&lanes, one_to_one));
        }
        Ok(Found::Losses(all))
    }

    /// Says of a failure for want of memory what did not fit.
    pub(in crate::train) fn sized(&self, e: DeviceError, network: &Network) -> DeviceError {
        e.with_size(network, self.precision, self.newest, self.ranks.size())
    }

    /// Seconds that the newest step waited for the gradients of other ranks: those of the host, which over NCCL does not
    /// wait, or with [`Self::time_phases`] those of the device.
    pub(in crate::train) fn waited(&self) -> f64 {
        self.waited
    }

    /// Norm of the newest step's gradient that is known.
    pub(in crate::train) fn last_norm(&self) -> f64 {
        self.norm
    }
}

/// Seconds of phases.
struct Clock {
    client: Option<Client>,
    at: Instant,
}

impl Clock {
    /// With a client, each phase is waited for.
    fn start(client: Option<Client>) -> Self {
        Self {
            client,
            at: Instant::now(),
        }
    }

    /// Since the last call.
    fn lap(&mut self) -> Result<f64, DeviceError> {
        if let Some(client) = &self.client {
            cubecl::future::block_on(client.sync())?;
        }
        let seconds = self.at.elapsed().as_secs_f64();
        self.at = Instant::now();
        Ok(seconds)
    }
}

/// What has come from the device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::train) enum Found {
    /// Of the micro-batches that nobody had seen yet.
    Losses(ShownLoss),
    /// This was not finite.
    NotFinite(&'static str),
}

/// What became of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::train) enum Done {
    Stepped,
    /// A scaled gradient overflowed.
    LeftOut,
    NotFinite,
}

fn on_device<const D: usize>(t: Tensor<D>) -> Result<CubeTensor, DeviceError> {
    let missing = || DeviceFailure::Other("a tensor is not on it".into());
    Ok(flat::primitive(t).ok_or_else(missing)?)
}

/// The outputs of a head outside the graph.
fn raw(head: &HeadOutput) -> Result<(CubeTensor, CubeTensor), DeviceError> {
    let of = |t: &Tensor<3>| on_device(t.clone().inner());
    Ok((of(&head.boxes)?, of(&head.scores)?))
}

/// What is shown of the losses of all lanes, `[lanes, SUMS]`.
fn shown(all: &[f32], one_to_one: bool) -> ShownLoss {
    let heads = device_loss::shown(all).into_iter();
    let lanes: Vec<ShownLoss> = heads.skip(usize::from(one_to_one)).step_by(2).collect();
    ShownLoss::over_lanes(&lanes)
}
