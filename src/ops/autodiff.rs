//! Gradients of the operations in `extension.rs`, for every backend at once.
//!
//! States are held by the step, which the backward pass consumes: a gradient or an activation that nothing else holds
//! may be written into.

use super::cpu::pool;
use super::extension::{
    AttendArgs, BiasArgs, ConvArgs, Folded, Kernels, NormArgs, Record, Slices, Statistics, Summed,
};
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, TensorMetadata};

type F<B> = FloatTensor<B>;

/// Registers the gradient of a parameter, unless it went into a slot: then it has no elements.
fn register<B: Kernels>(grads: &mut Gradients, node: NodeId, gradient: F<B>) {
    if gradient.shape().num_elements() > 0 {
        grads.register::<B>(node, gradient);
    }
}

/// Gradients of a convolution's weights and input, whose nodes these are.
fn conv_backward<B: Kernels>(
    grads: &mut Gradients,
    [nx, nw]: [Option<NodeId>; 2],
    d: F<B>,
    (x, w): (F<B>, F<B>),
    a: ConvArgs,
) {
    if let Some(n) = nw {
        let g = B::conv_dw(d.clone(), x.clone(), w.clone(), a.clone());
        register::<B>(grads, n, g);
    }
    if let Some(n) = nx {
        grads.register::<B>(n, B::conv_dx(d, w, x, a));
    }
}

#[derive(Debug)]
struct Conv;
impl<B: Kernels> Backward<B, 2> for Conv {
    type State = (F<B>, F<B>, ConvArgs);
    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<B>(&ops.node);
        let (x, w, a) = ops.state;
        let nodes = ops.parents.map(|n| n.map(|n| n.id));
        conv_backward::<B>(grads, nodes, d, (x, w), a);
    }
}

#[derive(Debug)]
struct ConvBias;
impl<B: Kernels> Backward<B, 3> for ConvBias {
    type State = (F<B>, F<B>, ConvArgs, BiasArgs);
    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<B>(&ops.node);
        let (x, w, a, bias) = ops.state;
        let [nx, nw, nb] = ops.parents.map(|n| n.map(|n| n.id));
        if let Some(n) = nb {
            let g = B::bias_db(d.clone(), bias);
            register::<B>(grads, n, g);
        }
        conv_backward::<B>(grads, [nx, nw], d, (x, w), a);
    }
}

/// What passes through the statistics. It comes after [`NormAct`] of all norms of the group, whose parents its own node and
/// those of the group are.
#[derive(Debug)]
struct Measured;
impl<B: Kernels> Backward<B, 2> for Measured {
    type State = (F<B>, NormArgs);
    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (y, a) = ops.state;
        let [Some(n), _] = ops.parents else { return };
        // a branch that the loss does not read
        let unread = matches!(&a.statistics, Statistics::Batch(m) if !m.is_reached());
        let dy = if unread {
            B::float_zeros(y.shape(), &y.device(), y.dtype().into())
        } else {
            B::norm_dy(grads.consume::<B>(&ops.node), y, a)
        };
        // a rank without images has one without elements, which belongs into the graph
        grads.register::<B>(n.id, dy);
    }
}

#[derive(Debug)]
struct NormAct;
impl<B: Kernels> Backward<B, 4> for NormAct {
    type State = (F<B>, NormArgs);
    fn backward(self, ops: Ops<Self::State, 4>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<B>(&ops.node);
        let (y, a) = ops.state;
        let (d, dgamma, dbeta) = B::norm_sums(d, y.clone(), a.clone());
        let [ny, ngamma, nbeta, _] = ops.parents;
        for (node, g) in [(ngamma, dgamma), (nbeta, dbeta)] {
            if let Some(n) = node {
                register::<B>(grads, n.id, g);
            }
        }
        if let Statistics::Batch(norm) = &a.statistics {
            norm.set_reached();
        }
        if let Some(n) = ny {
            let d = if a.beside() { d } else { B::norm_dy(d, y, a) };
            grads.register::<B>(n.id, d);
        }
    }
}

#[derive(Debug)]
struct Pool5;
impl<B: Kernels> Backward<B, 1> for Pool5 {
    type State = Record<pool::Winners>;
    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<B>(&ops.node);
        if let [Some(n)] = ops.parents {
            grads.register::<B>(n.id, B::pool5_dx(d, ops.state));
        }
    }
}

#[derive(Debug)]
struct Up2;
impl<B: Kernels> Backward<B, 1> for Up2 {
    type State = ();
    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<B>(&ops.node);
        if let [Some(n)] = ops.parents {
            grads.register::<B>(n.id, B::up2_dx(d));
        }
    }
}

#[derive(Debug)]
struct Part;
impl<B: Kernels> Backward<B, 1> for Part {
    type State = usize;
    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<B>(&ops.node);
        if let [Some(n)] = ops.parents {
            let total = grads.consume::<B>(&n);
            grads.register::<B>(n.id, B::add_to_part(total, d, ops.state));
        }
    }
}

#[derive(Debug)]
struct Shared;
impl<B: Kernels> Backward<B, 1> for Shared {
    type State = ();
    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<B>(&ops.node);
        if let [Some(n)] = ops.parents {
            grads.register::<B>(n.id, d);
        }
    }
}

#[derive(Debug)]
struct Sum;
impl<B: Kernels> Backward<B, 2> for Sum {
    type State = ();
    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<B>(&ops.node);
        for n in ops.parents.into_iter().flatten() {
            grads.register::<B>(n.id, d.clone());
        }
    }
}

#[derive(Debug)]
struct Attended;
impl<B: Kernels> Backward<B, 1> for Attended {
    type State = (F<B>, AttendArgs);
    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<B>(&ops.node);
        if let [Some(n)] = ops.parents {
            let (qkv, a) = ops.state;
            grads.register::<B>(n.id, B::attended_dqkv(d, qkv, a));
        }
    }
}

#[derive(Debug)]
struct Seed;
impl<B: Kernels> Backward<B, 1> for Seed {
    type State = F<B>;
    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let _ = grads.consume::<B>(&ops.node);
        if let [Some(n)] = ops.parents {
            grads.register::<B>(n.id, ops.state);
        }
    }
}

#[derive(Debug)]
struct RankSum;
impl<B: Kernels> Backward<B, 1> for RankSum {
    type State = Summed;
    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<B>(&ops.node);
        if let [Some(n)] = ops.parents {
            // every rank's loss depends on every rank's summand
            grads.register::<B>(n.id, B::rank_sum(d, ops.state));
        }
    }
}

#[derive(Debug)]
struct Cat;
impl<B: Kernels, const N: usize> Backward<B, N> for Cat {
    type State = [usize; N];
    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<B>(&ops.node);
        let mut start = 0;
        for (node, len) in ops.parents.into_iter().zip(ops.state) {
            if let Some(n) = node {
                grads.register::<B>(n.id, B::part(d.clone(), start, len));
            }
            start += len;
        }
    }
}

#[derive(Debug)]
struct Along;
impl<B: Kernels> Backward<B, 1> for Along {
    /// Axis, start, size of the whole.
    type State = [usize; 3];
    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<B>(&ops.node);
        if let [Some(n)] = ops.parents {
            let [axis, start, total] = ops.state;
            grads.register::<B>(n.id, B::within(d, axis, start, total));
        }
    }
}

#[derive(Debug)]
struct Join;
impl<B: Kernels> Backward<B, 2> for Join {
    type State = (usize, [usize; 2]);
    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<B>(&ops.node);
        let (axis, lens) = ops.state;
        for (node, (start, len)) in ops
            .parents
            .into_iter()
            .zip([(0, lens[0]), (lens[0], lens[1])])
        {
            if let Some(n) = node {
                grads.register::<B>(n.id, B::along(d.clone(), axis, start, len));
            }
        }
    }
}

fn cat<B: Kernels, C: CheckpointStrategy, const N: usize>(
    parts: [F<Autodiff<B, C>>; N],
    run: impl FnOnce([F<B>; N]) -> F<B>,
) -> F<Autodiff<B, C>> {
    let channels: [usize; N] = std::array::from_fn(|i| parts[i].shape()[3]);
    let nodes: [NodeGuard; N] = std::array::from_fn(|i| parts[i].node());
    let y = run(parts.map(|p| p.into_primitive()));
    match <Cat as Backward<B, N>>::prepare::<C>(Cat, nodes)
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(p) => p.finish(channels, y),
        OpsKind::UnTracked(p) => p.finish(y),
    }
}

const ONCE: &str = "gradients are taken once: there is no gradient of a gradient";

impl<B: Kernels, C: CheckpointStrategy> Kernels for Autodiff<B, C> {
    fn conv(x: F<Self>, w: F<Self>, a: ConvArgs) -> F<Self> {
        let ((x, gx), (w, gw)) = (x.into_parts(), w.into_parts());
        let node = <Conv as Backward<B, 2>>::prepare::<C>(Conv, [gx, gw]);
        let y = B::conv(x.clone(), w.clone(), a.clone());
        match node.compute_bound().stateful() {
            OpsKind::Tracked(p) => p.finish((x, w, a), y),
            OpsKind::UnTracked(p) => p.finish(y),
        }
    }
    fn conv_bias(x: F<Self>, w: F<Self>, b: F<Self>, a: ConvArgs, bias: BiasArgs) -> F<Self> {
        let ((x, gx), (w, gw), (b, gb)) = (x.into_parts(), w.into_parts(), b.into_parts());
        let node = <ConvBias as Backward<B, 3>>::prepare::<C>(ConvBias, [gx, gw, gb]);
        let y = B::conv_bias(x.clone(), w.clone(), b, a.clone(), bias.clone());
        match node.compute_bound().stateful() {
            OpsKind::Tracked(p) => p.finish((x, w, a, bias), y),
            OpsKind::UnTracked(p) => p.finish(y),
        }
    }
    fn measured(y: F<Self>, before: F<Self>, a: NormArgs) -> (F<Self>, F<Self>) {
        if !y.is_tracked() {
            // it has no gradient, and keeps nobody waiting for one
            let (y, _) = B::measured(y.into_primitive(), before.primitive().clone(), a);
            return (F::<Self>::new(y), before);
        }
        let ((y, gy), (before, gb)) = (y.into_parts(), before.into_parts());
        let node = <Measured as Backward<B, 2>>::prepare::<C>(Measured, [gy, gb]);
        let (y, _) = B::measured(y, before, a.clone());
        let y = match node.compute_bound().stateful() {
            OpsKind::Tracked(p) => p.finish((y.clone(), a), y),
            OpsKind::UnTracked(p) => p.finish(y),
        };
        (y.clone(), y)
    }
    fn norm_act(y: F<Self>, gamma: F<Self>, beta: F<Self>, all: F<Self>, a: NormArgs) -> F<Self> {
        let tracked = y.is_tracked() || gamma.is_tracked() || beta.is_tracked();
        // without a gradient of its own it does not become part of the graph by the others
        let all = if tracked { all } else { y.clone() };
        let ((y, gy), (gamma, gg), (beta, gb)) =
            (y.into_parts(), gamma.into_parts(), beta.into_parts());
        let (all, ga) = all.into_parts();
        let node = <NormAct as Backward<B, 4>>::prepare::<C>(NormAct, [gy, gg, gb, ga]);
        let z = B::norm_act(y.clone(), gamma, beta, all, a.clone());
        match node.compute_bound().stateful() {
            OpsKind::Tracked(p) => p.finish((y, a), z),
            OpsKind::UnTracked(p) => p.finish(z),
        }
    }
    fn pool5(x: F<Self>, winners: Record<pool::Winners>) -> F<Self> {
        let (x, g) = x.into_parts();
        let node = <Pool5 as Backward<B, 1>>::prepare::<C>(Pool5, [g]);
        let y = B::pool5(x, winners.clone());
        match node.compute_bound().stateful() {
            OpsKind::Tracked(p) => p.finish(winners, y),
            OpsKind::UnTracked(p) => p.finish(y),
        }
    }
    fn up2(x: F<Self>) -> F<Self> {
        let (x, g) = x.into_parts();
        <Up2 as Backward<B, 1>>::prepare::<C>(Up2, [g])
            .compute_bound()
            .stateless(B::up2(x))
    }
    fn cat2(a: F<Self>, b: F<Self>) -> F<Self> {
        cat::<B, C, 2>([a, b], |[a, b]| B::cat2(a, b))
    }
    fn cat3(a: F<Self>, b: F<Self>, c: F<Self>) -> F<Self> {
        cat::<B, C, 3>([a, b, c], |[a, b, c]| B::cat3(a, b, c))
    }
    fn cat4(a: F<Self>, b: F<Self>, c: F<Self>, d: F<Self>) -> F<Self> {
        cat::<B, C, 4>([a, b, c, d], |[a, b, c, d]| B::cat4(a, b, c, d))
    }
    fn join2(a: F<Self>, b: F<Self>, axis: usize) -> F<Self> {
        let lens = [a.shape()[axis], b.shape()[axis]];
        let ((a, ga), (b, gb)) = (a.into_parts(), b.into_parts());
        let node = <Join as Backward<B, 2>>::prepare::<C>(Join, [ga, gb]);
        let y = B::join2(a, b, axis);
        match node.compute_bound().stateful() {
            OpsKind::Tracked(p) => p.finish((axis, lens), y),
            OpsKind::UnTracked(p) => p.finish(y),
        }
    }
    fn along(x: F<Self>, axis: usize, start: usize, len: usize) -> F<Self> {
        let total = x.shape()[axis];
        let (x, g) = x.into_parts();
        let node = <Along as Backward<B, 1>>::prepare::<C>(Along, [g]);
        let y = B::along(x, axis, start, len);
        match node.compute_bound().stateful() {
            OpsKind::Tracked(p) => p.finish([axis, start, total], y),
            OpsKind::UnTracked(p) => p.finish(y),
        }
    }
    fn part(x: F<Self>, start: usize, len: usize) -> F<Self> {
        let (x, g) = x.into_parts();
        let node = <Part as Backward<B, 1>>::prepare::<C>(Part, [g]);
        let y = B::part(x, start, len);
        match node.compute_bound().stateful() {
            OpsKind::Tracked(p) => p.finish(start, y),
            OpsKind::UnTracked(p) => p.finish(y),
        }
    }
    fn shared(x: F<Self>) -> F<Self> {
        let (x, g) = x.into_parts();
        <Shared as Backward<B, 1>>::prepare::<C>(Shared, [g])
            .compute_bound()
            .stateless(B::shared(x))
    }
    fn sum(a: F<Self>, b: F<Self>) -> F<Self> {
        let ((a, ga), (b, gb)) = (a.into_parts(), b.into_parts());
        <Sum as Backward<B, 2>>::prepare::<C>(Sum, [ga, gb])
            .compute_bound()
            .stateless(B::sum(a, b))
    }
    fn injected(x: F<Self>, gradient: F<Self>) -> F<Self> {
        let (x, g) = x.into_parts();
        let gradient = gradient.into_primitive();
        let node = <Seed as Backward<B, 1>>::prepare::<C>(Seed, [g]);
        let y = B::injected(x, gradient.clone());
        match node.compute_bound().stateful() {
            OpsKind::Tracked(p) => p.finish(gradient, y),
            OpsKind::UnTracked(p) => p.finish(y),
        }
    }
    fn rank_sum(x: F<Self>, s: Summed) -> F<Self> {
        let (x, g) = x.into_parts();
        let node = <RankSum as Backward<B, 1>>::prepare::<C>(RankSum, [g]);
        let y = B::rank_sum(x, s.clone());
        match node.compute_bound().stateful() {
            OpsKind::Tracked(p) => p.finish(s, y),
            OpsKind::UnTracked(p) => p.finish(y),
        }
    }
    fn attended(qkv: F<Self>, a: AttendArgs) -> F<Self> {
        let (qkv, g) = qkv.into_parts();
        let node = <Attended as Backward<B, 1>>::prepare::<C>(Attended, [g]);
        let y = B::attended(qkv.clone(), a.clone());
        match node.compute_bound().stateful() {
            OpsKind::Tracked(p) => p.finish((qkv, a), y),
            OpsKind::UnTracked(p) => p.finish(y),
        }
    }

    fn on_slices(_: F<Self>, _: F<Self>, _: Slices) -> (F<Self>, F<Self>) {
        unreachable!("called on tensors outside the graph")
    }
    fn conv_dx(_: F<Self>, _: F<Self>, _: F<Self>, _: ConvArgs) -> F<Self> {
        unreachable!("{ONCE}")
    }
    fn conv_dw(_: F<Self>, _: F<Self>, _: F<Self>, _: ConvArgs) -> F<Self> {
        unreachable!("{ONCE}")
    }
    fn conv_folded(_: F<Self>, _: F<Self>, _: ConvArgs, _: Folded) -> F<Self> {
        unreachable!("inference has no gradients")
    }
    fn bias_db(_: F<Self>, _: BiasArgs) -> F<Self> {
        unreachable!("{ONCE}")
    }
    fn norm_sums(_: F<Self>, _: F<Self>, _: NormArgs) -> (F<Self>, F<Self>, F<Self>) {
        unreachable!("{ONCE}")
    }
    fn norm_dy(_: F<Self>, _: F<Self>, _: NormArgs) -> F<Self> {
        unreachable!("{ONCE}")
    }
    fn pool5_dx(_: F<Self>, _: Record<pool::Winners>) -> F<Self> {
        unreachable!("{ONCE}")
    }
    fn up2_dx(_: F<Self>) -> F<Self> {
        unreachable!("{ONCE}")
    }
    fn within(_: F<Self>, _: usize, _: usize, _: usize) -> F<Self> {
        unreachable!("{ONCE}")
    }
    fn add_to_part(_: F<Self>, _: F<Self>, _: usize) -> F<Self> {
        unreachable!("{ONCE}")
    }
    fn attended_dqkv(_: F<Self>, _: F<Self>, _: AttendArgs) -> F<Self> {
        unreachable!("{ONCE}")
    }
}
