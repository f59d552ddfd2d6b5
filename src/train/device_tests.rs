//! Training on a device against the CPU's kernels. `cargo test` runs on a Vulkan adapter; `YOLO_TRAIN_TEST_DEVICE=cuda:0` on a
//! CUDA GPU.

use super::ranks_tests::{SIZE, accumulate, bits, images, network_and_state, on_ranks, team};
use super::*;
use crate::dist::tcp::Transport;
use crate::ops::gpu::testing;
use crate::train::optim::Algorithm;

const RATES: Rates = Rates {
    lr: 0.01,
    bias_lr: 0.02,
    momentum: 0.9,
};
/// Images a side of 64 pixels: the smallest with three levels of more than one anchor.
const SIDE: usize = 64;

fn engine_on(device: &Device, team: Team, algorithm: Algorithm) -> Engine {
    let (network, state) = network_and_state();
    let optimizer = Optimizer::new(algorithm, 5e-4, network.layout.param_len);
    Engine::new(network, state, optimizer, ranks_tests::GAINS, device, team)
}

/// What a run leaves: losses of its micro-batches, weights, average, running statistics.
#[derive(Debug, Clone, PartialEq)]
struct Left {
    losses: Vec<[f64; 4]>,
    params: Vec<f32>,
    average: Vec<f32>,
    buffers: Vec<f32>,
}

/// Steps of these micro-batches each.
fn train(e: &mut Engine, steps: usize, cuts: &[ranks_tests::Cut]) -> Left {
    train_at(&RATES, e, steps, cuts)
}

fn train_at(rates: &Rates, e: &mut Engine, steps: usize, cuts: &[ranks_tests::Cut]) -> Left {
    let (mut first, mut all) = (0, ShownLoss::default());
    let mut losses = vec![];
    let mut keep = |l: ShownLoss, all: &mut ShownLoss| {
        all.add(l);
        let s = all.sums;
        losses.push([s.boxes, s.classes, s.distances, all.score_sum]);
    };
    for _ in 0..steps {
        for (i, cut) in cuts.iter().enumerate() {
            let l = accumulate(e, first, *cut, i + 1 == cuts.len());
            keep(l, &mut all);
            first += cut.0;
        }
        e.step(rates, SIZE).unwrap().unwrap();
        // what a device owes
        let l = e.settle().unwrap().unwrap();
        keep(l, &mut all);
    }
    e.fetch().unwrap();
    Left {
        losses: losses.last().copied().into_iter().collect(),
        params: e.state.params.clone(),
        average: e.average.params.clone(),
        buffers: e.state.buffers.clone(),
    }
}

/// Relative distance of two arrays.
fn apart(got: &[f32], want: &[f32]) -> f64 {
    let wide = |v: &f32| f64::from(*v);
    let off: f64 = got
        .iter()
        .zip(want)
        .map(|(g, w)| (wide(g) - wide(w)).powi(2))
        .sum();
    let all: f64 = want.iter().map(|w| wide(w).powi(2)).sum();
    (off / all).sqrt()
}

fn assert_near(got: &Left, want: &Left, start: &[f32], bound: f64) {
    for (g, w) in got
        .losses
        .iter()
        .flatten()
        .zip(want.losses.iter().flatten())
    {
        assert!(
            (g - w).abs() <= 2e-2 * (1.0 + w.abs()),
            "losses {:?} {:?}",
            got.losses,
            want.losses
        );
    }
    // of what was learnt, not of what was there
    let moved = |v: &[f32]| -> Vec<f32> { v.iter().zip(start).map(|(v, s)| v - s).collect() };
    let off = apart(&moved(&got.params), &moved(&want.params));
    assert!(off < bound, "weights moved otherwise: {off:e}");
    let off = apart(&got.average, &want.average);
    assert!(off < bound, "averages: {off:e}");
    let off = apart(&got.buffers, &want.buffers);
    assert!(off < bound, "running statistics: {off:e}");
}

fn on_the_device_as_on_the_cpu(
    algorithm: Algorithm,
    rates: &Rates,
    steps: usize,
    cuts: &[ranks_tests::Cut],
    bound: f64,
) {
    let Some(device) = testing::device() else {
        return;
    };
    let start = network_and_state().1.params;
    let mut cpu = engine_on(&Device::flex(), Team::alone(4), algorithm);
    let want = train_at(rates, &mut cpu, steps, cuts);
    let mut gpu = engine_on(&device, Team::alone(1), algorithm);
    let got = train_at(rates, &mut gpu, steps, cuts);
    assert_near(&got, &want, &start, bound);
}

#[test]
fn two_steps_of_sgd_on_a_gpu_are_those_of_the_cpu() {
    on_the_device_as_on_the_cpu(Algorithm::Sgd, &RATES, 2, &[(3, SIDE, 1)], 2e-2);
}

/// At a rate at which what one step's rounding does to the next is small: at that of the other tests the ways part.
#[test]
fn twenty_steps_of_sgd_on_a_gpu_are_those_of_the_cpu() {
    let rates = Rates {
        lr: 1e-4,
        bias_lr: 1e-4,
        ..RATES
    };
    on_the_device_as_on_the_cpu(Algorithm::Sgd, &rates, 20, &[(2, SIDE, 0)], 2e-2);
}

/// The first step of Adam moves every weight by about the rate, in the direction of its gradient: the few whose gradient is
/// next to nothing go either way.
#[test]
fn a_step_of_adamw_with_accumulation_on_a_gpu_is_that_of_the_cpu() {
    let cuts = [(2, SIDE, 0), (1, SIDE, 0)];
    on_the_device_as_on_the_cpu(Algorithm::AdamW, &RATES, 1, &cuts, 0.2);
}

#[test]
fn a_step_of_musgd_on_a_gpu_is_that_of_the_cpu() {
    on_the_device_as_on_the_cpu(Algorithm::MuSgd, &RATES, 1, &[(2, SIDE, 0)], 2e-2);
}

#[test]
fn two_runs_on_a_gpu_end_with_the_same_bits() {
    let Some(device) = testing::device() else {
        return;
    };
    let run = || {
        let mut e = engine_on(&device, Team::alone(1), Algorithm::Sgd);
        train(&mut e, 2, &[(2, SIDE, 0)])
    };
    let (a, b) = (run(), run());
    assert!(bits(&a.params) == bits(&b.params) && bits(&a.buffers) == bits(&b.buffers));
    assert_eq!(a.losses, b.losses);
}

#[test]
fn with_equal_lanes_two_ranks_on_gpus_end_with_the_bits_of_one() {
    let Some(device) = testing::device() else {
        return;
    };
    let run = |ranks: usize| {
        let mut all = on_ranks(ranks, Transport::Auto, 1, |group| {
            let mut e = engine_on(&device, team(group, 2, 1 << 20), Algorithm::Sgd);
            train(&mut e, 2, &[(2, SIDE, 0), (3, SIDE, 1)])
        });
        all.swap_remove(0)
    };
    let (one, two) = (run(1), run(2));
    assert!(
        bits(&one.buffers) == bits(&two.buffers),
        "running statistics"
    );
    assert!(bits(&one.params) == bits(&two.params), "weights");
    assert_eq!(one.losses, two.losses);
}

#[test]
fn without_sync_bn_running_statistics_on_gpus_are_those_of_all_ranks_as_on_cpus() {
    let Some(device) = testing::device() else {
        return;
    };
    let run = |device: &Device| {
        on_ranks(2, Transport::Auto, 1, |group| {
            let apart = Team {
                sync_norms: false,
                ..team(group, 4, 1 << 20)
            };
            let mut e = engine_on(device, apart, Algorithm::Sgd);
            train(&mut e, 2, &[(3, SIDE, 0)])
        })
    };
    let (want, got) = (run(&Device::flex()), run(&device));
    assert!(
        bits(&got[0].buffers) == bits(&got[1].buffers),
        "ranks differ"
    );
    let off = apart(&got[0].buffers, &want[0].buffers);
    assert!(off < 1e-3, "running statistics: {off:e}");
}

fn checkpoint_of(e: &Engine) -> Checkpoint {
    use crate::train::checkpoint::{seal, tests, to_bytes};
    let pending = e.pending_gradient().unwrap();
    let mut arrays = e.arrays();
    if !pending.is_empty() {
        arrays.push((Engine::PENDING.into(), &pending));
    }
    let mut header = tests::header();
    header.counters = e.counters();
    header.sections = arrays.iter().map(|(n, a)| (n.clone(), a.len())).collect();
    let values: Vec<&[f32]> = arrays.iter().map(|a| a.1).collect();
    let mut bytes = to_bytes(&header, &values);
    seal(&mut bytes);
    Checkpoint::parse(std::path::Path::new("x.ckpt"), bytes).unwrap()
}

#[test]
fn a_checkpoint_in_the_middle_of_a_step_on_a_gpu_goes_on_to_the_same_bits() {
    let Some(device) = testing::device() else {
        return;
    };
    let new = || engine_on(&device, Team::alone(1), Algorithm::AdamW);
    let ends = |e: &mut Engine| {
        accumulate(e, 2, (2, SIDE, 0), true);
        e.step(&RATES, SIZE).unwrap().unwrap();
        e.settle().unwrap().unwrap();
        e.fetch().unwrap();
        bits(&e.state.params)
    };
    let mut whole = new();
    train(&mut whole, 1, &[(2, SIDE, 0)]);
    accumulate(&mut whole, 0, (2, SIDE, 0), false);
    whole.settle().unwrap().unwrap();
    whole.fetch().unwrap();
    let checkpoint = checkpoint_of(&whole);
    let want = ends(&mut whole);
    let mut again = new();
    again.restore(&checkpoint).unwrap();
    assert_eq!(again.pending(), 1);
    assert!(ends(&mut again) == want);
}

/// Forward and backward of a step of `count` images, resized to this height; what has come of losses.
fn pass(e: &mut Engine, count: usize, height: usize) -> Option<ShownLoss> {
    let (pixels, truths) = images(0..count, SIDE, 0);
    let batch = MicroBatch {
        pixels: &pixels,
        size: (SIDE, SIDE),
        height,
        width: SIDE,
        truths,
    };
    let turn = Turn {
        images: count,
        head_weights: (0.8, 0.2),
        ends_step: true,
    };
    e.accumulate(&batch, turn).unwrap()
}

#[test]
fn a_loss_that_is_not_finite_on_a_gpu_is_found_a_micro_batch_later() {
    let Some(device) = testing::device() else {
        return;
    };
    let mut e = engine_on(&device, Team::alone(1), Algorithm::Sgd);
    e.state.params[0] = f32::NAN;
    e.put();
    assert!(pass(&mut e, 1, SIDE).is_some(), "not known yet");
    assert!(e.settle().unwrap().is_none());
    assert_eq!(e.culprit, "loss");
}

/// Of what a driver that computes nothing (`tests/fake-cuda`) lets one see, too: every kernel of a step is translated and launched.
#[test]
fn kernels_of_whole_steps_are_accepted_by_the_device_in_every_precision() {
    let Some(device) = testing::device() else {
        return;
    };
    for precision in [Precision::Float32, Precision::Float16, Precision::Bfloat16] {
        if !device.supports_dtype(precision.dtype()) {
            eprintln!("skipped: the device has no {precision:?}");
            continue;
        }
        let mut e = engine_on(&device, Team::alone(1), Algorithm::MuSgd).with_precision(precision);
        pass(&mut e, 2, SIDE + 32);
        e.step(&RATES, SIZE).unwrap();
        e.settle().unwrap();
        e.fetch().unwrap();
    }
}
