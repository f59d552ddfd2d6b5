//! Training state in a GPU's memory: weights, average, optimizer, gradient. The engine's copies on the host follow only
//! when somebody asks for them ([`OnDevice::fetch`]).

mod error;
mod gradient;
mod numbers;
mod pass;
mod reduce;
mod scaler;

pub use error::DeviceError;
use error::Images;
pub(super) use pass::{Done, Found, Pass};

use std::collections::HashMap;
use std::sync::Arc;

use burn::tensor::Device;
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;

use self::gradient::DeviceGradient;
use self::numbers::Numbers;
use self::scaler::LossScaler;
use super::checkpoint::{Counters, LossScale};
use super::device_optim::DeviceOptimizer;
use super::engine::Team;
use super::gradients::gather_lanes;
use super::optim::Optimizer;
use super::precision::Precision;
use crate::dist::{GroupRanks, ProcessGroup};
use crate::model::Layout;
use crate::model::init::State;
use crate::ops::cpu::lanes::lanes_of;
use crate::ops::gpu::flat;
use crate::ops::gpu::loss::{self, AnchorTable};
use crate::ops::gpu::optim::{self, Totals};
use crate::ops::gpu::running::Channels;

/// Sums of a lane: box, class, distance, target scores of the one-to-many head, then of the one-to-one head.
const SUMS: usize = 2 * loss::SUMS;

/// See the module.
pub(super) struct OnDevice {
    device: CubeDevice,
    burn: Device,
    precision: Precision,
    /// Every parameter at a place that a binding may begin at.
    layout: Layout,
    params: CubeTensor,
    /// The parameters as convolutions read them, where that is not float32.
    half: Option<CubeTensor>,
    average: CubeTensor,
    buffers: CubeTensor,
    average_buffers: CubeTensor,
    optimizer: DeviceOptimizer,
    gradient: Arc<DeviceGradient>,
    ranks: Arc<GroupRanks>,
    /// Of the step that is under way.
    totals: Totals,
    class_weights: Option<CubeTensor>,
    numbers: Numbers,
    /// Losses that have come and nobody has seen, `[lanes, SUMS]` each.
    losses: Vec<Vec<f32>>,
    /// What of that which has come was not finite.
    culprit: Option<&'static str>,
    /// Newest norm that has come.
    norm: f64,
    /// Steps that were left out.
    overflows: u64,
    scaler: LossScaler,
    /// By height and width of the images.
    anchors: HashMap<(usize, usize), Arc<AnchorTable>>,
    /// Likewise, of batch norms whose statistics move.
    channels: HashMap<(usize, usize), Arc<Channels>>,
    /// The host's copies are older.
    ahead: bool,
    /// Every phase is waited for.
    timed: bool,
    /// Seconds that the newest step waited for the gradients of other ranks.
    waited: f64,
    /// The newest micro-batch.
    newest: Images,
}

impl OnDevice {
    /// A copy of these on the GPU behind `burn`, in float32; `None` where that is none.
    pub(super) fn new(
        burn: &Device,
        layout: &Layout,
        state: &State,
        optimizer: &Optimizer,
        team: &Team,
        ranks: Arc<GroupRanks>,
    ) -> Option<Self> {
        let device = flat::cube_device(burn)?;
        let padded = layout.padded(flat::ALIGN);
        let up = |values: &[f32]| flat::upload_f32(&device, values);
        let params = padded.gather_from(layout, &state.params);
        Some(Self {
            optimizer: optimizer_of(&device, layout, &padded, optimizer),
            gradient: Arc::new(DeviceGradient::new(
                &device,
                &padded,
                team.group.clone(),
                team.lanes,
                team.buckets,
                team.deterministic,
            )),
            totals: Totals::new(team.lanes, &device),
            class_weights: None,
            params: up(&params),
            average: up(&params),
            buffers: up(&state.buffers),
            average_buffers: up(&state.buffers),
            half: None,
            layout: padded,
            burn: burn.clone(),
            numbers: Numbers::new(&device),
            device,
            precision: Precision::Float32,
            ranks,
            losses: vec![],
            culprit: None,
            norm: f64::NAN,
            overflows: 0,
            scaler: LossScaler::new(Precision::Float32),
            anchors: HashMap::new(),
            channels: HashMap::new(),
            ahead: false,
            timed: false,
            waited: 0.0,
            newest: Images::default(),
        })
    }

    /// Computes with these numbers from now on.
    pub(super) fn set_precision(&mut self, precision: Precision) {
        self.precision = precision;
        self.scaler = LossScaler::new(precision);
        self.narrow();
    }

    /// The parameters as convolutions read them.
    fn narrow(&mut self) {
        let half = self.precision != Precision::Float32;
        self.half = half.then(|| optim::cast(&self.params, self.precision.dtype()));
    }

    /// Brings the host's copies up to date.
    ///
    /// # Errors
    /// The device failed.
    pub(super) fn fetch(
        &mut self,
        layout: &Layout,
        state: &mut State,
        average: &mut State,
        optimizer: &mut Optimizer,
    ) -> Result<(), DeviceError> {
        if !std::mem::take(&mut self.ahead) {
            return Ok(());
        }
        let params = |t: &CubeTensor| -> Result<Vec<f32>, DeviceError> {
            Ok(layout.gather_from(&self.layout, &flat::download::<f32>(t)?))
        };
        state.params = params(&self.params)?;
        average.params = params(&self.average)?;
        state.buffers = flat::download(&self.buffers)?;
        average.buffers = flat::download(&self.average_buffers)?;
        let memory = self.optimizer.buffers();
        for ((_, host), (_, device)) in optimizer.buffers_mut().into_iter().zip(memory) {
            host.copy_from_slice(&params(device)?);
        }
        Ok(())
    }

    /// Goes on from the host's copies.
    pub(super) fn put(
        &mut self,
        layout: &Layout,
        state: &State,
        average: &State,
        optimizer: &Optimizer,
    ) {
        let params = |t: &CubeTensor, values: &[f32]| {
            flat::write(t, &self.layout.gather_from(layout, values));
        };
        params(&self.params, &state.params);
        params(&self.average, &average.params);
        flat::write(&self.buffers, &state.buffers);
        flat::write(&self.average_buffers, &average.buffers);
        self.optimizer = optimizer_of(&self.device, layout, &self.layout, optimizer);
        self.ahead = false;
        self.narrow();
    }

    pub(super) fn pending(&self) -> usize {
        self.gradient.pending()
    }

    pub(super) fn lane_images(&self) -> Vec<usize> {
        self.gradient.lane_images()
    }

    /// From now on every phase is waited for, so that its seconds are the device's.
    pub(super) fn time_phases(&mut self) {
        self.timed = true;
    }

    pub(super) fn loss_scale(&self) -> Option<LossScale> {
        self.scaler.state()
    }

    /// Numerator gradients of all lanes of the step that is under way, `[lanes, parameters]` in the host's order, on every
    /// rank; empty where there is none.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub(super) fn gather_gradients(
        &self,
        layout: &Layout,
        group: &dyn ProcessGroup,
    ) -> Result<Vec<f32>, DeviceError> {
        if self.pending() == 0 {
            return Ok(vec![]);
        }
        let scale = 1.0 / self.scaler.scale();
        let mut own = vec![];
        for lane in self
            .gradient
            .own_lanes()?
            .chunks_exact(self.layout.param_len)
        {
            let lane = layout.gather_from(&self.layout, lane);
            own.extend(lane.into_iter().map(|g| g * scale));
        }
        Ok(gather_lanes(group, own)?)
    }

    /// Goes on with [`Self::gather_gradients`] and the counters of a checkpoint, on however many ranks.
    pub(super) fn restore(
        &mut self,
        layout: &Layout,
        team: &Team,
        gradients: &[f32],
        counters: &Counters,
    ) {
        self.numbers.clear();
        self.losses.clear();
        self.culprit = None;
        self.scaler.restore(counters.loss_scale);
        let scale = self.scaler.scale();
        let own = lanes_of(team.group.rank(), team.group.size(), team.lanes);
        let mut padded = vec![];
        for lane in gradients
            .chunks_exact(layout.param_len)
            .skip(own.start)
            .take(own.len())
        {
            let lane = self.layout.gather_from(layout, lane);
            padded.extend(lane.into_iter().map(|g| g * scale));
        }
        let (images, micro_batches) = (&counters.lane_images, counters.micro_batches);
        self.gradient.restore(&padded, images, micro_batches);
        let mut sums = vec![0.0f32; team.lanes * SUMS];
        for (lane, scores) in sums.chunks_exact_mut(SUMS).zip(&counters.score_sums) {
            (lane[3], lane[7]) = (scores[0] as f32, scores[1] as f32);
        }
        flat::write(&self.totals.sums, &sums);
    }

    /// Sums of target scores of the heads in each lane, of the step that is under way.
    ///
    /// # Errors
    /// The device failed.
    pub(super) fn score_sums(&self) -> Result<Vec<[f64; 2]>, DeviceError> {
        let sums: Vec<f32> = flat::download(&self.totals.sums)?;
        let lanes = sums.chunks_exact(SUMS);
        Ok(lanes
            .map(|lane| [f64::from(lane[3]), f64::from(lane[7])])
            .collect())
    }
}

/// The optimizer with its state on the device, in the padded order.
fn optimizer_of(
    device: &CubeDevice,
    layout: &Layout,
    padded: &Layout,
    optimizer: &Optimizer,
) -> DeviceOptimizer {
    let wide = |values: &Vec<f32>| match values.is_empty() {
        true => vec![],
        false => padded.gather_from(layout, values),
    };
    let wide = Optimizer {
        first: wide(&optimizer.first),
        second: wide(&optimizer.second),
        muon: wide(&optimizer.muon),
        ..optimizer.clone()
    };
    DeviceOptimizer::new(padded, &wide, device)
}
