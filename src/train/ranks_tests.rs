//! One rank against many: gradients, and whole steps.

use super::*;
use crate::config::model::ModelSpec;
use crate::dist::ReduceOp;
use crate::dist::tcp::Transport;
use crate::dist::testing::groups;
use crate::loss::GroundTruth;
use crate::model::init;
use crate::train::optim::Algorithm;
use std::ops::Range;

pub(super) const GAINS: Gains = Gains {
    boxes: 7.5,
    classes: 0.5,
    distances: 1.5,
};
const WEIGHTS: (f64, f64) = (0.8, 0.2);
pub(super) const SIZE: StepSize = StepSize {
    reference: 64,
    full: 8,
};

/// Images at these positions of a run, with 0 to 3 objects each; the first `backgrounds` have none.
pub(super) fn images(
    positions: Range<usize>,
    side: usize,
    backgrounds: usize,
) -> (Vec<u8>, Vec<Vec<GroundTruth>>) {
    let one = side * side * 3;
    let draw = |seed: u64, i: usize| init::uniform(seed, i as u64);
    let pixels = positions
        .clone()
        .flat_map(|p| (p * one..(p + 1) * one).map(|i| (draw(3, i) * 255.0) as u8))
        .collect();
    let truths = positions
        .map(|p| {
            let count = if p < backgrounds { 0 } else { 1 + p % 3 };
            (0..count)
                .map(|t| {
                    let [x, y, w, h] = std::array::from_fn(|i| draw(9, 100 * p + 10 * t + i));
                    let side = side as f64;
                    let (x, y) = (x * 0.5 * side, y * 0.5 * side);
                    GroundTruth {
                        class: (p + t) % 3,
                        xyxy: [x, y, x + (0.2 + 0.3 * w) * side, y + (0.2 + 0.3 * h) * side],
                    }
                })
                .collect()
        })
        .collect();
    (pixels, truths)
}

/// A micro-batch: images on all ranks together, their side, how many of them show nothing.
pub(super) type Cut = (usize, usize, usize);

pub(super) fn network_and_state() -> (Network, State) {
    let network = Network::new(ModelSpec::resolve("yolo26n").unwrap(), 3);
    let state = init::init(&network, 0);
    (network, state)
}

fn engine(team: Team, algorithm: Algorithm) -> Engine {
    let (network, state) = network_and_state();
    let optimizer = Optimizer::new(algorithm, 5e-4, network.layout.param_len);
    Engine::new(network, state, optimizer, GAINS, &Device::flex(), team)
}

pub(super) fn team(group: Arc<dyn ProcessGroup>, lanes: usize, bytes: usize) -> Team {
    Team {
        group,
        lanes,
        sync_norms: true,
        buckets: Buckets {
            bytes,
            overlap: true,
        },
        deterministic: true,
    }
}

/// This rank's part of a micro-batch.
pub(super) fn accumulate(
    e: &mut Engine,
    first: usize,
    (n, side, backgrounds): Cut,
    ends_step: bool,
) -> ShownLoss {
    let own = e.lanes(n).images().unwrap();
    let (pixels, truths) = images(first + own.start..first + own.end, side, backgrounds);
    let batch = MicroBatch {
        pixels: &pixels,
        size: (side, side),
        height: side,
        width: side,
        truths,
    };
    let turn = Turn {
        images: n,
        head_weights: WEIGHTS,
        ends_step,
    };
    e.accumulate(&batch, turn).unwrap().unwrap()
}

pub(super) fn bits(v: &[f32]) -> Vec<u32> {
    v.iter().map(|v| v.to_bits()).collect()
}

/// Runs `f` on connected ranks, each a thread with a pool of `compute` threads.
pub(super) fn on_ranks<T: Send>(
    size: usize,
    transport: Transport,
    compute: usize,
    f: impl Fn(Arc<dyn ProcessGroup>) -> T + Sync,
) -> Vec<T> {
    let all = groups(size, |o| o.transport = transport).unwrap();
    std::thread::scope(|scope| {
        let ranks: Vec<_> = all
            .into_iter()
            .map(|group| {
                let f = &f;
                scope.spawn(move || {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(compute);
                    pool.build().unwrap().install(|| f(group))
                })
            })
            .collect();
        ranks.into_iter().map(|r| r.join().unwrap()).collect()
    })
}

/// The summed numerators' gradient of a step of these micro-batches, the loss of the last, the running statistics: the
/// same on every rank.
fn gradient(ranks: usize, lanes: usize, cuts: &[Cut]) -> (Vec<f32>, ShownLoss, Vec<f32>) {
    let mut all = on_ranks(ranks, Transport::Auto, 1, |group| {
        let mut e = engine(team(group, lanes, 1 << 20), Algorithm::Sgd);
        let (mut first, mut loss) = (0, ShownLoss::default());
        for (i, cut) in cuts.iter().enumerate() {
            loss = accumulate(&mut e, first, *cut, i + 1 == cuts.len());
            first += cut.0;
        }
        e.growing.finish(&mut e.gradient).unwrap();
        let scores = e.normalisers().map(|s| s as f32);
        let mut buffers = e.state.buffers.clone();
        buffers.extend(scores);
        (e.gradient.clone(), loss, buffers)
    });
    let last = all.pop().unwrap();
    for other in &all {
        assert!(bits(&other.0) == bits(&last.0), "ranks differ in gradients");
        assert_eq!(other.1, last.1);
        assert!(
            bits(&other.2) == bits(&last.2),
            "ranks differ in statistics"
        );
    }
    last
}

/// Full, uneven, fewer images than ranks, a rank with backgrounds only, accumulation, sizes that change.
const CASES: [&[Cut]; 7] = [
    &[(8, 64, 0)],
    &[(5, 64, 0)],
    &[(1, 64, 0)],
    &[(2, 64, 0)],
    &[(8, 64, 4)],
    &[(6, 64, 0), (3, 64, 0)],
    &[(4, 96, 1), (2, 64, 0), (1, 32, 0)],
];

#[test]
fn with_the_same_lanes_1_2_3_and_4_ranks_give_gradients_of_the_same_bytes() {
    for cuts in CASES {
        let (one, loss, buffers) = gradient(1, 4, cuts);
        assert!(one.iter().any(|&g| g != 0.0));
        for ranks in [2, 3, 4] {
            let (many, of_many, statistics) = gradient(ranks, 4, cuts);
            let differ = one
                .iter()
                .zip(&many)
                .filter(|(a, b)| a.to_bits() != b.to_bits());
            assert_eq!(differ.count(), 0, "{ranks} ranks, {cuts:?}");
            assert_eq!(of_many, loss, "{ranks} ranks, {cuts:?}");
            assert!(
                bits(&statistics) == bits(&buffers),
                "{ranks} ranks, {cuts:?}"
            );
        }
    }
}

fn norm(v: impl Iterator<Item = f64>) -> f64 {
    v.map(|v| v * v).sum::<f64>().sqrt()
}

/// Asserts `|a - b| <= relative |b_p| + absolute |b|` for every parameter.
fn close(a: &[f64], b: &[f64], relative: f64, absolute: f64, what: &str) {
    let layout = Network::new(ModelSpec::resolve("yolo26n").unwrap(), 3).layout;
    let total = norm(b.iter().copied());
    for p in &layout.params {
        let (a, b) = (&a[p.range()], &b[p.range()]);
        let d = norm(a.iter().zip(b).map(|(a, b)| a - b));
        let bound = relative * norm(b.iter().copied()) + absolute * total;
        assert!(d <= bound, "{what}, {}: {d:e} of {bound:e}", p.name);
    }
}

#[test]
fn with_other_lanes_gradients_agree_within_rounding() {
    let wide = |v: &[f32]| v.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
    for cuts in CASES {
        let (one, loss, _) = gradient(1, 4, cuts);
        for (ranks, lanes) in [(1, 1), (2, 2), (3, 3), (4, 7)] {
            let (other, of_other, _) = gradient(ranks, lanes, cuts);
            let what = format!("{ranks} ranks, {lanes} lanes, {cuts:?}");
            // the same anchors were chosen
            let ratio = of_other.score_sum / loss.score_sum.max(1e-30);
            assert!((ratio - 1.0).abs() < 1e-4, "{what}: {ratio}");
            close(&wide(&other), &wide(&one), 1e-3, 1e-6, &what);
        }
    }
}

/// The reference operations in float64, summed over ranks and the micro-batches of a step.
fn reference(group: &Arc<dyn ProcessGroup>, cuts: &[Cut]) -> Vec<f64> {
    let mut first = 0;
    let mut sum: Vec<f64> = vec![];
    for cut in cuts {
        let of_cut = reference_of(group, first, *cut);
        first += cut.0;
        sum.resize(of_cut.len(), 0.0);
        sum.iter_mut().zip(of_cut).for_each(|(s, v)| *s += v);
    }
    sum
}

/// That of a micro-batch whose images begin at position `first`.
fn reference_of(group: &Arc<dyn ProcessGroup>, first: usize, cut: Cut) -> Vec<f64> {
    let network = Network::new(ModelSpec::resolve("yolo26n").unwrap(), 3);
    let layout = &network.layout;
    let state = init::init(&network, 0);
    let (n, side, backgrounds) = cut;
    let lanes = Lanes::of_rank(group.size().max(4), group.rank(), group.size(), n);
    let own = lanes.images().unwrap();
    let (pixels, truths) = images(first + own.start..first + own.end, side, backgrounds);
    let device = Device::flex().autodiff();
    let ranks = Arc::new(GroupRanks::new(group.clone(), 4));
    let shared: Arc<dyn Ranks> = ranks.clone();
    let mut tensors = Tensors::new(layout, &state.params, &device, DType::F64).with_lanes(lanes);
    if group.size() > 1 {
        tensors = tensors.with_ranks(layout, &shared);
    }
    let values: Vec<f64> = pixels.iter().map(|&p| f64::from(p) / 255.0).collect();
    let shape = [truths.len(), side, side, 3];
    let data = burn::tensor::TensorData::new(values, shape);
    let image = Tensor::<4>::from_data(data, (&device, DType::F64));
    let heads = Heads {
        many: true,
        one: true,
    };
    let out = network.forward(&tensors, image, heads);
    let anchors = Anchors::new(side, side, &network.strides);
    let mut total: Option<Tensor<1>> = None;
    let heads = [
        (out.one_to_many, ONE_TO_MANY, WEIGHTS.0),
        (out.one_to_one, ONE_TO_ONE, WEIGHTS.1),
    ];
    for (head, topk, weight) in heads {
        let c = Criterion {
            reg_max: network.spec.reg_max,
            gains: GAINS,
            class_weights: None,
            topk,
        };
        let lanes = tensors.lanes();
        let (term, _) = weighted_loss(&head.unwrap(), &truths, &anchors, &c, weight, lanes);
        total = Some(match total {
            Some(t) => t + term,
            None => term,
        });
    }
    let mut grads = total.unwrap().backward();
    let own = tensors.gradients_f64(layout, &mut grads);
    ranks.check().unwrap();
    let call = Call::bulk("reference gradients");
    let sum = group.all_reduce(call, ReduceOp::Sum, own.into()).wait();
    sum.unwrap().into_vec().unwrap()
}

#[test]
fn the_reference_in_float64_gives_the_gradient_of_one_rank() {
    // also uneven, with a rank of backgrounds only, with empty ranks, of another size, of two micro-batches
    let cases: [&[Cut]; 6] = [
        &[(4, 64, 0)],
        &[(5, 32, 0)],
        &[(4, 32, 2)],
        &[(1, 64, 0)],
        &[(3, 96, 0)],
        &[(4, 32, 0), (3, 64, 0)],
    ];
    for cuts in cases {
        let one = on_ranks(1, Transport::Auto, 1, |g| reference(&g, cuts));
        for ranks in [2, 3, 4] {
            let many = on_ranks(ranks, Transport::Auto, 1, |g| reference(&g, cuts));
            for of_rank in many {
                close(
                    &of_rank,
                    &one[0],
                    1e-8,
                    1e-10,
                    &format!("{ranks} ranks, {cuts:?}"),
                );
            }
        }
    }
}

/// How a run is carried out, which must not matter.
#[derive(Debug, Clone, Copy)]
struct Manner {
    ranks: usize,
    compute: usize,
    bucket: usize,
    transport: Transport,
}

/// Weights, average and running statistics after 20 steps with SyncBN, clipping and an uneven last batch.
fn run(m: Manner, algorithm: Algorithm, accumulate_: usize) -> Vec<u32> {
    let mut all = on_ranks(m.ranks, m.transport, m.compute, |group| {
        let mut e = engine(team(group, 4, m.bucket), algorithm);
        let rates = Rates {
            lr: 0.01,
            bias_lr: 0.02,
            momentum: 0.9,
        };
        let mut first = 0;
        for step in 0..20 {
            for i in 0..accumulate_ {
                // an epoch of three steps ends with an incomplete batch
                let n = if step % 3 == 2 { 3 } else { 4 };
                accumulate(&mut e, first % 17, (n, 32, 0), i + 1 == accumulate_);
                first += n;
            }
            e.step(&rates, SIZE).unwrap().unwrap();
        }
        let (s, a) = (&e.state, &e.average);
        let all = [&s.params, &s.buffers, &a.params, &a.buffers];
        all.iter().flat_map(|v| bits(v)).collect::<Vec<_>>()
    });
    let last = all.pop().unwrap();
    assert!(all.iter().all(|o| *o == last), "ranks differ: {m:?}");
    last
}

#[test]
fn twenty_steps_end_with_the_same_bytes_on_1_2_3_and_4_ranks() {
    let one = Manner {
        ranks: 1,
        compute: 1,
        bucket: 1 << 20,
        transport: Transport::Auto,
    };
    for algorithm in [Algorithm::Sgd, Algorithm::AdamW, Algorithm::MuSgd] {
        for micro_batches in [1, 2] {
            let want = run(one, algorithm, micro_batches);
            let other = |m: Manner| {
                let got = run(m, algorithm, micro_batches);
                assert!(
                    got == want,
                    "{algorithm:?}, accumulate {micro_batches}, {m:?}"
                );
            };
            let of = |ranks| Manner { ranks, ..one };
            other(of(2));
            other(of(4));
            if algorithm == Algorithm::Sgd {
                other(of(3));
                other(Manner {
                    compute: 2,
                    ..of(1)
                });
                other(Manner {
                    compute: 2,
                    bucket: 25 << 20,
                    ..of(2)
                });
                other(Manner {
                    bucket: 1 << 10,
                    transport: Transport::Sockets,
                    ..of(4)
                });
            }
        }
    }
}

#[test]
fn without_sync_bn_ranks_keep_one_state_and_gradients_differ_from_those_with_it() {
    let run = |sync_norms: bool| {
        on_ranks(2, Transport::Auto, 1, |group| {
            let team = Team {
                sync_norms,
                ..team(group, 4, 1 << 20)
            };
            let mut e = engine(team, Algorithm::Sgd);
            accumulate(&mut e, 0, (5, 64, 0), true);
            e.growing.finish(&mut e.gradient).unwrap();
            (e.gradient.clone(), e.state.buffers.clone())
        })
    };
    let (with, without) = (run(true), run(false));
    assert!(without[0] == without[1], "the same state on both");
    assert!(with[0].0 != without[0].0);
    // the statistics of all images are nearly those of SyncBN in the first layer, which sees the same input
    let first = &engine(Team::alone(4), Algorithm::Sgd).network.layout.norms[0].clone();
    for at in [first.mean(), first.var()] {
        for (a, b) in with[0].1[at.clone()].iter().zip(&without[0].1[at]) {
            assert!((a - b).abs() <= 1e-5 * b.abs().max(1e-3), "{a} {b}");
        }
    }
}

#[test]
fn a_step_that_is_under_way_goes_on_on_another_number_of_ranks() {
    let two = &[(6, 64, 0), (3, 64, 0)];
    let (want, ..) = gradient(1, 4, two);
    for (before, after) in [(1, 2), (2, 1), (4, 3), (3, 4)] {
        let state = on_ranks(before, Transport::Auto, 1, |group| {
            let mut e = engine(team(group, 4, 1 << 20), Algorithm::Sgd);
            accumulate(&mut e, 0, two[0], false);
            (
                e.pending_gradient().unwrap(),
                e.counters(),
                e.state.buffers.clone(),
            )
        });
        let (gradients, counters, buffers) = &state[0];
        let got = on_ranks(after, Transport::Auto, 1, |group| {
            let mut e = engine(team(group, 4, 1 << 20), Algorithm::Sgd);
            e.state.buffers.clone_from(buffers);
            e.growing
                .restore(gradients, &counters.lane_images, counters.micro_batches);
            e.lane_scores.clone_from(&counters.score_sums);
            accumulate(&mut e, two[0].0, two[1], true);
            e.growing.finish(&mut e.gradient).unwrap();
            e.gradient.clone()
        });
        for g in got {
            assert!(bits(&g) == bits(&want), "{before} ranks, then {after}");
        }
    }
}

#[test]
fn a_loss_that_is_not_finite_on_one_rank_is_reported_on_all() {
    let ends = on_ranks(2, Transport::Auto, 1, |group| {
        let rank = group.rank();
        let team = Team {
            sync_norms: false,
            ..team(group, 4, 1 << 20)
        };
        let mut e = engine(team, Algorithm::Sgd);
        if rank == 1 {
            e.state.params[5] = f32::NAN;
        }
        let (pixels, truths) = images(0..2, 64, 0);
        let batch = MicroBatch {
            pixels: &pixels,
            size: (64, 64),
            height: 64,
            width: 64,
            truths,
        };
        let turn = Turn {
            images: 4,
            head_weights: WEIGHTS,
            ends_step: true,
        };
        e.accumulate(&batch, turn).unwrap().is_none()
    });
    assert_eq!(ends, [true, true]);
}
