//! Times a training step on the CPU: `cargo run --release --example step -- MODEL SIZE BATCH STEPS`.

use burn::tensor::{DType, Device, Tensor, TensorData};
use std::time::Instant;
use yolo_train::config::model::ModelSpec;
use yolo_train::loss::{
    Anchors, Criterion, Gains, GroundTruth, ONE_TO_MANY, ONE_TO_ONE, head_loss,
};
use yolo_train::model::{Heads, Network, Tensors, init};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let get = |i: usize, d: usize| args.get(i).map_or(d, |a| a.parse().expect("a number"));
    let model = args.get(1).map_or("yolo26n", String::as_str);
    let (size, batch, steps) = (get(2, 320), get(3, 4), get(4, 5));
    let network = Network::new(ModelSpec::resolve(model).expect("model"), 80);
    let state = init::init(&network, 0);
    let device = Device::flex().autodiff();
    let pixels: Vec<f32> = (0..batch * size * size * 3)
        .map(|i| init::uniform(1, i as u64) as f32)
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
    let anchors = Anchors::new(size, size, &network.strides);
    let gains = Gains {
        boxes: 7.5,
        classes: 0.5,
        distances: 1.5,
    };
    let mut flat = vec![0.0; network.layout.param_len];
    for step in 0..steps {
        let start = Instant::now();
        let t = Tensors::new(&network.layout, &state.params, &device, DType::F32);
        let x = Tensor::<4>::from_data(
            TensorData::new(pixels.clone(), [batch, size, size, 3]),
            &device,
        );
        let out = network.forward(
            &t,
            x,
            Heads {
                many: true,
                one: true,
            },
        );
        let forward = start.elapsed();
        let c = |topk| Criterion {
            reg_max: network.spec.reg_max,
            gains,
            topk,
        };
        let mut loss = head_loss(
            out.one_to_many.as_ref().expect("asked"),
            &truths,
            &anchors,
            &c(ONE_TO_MANY),
        )
        .total;
        if let Some(o) = &out.one_to_one {
            loss = loss + head_loss(o, &truths, &anchors, &c(ONE_TO_ONE)).total;
        }
        let lossed = start.elapsed();
        let mut grads = loss.backward();
        t.accumulate_gradients(&network.layout, &mut grads, &mut flat);
        let all = start.elapsed();
        println!(
            "step {step}: forward {forward:.1?}, loss {:.1?}, backward {:.1?}, {:.2} images/s",
            lossed - forward,
            all - lossed,
            batch as f64 / all.as_secs_f64()
        );
    }
}
