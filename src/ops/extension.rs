//! The operations that have kernels of their own, as an extension of the tensor library's backends.
//!
//! [`Kernels`] holds forward and backward of each. `Flex` (the CPU backend) implements them in `flex.rs`, and one
//! implementation for `Autodiff` over any backend, in `autodiff.rs`, is all that knows of gradients. The functions of
//! `ops` call these where [`available`] says so, and plain tensor operations elsewhere.

use super::Activation;
use super::cpu::lanes::Lanes;
use super::cpu::{attention, norm, pool};
use super::group::Member;
use super::ranks::{Ranks, Running, Slot};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};
use burn::tensor::{DType, Tensor};
#[cfg(feature = "gpu")]
use burn_cubecl::tensor::CubeTensor;
use std::sync::{Arc, OnceLock};

/// Something that the forward pass leaves for the backward pass (and for the caller), outside the graph.
///
/// Kernels of the CPU leave a `T`, those of GPUs tensors.
#[derive(Debug)]
pub struct Record<T> {
    host: Arc<OnceLock<T>>,
    #[cfg(feature = "gpu")]
    device: Arc<OnceLock<Vec<CubeTensor>>>,
}

impl<T> Clone for Record<T> {
    fn clone(&self) -> Self {
        Self {
            host: self.host.clone(),
            #[cfg(feature = "gpu")]
            device: self.device.clone(),
        }
    }
}

#[cfg(feature = "gpu")]
impl<T> Record<T> {
    pub(super) fn keep(&self, tensors: Vec<CubeTensor>) {
        let _ = self.device.set(tensors);
    }
    /// The tensors that were left.
    pub(super) fn kept(&self) -> &[CubeTensor] {
        self.device.get().expect("the forward pass ran before")
    }
    /// The first tensor that was left, if there is one; otherwise `make` gives it, and it is left.
    #[cfg(feature = "cuda")]
    pub(super) fn kept_or(&self, make: impl FnOnce() -> CubeTensor) -> CubeTensor {
        self.device.get_or_init(|| vec![make()])[0].clone()
    }
}

impl<T> Record<T> {
    /// An empty record.
    pub fn new() -> Self {
        Self {
            host: Arc::default(),
            #[cfg(feature = "gpu")]
            device: Arc::default(),
        }
    }
    pub(super) fn set(&self, value: T) {
        // a second forward pass with the same record would be a mistake of the caller; the first one counts
        let _ = self.host.set(value);
    }
    /// What was left.
    pub fn get(&self) -> Option<&T> {
        self.host.get()
    }
    pub(super) fn left(&self) -> &T {
        self.host.get().expect("the forward pass ran before")
    }
}

/// What normalises.
#[derive(Debug, Clone)]
pub enum Statistics {
    /// Those of the batch.
    Batch(Member),
    /// Given mean and variance.
    Fixed(Arc<(Vec<f32>, Vec<f32>)>),
}

/// What a batch norm leaves.
#[derive(Debug)]
pub struct Normalised {
    pub affine: norm::Affine,
    /// Of the batch, where they were used.
    pub moments: Option<norm::Moments>,
}

/// Convolution without bias.
#[derive(Debug, Clone)]
pub struct ConvArgs {
    pub stride: usize,
    pub groups: usize,
    /// Lanes that the weight gradient is summed in.
    pub lanes: Lanes,
    pub slot: Option<Slot>,
    /// The weights in the order of a vendor's library, for the backward pass.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub filters: Record<()>,
}

/// Bias of a convolution.
#[derive(Debug, Clone)]
pub struct BiasArgs {
    /// Lanes that its gradient is summed in.
    pub lanes: Lanes,
    pub slot: Option<Slot>,
}

/// Batch norm with activation.
#[derive(Debug, Clone)]
pub struct NormArgs {
    pub statistics: Statistics,
    pub act: Activation,
    pub lanes: Lanes,
    pub record: Record<Normalised>,
    /// Running statistics on a device; the CPU's are moved by the caller.
    #[cfg_attr(not(feature = "gpu"), allow(dead_code))]
    pub running: Option<Running>,
    pub gamma: Option<Slot>,
    pub beta: Option<Slot>,
}

impl NormArgs {
    /// Whether the norm has others beside it: [`Kernels::measured`] of all of them comes first.
    pub(super) fn beside(&self) -> bool {
        matches!(&self.statistics, Statistics::Batch(norm) if norm.group.size() > 1)
    }
}

/// Per-channel factor and summand that follow a convolution, and whether SiLU does.
#[derive(Debug, Clone)]
pub struct Folded {
    pub scale: Arc<Vec<f32>>,
    pub shift: Arc<Vec<f32>>,
    pub silu: bool,
}

/// Heads of an attention block.
#[derive(Debug, Clone)]
pub struct AttendArgs {
    pub heads: usize,
    pub key: usize,
    pub head: usize,
    pub record: Record<attention::RowSums>,
}

/// Ranks whose values are added up, and what they are.
#[derive(Debug, Clone)]
pub struct Summed {
    pub ranks: Arc<dyn Ranks>,
    pub name: Arc<str>,
}

/// A function on the values of two tensors.
#[derive(Clone)]
pub struct Slices(pub super::SliceFn);

impl std::fmt::Debug for Slices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Slices")
    }
}

/// Forward and backward of the operations, on NHWC activations.
#[backend_extension(Flex, Cube: cfg(feature = "gpu"), Autodiff)]
pub trait Kernels: Backend {
    /// `x` `[n, h, w, ci]`, `w` `[k, k, ci/groups, co]` -> `[n, ceil(h/stride), ceil(w/stride), co]`.
    fn conv(x: FloatTensor<Self>, w: FloatTensor<Self>, a: ConvArgs) -> FloatTensor<Self>;
    /// Gradient with respect to `x`, whose shape is `like`'s.
    fn conv_dx(
        dy: FloatTensor<Self>,
        w: FloatTensor<Self>,
        like: FloatTensor<Self>,
        a: ConvArgs,
    ) -> FloatTensor<Self>;
    /// Gradient with respect to the weights, whose shape is `like`'s; empty where it went into a slot.
    fn conv_dw(
        dy: FloatTensor<Self>,
        x: FloatTensor<Self>,
        like: FloatTensor<Self>,
        a: ConvArgs,
    ) -> FloatTensor<Self>;
    /// Convolution, factor, summand, SiLU in one pass: inference only.
    fn conv_folded(
        x: FloatTensor<Self>,
        w: FloatTensor<Self>,
        a: ConvArgs,
        f: Folded,
    ) -> FloatTensor<Self>;
    /// As [`Self::conv`], and `[co]` is added to the last dimension.
    fn conv_bias(
        x: FloatTensor<Self>,
        w: FloatTensor<Self>,
        b: FloatTensor<Self>,
        a: ConvArgs,
        bias: BiasArgs,
    ) -> FloatTensor<Self>;
    /// Gradient with respect to the bias: sums over all but the last dimension; empty where they went into a slot.
    fn bias_db(dy: FloatTensor<Self>, a: BiasArgs) -> FloatTensor<Self>;
    /// Measures what one of several batch norms side by side normalises, `y` `[n, h, w, c]`, which is the first result.
    ///
    /// The second one stands for all of them that were measured so far: it is the next one's `before`, and after the last
    /// one what all are normalised with, so that gradients come here after they came to all of these. `before` of the first
    /// one is `y`.
    fn measured(
        y: FloatTensor<Self>,
        before: FloatTensor<Self>,
        a: NormArgs,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
    /// Batch norm over the last dimension of `y` `[n, h, w, c]`, then the activation. `all` stands for all norms side by
    /// side; it is `y` of one that is alone.
    fn norm_act(
        y: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        all: FloatTensor<Self>,
        a: NormArgs,
    ) -> FloatTensor<Self>;
    /// What [`Self::norm_dy`] takes, and the gradients with respect to `gamma` and `beta`, empty where they went into a slot.
    fn norm_sums(
        da: FloatTensor<Self>,
        y: FloatTensor<Self>,
        a: NormArgs,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
    /// Gradient with respect to `y`, after [`Self::norm_sums`] of all norms of the group.
    fn norm_dy(d: FloatTensor<Self>, y: FloatTensor<Self>, a: NormArgs) -> FloatTensor<Self>;
    /// Maximum over 5x5 windows, stride 1, padding 2.
    fn pool5(x: FloatTensor<Self>, winners: Record<pool::Winners>) -> FloatTensor<Self>;
    fn pool5_dx(dy: FloatTensor<Self>, winners: Record<pool::Winners>) -> FloatTensor<Self>;
    /// Nearest-neighbour doubling.
    fn up2(x: FloatTensor<Self>) -> FloatTensor<Self>;
    fn up2_dx(dy: FloatTensor<Self>) -> FloatTensor<Self>;
    /// Concatenation of the channels of two activations.
    fn cat2(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self>;
    /// Of three.
    fn cat3(a: FloatTensor<Self>, b: FloatTensor<Self>, c: FloatTensor<Self>) -> FloatTensor<Self>;
    /// Of four.
    fn cat4(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        d: FloatTensor<Self>,
    ) -> FloatTensor<Self>;
    /// Concatenation along `axis` of two tensors of any type, also of none elements: the tensor library leaves those out of
    /// its graph, and ranks must have the same.
    fn join2(a: FloatTensor<Self>, b: FloatTensor<Self>, axis: usize) -> FloatTensor<Self>;
    /// `start..start + len` along `axis`, of any type, also of no elements.
    fn along(x: FloatTensor<Self>, axis: usize, start: usize, len: usize) -> FloatTensor<Self>;
    /// Zeros, `total` along `axis`, with `x` from `start` on.
    fn within(x: FloatTensor<Self>, axis: usize, start: usize, total: usize) -> FloatTensor<Self>;
    /// Channels `start..start + len` of `x`, which an operation that is built later must read as a whole: its
    /// gradient is there when this one's comes, which is added to a part of it.
    fn part(x: FloatTensor<Self>, start: usize, len: usize) -> FloatTensor<Self>;
    /// `total[.., start..] += g`
    fn add_to_part(
        total: FloatTensor<Self>,
        g: FloatTensor<Self>,
        start: usize,
    ) -> FloatTensor<Self>;
    /// `x`: gradients of what reads the result are added up before they meet those of what reads `x`.
    fn shared(x: FloatTensor<Self>) -> FloatTensor<Self>;
    /// `a + b` of one shape.
    fn sum(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self>;
    /// `f` on the values of two tensors; the results have their shapes. No gradient passes.
    fn on_slices(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        f: Slices,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
    /// Sum over ranks of `x` `[k]`, in their order, in float64.
    fn rank_sum(x: FloatTensor<Self>, s: Summed) -> FloatTensor<Self>;
    /// `[1]` zero whose backward pass registers `gradient` for `x` (which has its shape) whatever its own gradient.
    fn injected(x: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self>;
    /// Attended values of `qkv` `[n, h, w, heads * (2 key + head)]`: `[n, h, w, heads * head]`.
    fn attended(qkv: FloatTensor<Self>, a: AttendArgs) -> FloatTensor<Self>;
    fn attended_dqkv(
        d: FloatTensor<Self>,
        qkv: FloatTensor<Self>,
        a: AttendArgs,
    ) -> FloatTensor<Self>;
}

/// Whether the kernels take this tensor: float32, and on GPUs also float16 and bfloat16.
pub fn available<const D: usize>(x: &Tensor<D>) -> bool {
    match x.dtype() {
        DType::F32 => true,
        DType::F16 | DType::BF16 => super::on_gpu(x),
        _ => false,
    }
}
