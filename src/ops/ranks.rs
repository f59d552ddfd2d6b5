//! What lies between the operations and the rest of a training run: other ranks, and where gradients go.

use super::cpu::lanes::LaneSums;
use burn::tensor::Tensor;
use std::fmt::Debug;
use std::sync::Arc;

/// Brings together what ranks hold. Every rank makes the same calls in the same order.
pub trait Ranks: Debug + Send + Sync {
    /// Number of ranks.
    fn size(&self) -> usize;

    /// The values of every rank, in the order of ranks; any length each. `of` and `what` name the call.
    ///
    /// `None` after a failure, which the implementation keeps: the pass goes on with this rank's values alone, and
    /// whoever started it asks for the failure and throws the result away.
    fn gather(&self, of: &str, what: &'static str, own: Vec<f64>) -> Option<Vec<Vec<f64>>>;
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
