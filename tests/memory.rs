//! A training step finds the memory of earlier steps again.

#![cfg(target_os = "linux")]

use burn::tensor::Device;
use yolo_train::config::model::ModelSpec;
use yolo_train::loss::{Gains, GroundTruth, MicroBatch};
use yolo_train::model::{Network, init};
use yolo_train::train::engine::{Engine, StepSize, Team, Turn};
use yolo_train::train::optim::{Algorithm, Optimizer};
use yolo_train::train::schedule::Rates;

/// Pages that the system has given this process so far.
fn page_faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // fields are counted behind the program's name, which may hold spaces
    stat.rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .nth(7)
        .unwrap()
        .parse()
        .unwrap()
}

#[test]
fn after_the_second_step_a_step_takes_next_to_no_new_memory() {
    let network = Network::new(ModelSpec::resolve("yolo26n").unwrap(), 80);
    let state = init::init(&network, 0);
    let gains = Gains {
        boxes: 7.5,
        classes: 0.5,
        distances: 1.5,
    };
    let optimizer = Optimizer::new(Algorithm::Sgd, 5e-4, network.layout.param_len);
    let mut engine = Engine::new(
        network,
        state,
        optimizer,
        gains,
        &Device::flex(),
        Team::alone(4),
    );
    let (n, size) = (4, 192);
    let pixels: Vec<u8> = (0..n * size * size * 3)
        .map(|i| (i * 7 % 251) as u8)
        .collect();
    let truths = vec![
        vec![
            GroundTruth {
                class: 1,
                xyxy: [20.0, 30.0, 120.0, 150.0]
            };
            3
        ];
        n
    ];
    let batch = MicroBatch {
        pixels: &pixels,
        size: (size, size),
        height: size,
        width: size,
        truths,
    };
    let rates = Rates {
        lr: 1e-4,
        bias_lr: 1e-4,
        momentum: 0.9,
    };
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(2)
        .build()
        .unwrap();
    let turn = Turn {
        images: n,
        head_weights: (0.8, 0.2),
        ends_step: true,
    };
    let mut faults = vec![page_faults()];
    pool.install(|| {
        for _ in 0..8 {
            engine.accumulate(&batch, turn).unwrap().unwrap();
            engine
                .step(
                    &rates,
                    StepSize {
                        reference: 64,
                        full: n,
                    },
                )
                .unwrap();
            faults.push(page_faults());
        }
    });
    let each: Vec<u64> = faults.windows(2).map(|w| w[1] - w[0]).collect();
    println!("page faults of each step: {each:?}");
    let later = each[3..].iter().sum::<u64>() / each[3..].len() as u64;
    assert!(later * 10 < each[0], "{each:?}");
}
