//! Gradients of the operations in `extension.rs`, for every backend at once.

use super::extension::Kernels;
use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;

type F<B> = FloatTensor<B>;

#[derive(Debug)]
struct Conv;

/// What the backward pass of a convolution keeps.
#[derive(Debug, Clone)]
struct ConvState<T> {
    x: T,
    w: T,
    stride: usize,
    groups: usize,
    lanes: usize,
}

impl<B: Kernels> Backward<B, 2> for Conv {
    type State = ConvState<F<B>>;
    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        _: &mut Checkpointer,
    ) {
        let dy = grads.consume::<B>(&ops.node);
        let ConvState { x, w, stride, groups, lanes } = ops.state;
        let [nx, nw] = ops.parents;
        if let Some(n) = nw {
            let dw = B::conv_dw(dy.clone(), x.clone(), w.clone(), stride, groups, lanes);
            grads.register::<B>(n.id, dw);
        }
        if let Some(n) = nx {
            grads.register::<B>(n.id, B::conv_dx(dy, w, x, stride, groups));
        }
    }
}

impl<B: Kernels, C: CheckpointStrategy> Kernels for Autodiff<B, C> {
    fn conv(x: F<Self>, w: F<Self>, stride: usize, groups: usize, lanes: usize) -> F<Self> {
        let ((x, gx), (w, gw)) = (x.into_parts(), w.into_parts());
        let node = <Conv as Backward<B, 2>>::prepare::<C>(Conv, [gx, gw]);
        let y = B::conv(x.clone(), w.clone(), stride, groups, lanes);
        match node.compute_bound().stateful() {
            OpsKind::Tracked(p) => p.finish(ConvState { x, w, stride, groups, lanes }, y),
            OpsKind::UnTracked(p) => p.finish(y),
        }
    }

    fn conv_dx(_: F<Self>, _: F<Self>, _: F<Self>, _: usize, _: usize) -> F<Self> {
        unreachable!("gradients are taken once: no gradient of a gradient")
    }

    fn conv_dw(_: F<Self>, _: F<Self>, _: F<Self>, _: usize, _: usize, _: usize) -> F<Self> {
        unreachable!("gradients are taken once: no gradient of a gradient")
    }
}
