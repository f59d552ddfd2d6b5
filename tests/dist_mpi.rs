//! The suite of the process group over MPI. Built with feature `mpi`; each test is its own job, for example
//!
//! ```sh
//! cargo test --release --features mpi --test dist_mpi --no-run
//! mpirun --allow-run-as-root --oversubscribe -n 4 target/release/deps/dist_mpi-… --exact --ignored --test-threads=1 \
//!     every_collective_gives_what_the_oracle_says
//! ```
//!
//! or `scripts/test-mpi.sh`.
#![cfg(feature = "mpi")]

#[path = "support/collectives.rs"]
mod collectives;

use std::time::Duration;

use burn::tensor::Device;
use yolo_train::config::model::ModelSpec;
use yolo_train::dist::{Buffer, Call, DistError, ProcessGroup, ReduceOp, handshake, mpi};

use yolo_train::loss::{Gains, GroundTruth, MicroBatch};
use yolo_train::model::{Network, init};
use yolo_train::train::engine::{Engine, StepSize, Team, Turn};
use yolo_train::train::gradients::Buckets;
use yolo_train::train::optim::{Algorithm, Optimizer};
use yolo_train::train::schedule::Rates;

fn join() -> std::sync::Arc<dyn ProcessGroup> {
    mpi::join(Duration::from_secs(20)).unwrap()
}

#[test]
#[ignore = "run under mpirun"]
fn every_collective_gives_what_the_oracle_says() {
    let group = join();
    assert_eq!(group.engine(), "mpi");
    for seed in 0..4 {
        collectives::run(&*group, seed, 25);
    }
    collectives::messages(&*group, 1);
    if group.size() > 1 {
        collectives::subgroups(&*group, 2);
    }
    handshake(&*group, &[("version", "0.1.0".to_owned())]).unwrap();
}

#[test]
#[ignore = "run under mpirun"]
fn different_collectives_are_an_error_on_every_rank() {
    let group = join();
    let name = if group.rank() == 1 { "other" } else { "loss" };
    let error = group
        .all_reduce(
            Call::latency(name),
            ReduceOp::Sum,
            Buffer::F32(vec![1.0; 8]),
        )
        .wait()
        .unwrap_err();
    assert!(matches!(error, DistError::Mismatch { .. }), "{error}");
    println!("rank {}: {error}", group.rank());
    // mpirun ends the others when the first one leaves without finalising
    std::thread::sleep(Duration::from_secs(3));
}

#[test]
#[ignore = "run under mpirun"]
fn a_panic_ends_the_job() {
    let group = join();
    if group.rank() == 1 {
        panic!("rank 1 panics");
    }
    let result = group
        .all_reduce(
            Call::latency("never").within(Duration::from_secs(60)),
            ReduceOp::Sum,
            Buffer::F32(vec![1.0; 8]),
        )
        .wait();
    panic!("the job goes on: {result:?}");
}

/// Weights, average and running statistics after some steps on this rank's part of each batch, as bits.
fn trained(team: Team, algorithm: Algorithm) -> Vec<u32> {
    const SIDE: usize = 32;
    let network = Network::new(ModelSpec::resolve("yolo26n").unwrap(), 3);
    let state = init::init(&network, 0);
    let optimizer = Optimizer::new(algorithm, 5e-4, network.layout.param_len);
    let gains = Gains {
        boxes: 7.5,
        classes: 0.5,
        distances: 1.5,
    };
    let mut e = Engine::new(network, state, optimizer, gains, &Device::flex(), team);
    let rates = Rates {
        lr: 0.01,
        bias_lr: 0.02,
        momentum: 0.9,
    };
    let size = StepSize {
        reference: 64,
        full: 10,
    };
    for step in 0..20 {
        // two micro-batches a step, the second one incomplete
        for (images, ends_step) in [(6, false), (4 - step % 3, true)] {
            let own = e.lanes(images).images().unwrap();
            let one = SIDE * SIDE * 3;
            let pixels: Vec<u8> = own
                .clone()
                .flat_map(|i| {
                    (0..one).map(move |p| {
                        (init::uniform((7 * step + i) as u64, p as u64) * 255.0) as u8
                    })
                })
                .collect();
            let truths = own
                .map(|i| {
                    let at = (3 * i % 11) as f64;
                    vec![GroundTruth {
                        class: i % 3,
                        xyxy: [at, at + 1.0, at + 15.0, at + 18.0],
                    }]
                })
                .collect();
            let batch = MicroBatch {
                pixels: &pixels,
                size: (SIDE, SIDE),
                height: SIDE,
                width: SIDE,
                truths,
            };
            let turn = Turn {
                images,
                head_weights: (0.8, 0.2),
                ends_step,
            };
            e.accumulate(&batch, turn).unwrap().unwrap();
        }
        e.step(&rates, size).unwrap().unwrap();
    }
    let (s, a) = (&e.state, &e.average);
    [&s.params, &s.buffers, &a.params, &a.buffers]
        .iter()
        .flat_map(|v| v.iter().map(|v| v.to_bits()))
        .collect()
}

#[test]
#[ignore = "run under mpirun"]
fn training_over_mpi_ends_with_the_bytes_of_one_rank() {
    let group = join();
    for (algorithm, bytes) in [
        (Algorithm::Sgd, 1 << 20),
        (Algorithm::AdamW, 25 << 20),
        (Algorithm::MuSgd, 1 << 20),
    ] {
        let team = Team {
            group: group.clone(),
            buckets: Buckets {
                bytes,
                overlap: true,
            },
            ..Team::alone(4)
        };
        let over_mpi = trained(team, algorithm);
        let alone = trained(Team::alone(4), algorithm);
        assert!(over_mpi == alone, "{algorithm:?} on rank {}", group.rank());
    }
}
