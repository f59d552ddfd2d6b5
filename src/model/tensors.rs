//! Parameters and running statistics as tensors, for one forward pass.

#[cfg(feature = "gpu")]
use super::layout::ParamInfo;
use super::layout::{Layout, NormId, NormInfo, ParamId};
use crate::ops::cpu::lanes::Lanes;
use crate::ops::ranks::{GradientSink, Param as Parameter, Ranks, Running, Slot, Synced};
use crate::ops::{BatchStats, Norm};
use burn::tensor::{DType, Device, Gradients, Tensor, TensorData};
#[cfg(feature = "gpu")]
use burn_cubecl::tensor::CubeTensor;
use std::sync::Arc;
use std::sync::atomic::Ordering;

enum Param {
    Weight(Tensor<4>),
    Vector(Tensor<1>),
}

/// Parameters (and, for evaluation or frozen norms, running statistics) on a device.
pub struct Tensors {
    params: Vec<Param>,
    /// Which parameters have gradients.
    tracked: Vec<bool>,
    /// Empty: statistics of the batch everywhere.
    norms: Vec<Norm>,
    /// Running statistics on the device, one for each norm, or none.
    running: Vec<Running>,
    lanes: Lanes,
    sink: Option<Arc<dyn GradientSink>>,
}

fn upload<const D: usize>(
    values: &[f32],
    shape: [usize; D],
    device: &Device,
    dtype: DType,
) -> Tensor<D> {
    let data = match dtype {
        DType::F64 => TensorData::new(
            values.iter().map(|&v| f64::from(v)).collect::<Vec<_>>(),
            shape,
        ),
        _ => TensorData::new(values.to_vec(), shape),
    };
    Tensor::from_data(data, (device, dtype))
}

impl Tensors {
    /// Uploads flat `params`; with an autodiff `device` those that are trained are leaves of the graph. What comes before
    /// the first of them is outside the graph: nothing is kept of it and no gradient is computed.
    #[must_use]
    pub fn new(layout: &Layout, params: &[f32], device: &Device, dtype: DType) -> Self {
        let autodiff = device.is_autodiff();
        let tracked: Vec<bool> = layout
            .params
            .iter()
            .map(|p| autodiff && p.trained())
            .collect();
        let params = layout
            .params
            .iter()
            .zip(&tracked)
            .map(|(p, &track)| {
                let values = &params[p.range()];
                match *p.shape.as_slice() {
                    [a, b, c, d] => {
                        let t = upload(values, [a, b, c, d], device, dtype);
                        Param::Weight(if track { t.require_grad() } else { t })
                    }
                    _ => {
                        let t = upload(values, [p.len()], device, dtype);
                        Param::Vector(if track { t.require_grad() } else { t })
                    }
                }
            })
            .collect();
        Self {
            params,
            tracked,
            norms: vec![],
            running: vec![],
            lanes: Lanes::USUAL,
            sink: None,
        }
    }

    /// Parameters that lie in arrays on a device, in the order of the padded `layout`: weights of convolutions in
    /// `weights`, of whatever float type, the others in `vectors`. All of them that are trained are leaves of a graph.
    #[cfg(feature = "gpu")]
    #[must_use]
    pub fn on_device(layout: &Layout, weights: &CubeTensor, vectors: &CubeTensor) -> Self {
        use crate::ops::gpu::flat;
        let tracked: Vec<bool> = layout.params.iter().map(ParamInfo::trained).collect();
        let params =
            layout
                .params
                .iter()
                .zip(&tracked)
                .map(|(p, &track)| match *p.shape.as_slice() {
                    [a, b, c, d] => {
                        let t = flat::tensor::<4>(flat::view(weights, p.offset, [a, b, c, d]));
                        let t = Tensor::from_inner(t);
                        Param::Weight(if track { t.require_grad() } else { t })
                    }
                    _ => {
                        let t = flat::tensor::<1>(flat::view(vectors, p.offset, [p.len()]));
                        let t = Tensor::from_inner(t);
                        Param::Vector(if track { t.require_grad() } else { t })
                    }
                });
        Self {
            params: params.collect(),
            tracked,
            norms: vec![],
            running: vec![],
            lanes: Lanes::USUAL,
            sink: None,
        }
    }

    /// Sums over images are formed in these lanes instead of the usual four.
    #[must_use]
    pub fn with_lanes(mut self, lanes: Lanes) -> Self {
        self.lanes = lanes;
        self
    }

    /// Gradients of parameters go to `sink` by lanes, where the kernels apply, instead of into the graph's gradients.
    #[must_use]
    pub fn with_sink(mut self, sink: Arc<dyn GradientSink>) -> Self {
        self.sink = Some(sink);
        self
    }

    /// Batch norms with statistics of the batch take those of all ranks' batches.
    #[must_use]
    pub fn with_ranks(mut self, layout: &Layout, ranks: &Arc<dyn Ranks>) -> Self {
        let norms = std::mem::take(&mut self.norms);
        let mut norms = norms.into_iter();
        self.norms = layout
            .norms
            .iter()
            .map(|n| match norms.next() {
                Some(fixed @ Norm::Fixed(_)) => fixed,
                _ => Norm::Synced(Synced {
                    ranks: ranks.clone(),
                    name: n.name.as_str().into(),
                }),
            })
            .collect();
        self
    }

    /// The running statistics lie on the device, in the flat order of the layout's buffers: passes of GPU kernels move them
    /// there with this momentum, and norms with fixed statistics take them from there.
    #[must_use]
    pub fn with_device_stats(mut self, layout: &Layout, flat: &Tensor<1>, momentum: f64) -> Self {
        let running = |n: &NormInfo| Running {
            flat: flat.clone(),
            mean: n.mean().start,
            var: n.var().start,
            momentum,
            rows: Arc::default(),
        };
        self.running = layout.norms.iter().map(running).collect();
        self
    }

    /// Lanes of sums over images.
    #[must_use]
    pub fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    /// Batch norms use these flat running statistics instead of the batch's.
    #[must_use]
    pub fn with_running_stats(self, layout: &Layout, buffers: &[f32]) -> Self {
        self.with_fixed(layout, buffers, |_| true)
    }

    /// As [`Self::with_running_stats`], of frozen batch norms only.
    #[must_use]
    pub fn with_frozen_stats(self, layout: &Layout, buffers: &[f32]) -> Self {
        self.with_fixed(layout, buffers, |n| n.frozen)
    }

    fn with_fixed(
        mut self,
        layout: &Layout,
        buffers: &[f32],
        fixed: impl Fn(&NormInfo) -> bool,
    ) -> Self {
        let norm = |n: &NormInfo| {
            if fixed(n) {
                Norm::Fixed((buffers[n.mean()].to_vec(), buffers[n.var()].to_vec()).into())
            } else {
                Norm::Batch
            }
        };
        self.norms = layout.norms.iter().map(norm).collect();
        self
    }

    fn parameter<const D: usize>(&self, id: ParamId, tensor: &Tensor<D>) -> Parameter<D> {
        let sink = self.sink.as_ref().filter(|_| self.tracked[id]);
        Parameter {
            tensor: tensor.clone(),
            slot: sink.map(|sink| Slot {
                sink: sink.clone(),
                id,
            }),
        }
    }

    pub(super) fn weight(&self, id: ParamId) -> Parameter<4> {
        match &self.params[id] {
            Param::Weight(t) => self.parameter(id, t),
            Param::Vector(_) => unreachable!("the builder made parameter {id} a vector"),
        }
    }

    pub(super) fn vector(&self, id: ParamId) -> Parameter<1> {
        match &self.params[id] {
            Param::Vector(t) => self.parameter(id, t),
            Param::Weight(_) => unreachable!("the builder made parameter {id} a weight"),
        }
    }

    /// Whether norms take the statistics of all ranks.
    pub(super) fn synced(&self) -> bool {
        self.norms.iter().any(|n| matches!(n, Norm::Synced(_)))
    }

    pub(super) fn norm(&self, id: NormId) -> Norm {
        self.norms.get(id).cloned().unwrap_or(Norm::Batch)
    }

    /// Elements of a channel in one image of every norm that a forward pass on a device has met, in the layout's order.
    #[must_use]
    pub fn rows_of_norms(&self) -> Vec<u32> {
        let rows = |r: &Running| r.rows.load(Ordering::Relaxed);
        self.running.iter().map(rows).collect()
    }

    pub(super) fn running(&self, id: NormId) -> Option<Running> {
        self.running.get(id).cloned()
    }

    /// Hands gradients that are in the graph (those of operations without kernels) to `sink`, as the sums of all of this
    /// process's images.
    pub fn drain_gradients(
        &self,
        layout: &Layout,
        grads: &mut Gradients,
        mut sink: impl FnMut(ParamId, &[f32]),
    ) {
        self.each_gradient(layout, grads, |id, _, data| {
            let data = data.convert::<f32>();
            sink(id, data.as_slice::<f32>().expect("converted to float32"));
        });
    }

    /// Gradients in float64, for references.
    #[must_use]
    pub fn gradients_f64(&self, layout: &Layout, grads: &mut Gradients) -> Vec<f64> {
        let mut out = vec![0.0; layout.param_len];
        self.each_gradient(layout, grads, |_, at, data| {
            out[at].copy_from_slice(
                &data
                    .convert::<f64>()
                    .try_to_vec::<f64>()
                    .expect("converted to float64"),
            );
        });
        out
    }

    fn each_gradient(
        &self,
        layout: &Layout,
        grads: &mut Gradients,
        mut f: impl FnMut(ParamId, std::ops::Range<usize>, TensorData),
    ) {
        for (id, (info, param)) in layout.params.iter().zip(&self.params).enumerate() {
            let data = match param {
                Param::Weight(t) => t.grad_remove(grads).map(Tensor::into_data),
                Param::Vector(t) => t.grad_remove(grads).map(Tensor::into_data),
            };
            if let Some(data) = data {
                f(id, info.range(), data);
            }
        }
    }
}

/// Statistics that a training forward pass leaves, per batch norm.
#[derive(Default)]
pub struct Collected {
    pub stats: Vec<(NormId, BatchStats)>,
}

impl Collected {
    /// Moves flat running statistics towards the batch's:
    /// `running = (1 - momentum) running + momentum batch`, the variance unbiased.
    pub fn update_running(self, layout: &Layout, buffers: &mut [f32], momentum: f64) {
        for (id, s) in self.stats {
            let unbias = s.count as f64 / (s.count as f64 - 1.0).max(1.0);
            let info = &layout.norms[id];
            for (range, values, factor) in [(info.mean(), s.mean, 1.0), (info.var(), s.var, unbias)]
            {
                for (r, v) in buffers[range].iter_mut().zip(values) {
                    *r = ((1.0 - momentum) * f64::from(*r) + momentum * v * factor) as f32;
                }
            }
        }
    }
}
