//! Norms that are measured together against the same norms one by one, on one rank and over two, on the CPU and on a
//! device.

use super::{ConvNorm, Norm, conv_norm_act, conv_norm_act_each};
use crate::ops::Activation;
use crate::ops::cpu::lanes::Lanes;
use crate::ops::ranks::{Ranks, Synced};
use burn::tensor::{DType, Device, Gradients, Tensor, TensorData};
use std::sync::{Arc, Barrier, Mutex};

/// Ranks that are threads; the names of their exchanges are kept.
#[derive(Debug)]
struct Threads {
    rank: usize,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    barrier: Barrier,
    values: Mutex<Vec<Vec<f64>>>,
    calls: Mutex<Vec<String>>,
}

impl Ranks for Threads {
    fn size(&self) -> usize {
        self.shared.values.lock().unwrap().len()
    }
    fn gather(&self, of: &str, what: &'static str, own: Vec<f64>) -> Option<Vec<Vec<f64>>> {
        let s = &self.shared;
        if self.rank == 0 {
            s.calls.lock().unwrap().push(format!("{of}: {what}"));
        }
        s.values.lock().unwrap()[self.rank] = own;
        s.barrier.wait();
        let all = s.values.lock().unwrap().clone();
        s.barrier.wait();
        Some(all)
    }
}

fn on_ranks<T: Send>(
    size: usize,
    f: impl Fn(usize, Arc<dyn Ranks>) -> T + Sync,
) -> (Vec<T>, Vec<String>) {
    let shared = Arc::new(Shared {
        barrier: Barrier::new(size),
        values: Mutex::new(vec![vec![]; size]),
        calls: Mutex::default(),
    });
    let results = std::thread::scope(|scope| {
        let run = |rank| {
            let shared = shared.clone();
            let f = &f;
            scope.spawn(move || f(rank, Arc::new(Threads { rank, shared })))
        };
        let ranks: Vec<_> = (0..size).map(run).collect();
        ranks.into_iter().map(|r| r.join().unwrap()).collect()
    });
    let calls = shared.calls.lock().unwrap().clone();
    (results, calls)
}

fn drawn(seed: usize, len: usize) -> Vec<f32> {
    let value = |i: usize| ((seed * 7919 + i * 104_729 + 13) % 1009) as f32 / 500.0 - 1.0;
    (0..len).map(value).collect()
}

/// Three convolutions of two inputs, of different sizes, whose norms run side by side.
const CHANNELS: [[usize; 2]; 3] = [[3, 5], [3, 8], [4, 6]];
const SIDES: [usize; 3] = [6, 6, 3];
const IMAGES: usize = 5;

struct Leaves {
    inputs: Vec<Tensor<4>>,
    weights: Vec<Tensor<4>>,
    gamma: Vec<Tensor<1>>,
    beta: Vec<Tensor<1>>,
}

/// The part of `lanes` of the inputs; parameters of `frozen` are not in the graph, nor is its input.
fn leaves(device: &Device, lanes: &Lanes, frozen: Option<usize>) -> Leaves {
    let device = device.clone().autodiff();
    let images = lanes.images().unwrap_or(0..IMAGES);
    let on = (&device, DType::F32);
    let mut l = Leaves {
        inputs: vec![],
        weights: vec![],
        gamma: vec![],
        beta: vec![],
    };
    for (i, ([ci, co], side)) in CHANNELS.into_iter().zip(SIDES).enumerate() {
        let one = side * side * ci;
        let x = drawn(i, IMAGES * one)[images.start * one..images.end * one].to_vec();
        let x = Tensor::<4>::from_data(TensorData::new(x, [images.len(), side, side, ci]), on);
        let w = TensorData::new(drawn(10 + i, 9 * ci * co), [3, 3, ci, co]);
        let w = Tensor::<4>::from_data(w, on);
        let vector = |seed| Tensor::<1>::from_data(drawn(seed + i, co).as_slice(), on);
        let (gamma, beta) = (vector(20), vector(30));
        let grad = frozen != Some(i);
        l.inputs.push(if grad { x.require_grad() } else { x });
        l.weights.push(if grad { w.require_grad() } else { w });
        l.gamma
            .push(if grad { gamma.require_grad() } else { gamma });
        l.beta.push(if grad { beta.require_grad() } else { beta });
    }
    l
}

fn args(l: &Leaves, i: usize, norm: Norm, lanes: &Lanes) -> (Tensor<4>, ConvNorm) {
    let p = ConvNorm {
        weight: l.weights[i].clone().into(),
        gamma: l.gamma[i].clone().into(),
        beta: l.beta[i].clone().into(),
        stride: 1,
        groups: 1,
        norm,
        running: None,
        act: Activation::Silu,
        lanes: lanes.clone(),
    };
    (l.inputs[i].clone(), p)
}

fn host<const D: usize>(t: Tensor<D>) -> Vec<f32> {
    t.into_data().try_to_vec::<f32>().unwrap()
}

/// A loss that reads the outputs in `read`, each after as many additions as its number: the graph's depths differ.
fn gradients(outputs: &[Tensor<4>], read: &[usize]) -> Gradients {
    let device = outputs[0].device();
    let mut loss = Tensor::<1>::zeros([1], (&device, DType::F32));
    for &i in read {
        let mut y = outputs[i].clone();
        for _ in 0..i {
            y = y * 0.75;
        }
        let shape = y.dims();
        // each element by its place in its own image: ranks see the same
        let one = drawn(40 + i, shape[1..].iter().product());
        let weights = TensorData::new(one, [1, shape[1], shape[2], shape[3]]);
        let weights = Tensor::<4>::from_data(weights, (&device, DType::F32));
        loss = loss + (y * weights).sum();
    }
    loss.backward()
}

fn bits(v: Vec<f32>) -> Vec<u32> {
    v.into_iter().map(f32::to_bits).collect()
}

/// Bits of the outputs, and of the gradients of inputs and parameters.
fn results(l: &Leaves, outputs: &[Tensor<4>], grads: &Gradients) -> [Vec<Option<Vec<u32>>>; 3] {
    let of = |t: &Tensor<4>| t.grad(grads).map(|g| bits(host(g)));
    let vector = |t: &Tensor<1>| t.grad(grads).map(|g| bits(host(g)));
    let outputs = outputs.iter().map(|y| Some(bits(host(y.clone()))));
    let mut parameters: Vec<_> = l.weights.iter().map(of).collect();
    parameters.extend(l.gamma.iter().chain(&l.beta).map(vector));
    [
        outputs.collect(),
        l.inputs.iter().map(of).collect(),
        parameters,
    ]
}

fn alone(
    device: &Device,
    lanes: &Lanes,
    read: &[usize],
    frozen: Option<usize>,
) -> [Vec<Option<Vec<u32>>>; 3] {
    let l = leaves(device, lanes, frozen);
    let one = |i| {
        let (x, p) = args(&l, i, Norm::Batch, lanes);
        conv_norm_act(x, p).0
    };
    let outputs: Vec<_> = (0..3).map(one).collect();
    let grads = gradients(&outputs, read);
    results(&l, &outputs, &grads)
}

fn together(
    device: &Device,
    lanes: &Lanes,
    read: &[usize],
    frozen: Option<usize>,
    norm: impl Fn(usize) -> Norm,
) -> [Vec<Option<Vec<u32>>>; 3] {
    let l = leaves(device, lanes, frozen);
    let each = (0..3).map(|i| args(&l, i, norm(i), lanes)).collect();
    let outputs: Vec<_> = conv_norm_act_each(each).into_iter().map(|o| o.0).collect();
    let grads = gradients(&outputs, read);
    results(&l, &outputs, &grads)
}

fn synced(ranks: &Arc<dyn Ranks>) -> impl Fn(usize) -> Norm {
    let ranks = ranks.clone();
    move |i| {
        Norm::Synced(Synced {
            ranks: ranks.clone(),
            name: format!("norm {i}").into(),
        })
    }
}

fn side_by_side(device: &Device) {
    let lanes = Lanes::whole(4);
    for frozen in [None, Some(0), Some(2)] {
        let want = alone(device, &lanes, &[0, 1, 2], frozen);
        let got = together(device, &lanes, &[0, 1, 2], frozen, |_| Norm::Batch);
        assert!(want == got, "{frozen:?}");
        assert_eq!(
            got[1].iter().filter(|g| g.is_none()).count(),
            frozen.iter().count()
        );
    }
}

fn two_ranks(device: &Device) {
    #[cfg(feature = "gpu")]
    let _fixed = crate::ops::gpu::testing::SameBits::new();
    for frozen in [None, Some(1)] {
        let whole = alone(device, &Lanes::whole(4), &[0, 1, 2], frozen);
        let (ranks, calls) = on_ranks(2, |rank, ranks| {
            let lanes = Lanes::of_rank(4, rank, 2, IMAGES);
            together(device, &lanes, &[0, 1, 2], frozen, synced(&ranks))
        });
        for i in 0..2 {
            for branch in 0..3 {
                let part = |r: &[Vec<Option<Vec<u32>>>; 3]| r[i][branch].clone();
                let joined: Option<Vec<_>> = ranks.iter().map(part).collect();
                assert!(
                    whole[i][branch] == joined.map(|p| p.concat()),
                    "{i} {branch}"
                );
            }
        }
        let names = ["statistics", "gradient sums"].map(|w| format!("norm 0 and 2 more: {w}"));
        assert_eq!(calls, names);
    }
}

fn unread(device: &Device) {
    #[cfg(feature = "gpu")]
    let _fixed = crate::ops::gpu::testing::SameBits::new();
    for read in [vec![0, 2], vec![1]] {
        let want = alone(device, &Lanes::whole(4), &read, None);
        let (ranks, calls) = on_ranks(2, |rank, ranks| {
            let lanes = Lanes::of_rank(4, rank, 2, IMAGES);
            together(device, &lanes, &read, None, synced(&ranks))
        });
        assert_eq!(calls.len(), 2);
        let zero = |g: &Option<Vec<u32>>| g.iter().flatten().all(|&b| f32::from_bits(b) == 0.0);
        for branch in 0..3 {
            let part = |r: &[Vec<Option<Vec<u32>>>; 3]| r[1][branch].clone().unwrap();
            let got = ranks.iter().map(part).collect::<Vec<_>>().concat();
            match &want[1][branch] {
                Some(g) => assert!(*g == got, "{branch}"),
                None => assert!(zero(&Some(got)), "{branch}"),
            }
            let [w, gamma] = [branch, 3 + branch].map(|i| &ranks[0][2][i]);
            assert!(read.contains(&branch) || zero(w) && zero(gamma));
        }
    }
}

fn given(device: &Device) {
    let fixed = |i: usize| {
        let c = CHANNELS[i][1];
        Norm::Fixed((drawn(50, c), vec![0.5; c]).into())
    };
    let lanes = Lanes::whole(4);
    let (ranks, calls) = on_ranks(1, |_, ranks| {
        let s = synced(&ranks);
        together(device, &lanes, &[0, 1, 2], None, |i| {
            if i == 0 { fixed(0) } else { s(i) }
        })
    });
    assert_eq!(
        calls,
        ["statistics", "gradient sums"].map(|w| format!("norm 1 and 1 more: {w}"))
    );
    let want = alone(device, &lanes, &[0, 1, 2], None);
    for kind in 0..2 {
        assert!(ranks[0][kind][1..] == want[kind][1..]);
        assert!(ranks[0][kind][0] != want[kind][0]);
    }
}

macro_rules! on {
    ($device:expr) => {
        #[test]
        fn norms_side_by_side_give_the_bits_of_each_alone() {
            let Some(device) = $device else { return };
            side_by_side(&device);
        }
        #[test]
        fn two_ranks_meet_once_forward_and_once_backward_and_have_the_bits_of_one() {
            let Some(device) = $device else { return };
            two_ranks(&device);
        }
        #[test]
        fn a_branch_that_the_loss_does_not_read_has_no_gradient_and_keeps_nobody_waiting() {
            let Some(device) = $device else { return };
            unread(&device);
        }
        #[test]
        fn norms_with_given_statistics_stay_out_of_the_exchange() {
            let Some(device) = $device else { return };
            given(&device);
        }
    };
}

mod cpu {
    use super::*;
    on!(Some(Device::flex()));
}

#[cfg(feature = "gpu")]
mod gpu {
    use super::*;
    use crate::ops::gpu::testing::device;
    on!(device());
}
