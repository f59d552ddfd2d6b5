//! Times training steps on the CPU: `cargo run --release --example step -- MODEL SIZE BATCH STEPS`.

use burn::tensor::Device;
use std::time::Instant;
use yolo_train::config::model::ModelSpec;
use yolo_train::loss::{Gains, GroundTruth, MicroBatch};
use yolo_train::model::{Network, init};
use yolo_train::train::engine::{Engine, StepSize};
use yolo_train::train::optim::{Algorithm, Optimizer};
use yolo_train::train::schedule::Rates;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let get = |i: usize, d: usize| args.get(i).map_or(d, |a| a.parse().expect("a number"));
    let model = args.get(1).map_or("yolo26n", String::as_str);
    let (size, batch, steps) = (get(2, 320), get(3, 4), get(4, 5));
    let network = Network::new(ModelSpec::resolve(model).expect("model"), 80);
    let state = init::init(&network, 0);
    let gains = Gains {
        boxes: 7.5,
        classes: 0.5,
        distances: 1.5,
    };
    let optimizer = Optimizer::new(Algorithm::Sgd, 5e-4, network.layout.param_len);
    let mut engine = Engine::new(network, state, optimizer, gains, &Device::flex());
    let pixels: Vec<u8> = (0..batch * size * size * 3)
        .map(|i| (init::uniform(1, i as u64) * 255.0) as u8)
        .collect();
    let truths = vec![
        vec![
            GroundTruth {
                class: 1,
                xyxy: [20.0, 30.0, 120.0, 150.0]
            };
            8
        ];
        batch
    ];
    let b = MicroBatch {
        pixels: &pixels,
        height: size,
        width: size,
        truths,
    };
    let rates = Rates {
        lr: 1e-4,
        bias_lr: 1e-4,
        momentum: 0.9,
    };
    let threads = std::env::var("THREADS").map_or(2, |t| t.parse().expect("a number"));
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .expect("threads");
    pool.install(|| {
        let mut times = vec![];
        for _ in 0..steps {
            let start = Instant::now();
            engine.accumulate(&b, (0.8, 0.2)).expect("finite");
            let micro = start.elapsed();
            engine
                .step(
                    &rates,
                    StepSize {
                        reference: 64,
                        full: batch,
                    },
                )
                .expect("finite");
            times.push((start.elapsed().as_secs_f64(), start.elapsed() - micro));
        }
        times.sort_by(|a, b| a.0.total_cmp(&b.0));
        let median = times[steps / 2];
        println!(
            "{model} {size} {batch}: median {:.1} ms, min {:.1}; {:.2} images/s, optimizer {:.1?}",
            median.0 * 1e3,
            times[0].0 * 1e3,
            batch as f64 / median.0,
            median.1
        );
    });
}
