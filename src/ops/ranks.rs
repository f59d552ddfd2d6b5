//! What lies between the operations and the rest of a training run: other ranks, and where gradients go.

use super::cpu::lanes::LaneSums;
use burn::tensor::Tensor;
#[cfg(feature = "gpu")]
use burn_cubecl::tensor::CubeTensor;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// Brings together what ranks hold. Every rank makes the same calls in the same order.
pub trait Ranks: Debug + Send + Sync {
    /// Number of ranks.
    fn size(&self) -> usize;

    /// The values of every rank, in the order of ranks; any length each. `of` and `what` name the call.
    ///
    /// `None` after a failure, which the implementation keeps: the pass goes on with this rank's values alone, and
    /// whoever started it asks for the failure and throws the result away.
    fn gather(&self, of: &str, what: &'static str, own: Vec<f64>) -> Option<Vec<Vec<f64>>>;

    /// As [`Self::gather`], of float32 rows on a device: `own` is `[own lanes, k]`, the result `[lanes, k]` of all ranks in
    /// their order. Unless overridden, through the host.
    #[cfg(feature = "gpu")]
    fn gather_device(&self, of: &str, what: &'static str, own: CubeTensor) -> Option<CubeTensor> {
        super::gpu::gather_through_host(self, of, what, own)
    }
}

/// The ranks that a batch norm shares its statistics with, and its name.
#[derive(Debug, Clone)]
pub struct Synced {
    pub ranks: Arc<dyn Ranks>,
    pub name: Arc<str>,
}

/// Takes the gradients of parameters while a backward pass runs.
pub trait GradientSink: Debug + Send + Sync {
    /// Calls `write` once with where the gradient of parameter `id` goes. In a backward pass it comes once for each
    /// parameter that has a gradient, in an order given by the graph.
    fn write(&self, id: usize, write: &mut dyn FnMut(LaneSums<'_>));

    /// Where the gradient of parameter `id` goes on a device; `None`: into the graph's gradients.
    #[cfg(feature = "gpu")]
    fn device(&self, _id: usize) -> Option<DeviceSlot> {
        None
    }

    /// What writes the gradient of parameter `id` to its place on the device is enqueued. It is called once for each
    /// parameter that [`Self::device`] gave a place, in an order given by the graph.
    #[cfg(feature = "gpu")]
    fn written(&self, _id: usize) {}
}

/// Where a parameter's gradient goes on a device.
#[cfg(feature = "gpu")]
#[derive(Debug, Clone)]
pub struct DeviceSlot {
    /// float32 `[own lanes, elements]`, contiguous.
    pub flat: CubeTensor,
    /// The parameter's first element in a lane.
    pub offset: usize,
    /// Add to what is there instead of overwriting it.
    pub add: bool,
}

/// The running statistics of a batch norm on a device, which its forward pass moves where it takes those of the batch:
/// `running = (1 - momentum) running + momentum batch`, the variance unbiased.
#[derive(Debug, Clone)]
pub struct Running {
    /// Those of all norms, float32. It is written in place, whoever else holds it.
    pub flat: Tensor<1>,
    /// First element of this norm's means.
    pub mean: usize,
    /// First element of its variances.
    pub var: usize,
    pub momentum: f64,
    /// Elements of a channel in one image: the pass leaves them here.
    pub rows: Arc<AtomicU32>,
}

/// Where a parameter's gradient goes.
#[derive(Debug, Clone)]
pub struct Slot {
    pub sink: Arc<dyn GradientSink>,
    pub id: usize,
}

/// A parameter as operations take it. With a slot, and where the kernels apply, its gradient goes there, by lanes;
/// otherwise into the graph's gradients.
#[derive(Debug, Clone)]
pub struct Param<const D: usize> {
    pub tensor: Tensor<D>,
    pub slot: Option<Slot>,
}

impl<const D: usize> From<Tensor<D>> for Param<D> {
    fn from(tensor: Tensor<D>) -> Self {
        Self { tensor, slot: None }
    }
}
