//! Scalars of the networks, their losses and gradients for weights and images that are drawn from hashes, in float64.
//!
//! The committed numbers come from this program at the commit at which it also met the float64 references of
//! `golden_shared.rs`. After a change that is meant to move them: `YOLO_TRAIN_WRITE_GOLDEN=1 cargo test --release --test golden`.

// programs for GPUs are built without the reference
#![cfg(not(feature = "gpu"))]

use burn::tensor::{DType, Device, Tensor, TensorData};
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use yolo_train::config::model::ModelSpec;
use yolo_train::loss::{
    Anchors, Criterion, Gains, GroundTruth, ONE_TO_MANY, ONE_TO_ONE, head_loss,
};
use yolo_train::model::init::{State, hash_name, uniform};
use yolo_train::model::{Heads, Network, ParamKind, Tensors};

const GAINS: Gains = Gains {
    boxes: 7.5,
    classes: 0.5,
    distances: 1.5,
};
const SIZE: usize = 96;
const IMAGES: usize = 2;

/// Weights that make activations of order one: (name, index) decide, no generator's state does.
fn state(network: &Network) -> State {
    let layout = &network.layout;
    let mut s = State {
        params: vec![0.0; layout.param_len],
        buffers: vec![0.0; layout.buffer_len],
        batches_tracked: 0,
    };
    for p in &layout.params {
        let fan_in = p.shape.iter().rev().skip(1).product::<usize>().max(1) as f64;
        for (i, v) in s.params[p.range()].iter_mut().enumerate() {
            let u = 2.0 * uniform(hash_name(&p.name), i as u64) - 1.0;
            *v = match p.kind {
                ParamKind::Weight => u * (3.0 / fan_in).sqrt(),
                ParamKind::Norm => 1.0 + 0.3 * u,
                ParamKind::Bias => 0.3 * u,
                ParamKind::Constant => i as f64,
            } as f32;
        }
    }
    for n in &layout.norms {
        for (k, range) in [n.mean(), n.var()].into_iter().enumerate() {
            for (i, v) in s.buffers[range].iter_mut().enumerate() {
                let u = uniform(hash_name(&n.name), (2 * i + k) as u64);
                *v = if k == 0 { u - 0.5 } else { 0.5 + u } as f32;
            }
        }
    }
    s
}

/// A gradient with a rectangle and noise.
fn image() -> Vec<f64> {
    (0..IMAGES * SIZE * SIZE * 3)
        .map(|i| {
            let (c, x, y) = (i % 3, i / 3 % SIZE, i / 3 / SIZE % SIZE);
            let inside = (20..60).contains(&x) && (30..80).contains(&y);
            let base = if inside {
                0.8 - 0.2 * c as f64
            } else {
                (x + y) as f64 / (2 * SIZE) as f64
            };
            (base + 0.2 * (uniform(7, i as u64) - 0.5)).clamp(0.0, 1.0)
        })
        .collect()
}

fn truths() -> Vec<Vec<GroundTruth>> {
    let t = |class, xyxy| GroundTruth { class, xyxy };
    vec![
        vec![
            t(0, [20.0, 30.0, 60.0, 80.0]),
            t(3, [50.0, 50.0, 57.0, 56.0]),
            t(4, [0.0, 0.0, 95.0, 90.0]),
        ],
        vec![t(1, [10.5, 40.25, 33.0, 70.0])],
    ]
}

fn figures(name: &str) -> Map<String, Value> {
    let network = Network::new(ModelSpec::resolve(name).unwrap(), 5);
    let s = state(&network);
    let device = Device::flex().autodiff();
    let x = || {
        Tensor::<4>::from_data(
            TensorData::new(image(), [IMAGES, SIZE, SIZE, 3]),
            (&device, DType::F64),
        )
    };
    let tensors = Tensors::new(&network.layout, &s.params, &device, DType::F64);
    let out = network.forward(
        &tensors,
        x(),
        Heads {
            many: true,
            one: true,
        },
    );
    let anchors = Anchors::new(SIZE, SIZE, &network.strides);
    let mut figures = Map::new();
    let mut total: Option<Tensor<1>> = None;
    let heads = [
        ("one_to_many", out.one_to_many, ONE_TO_MANY, 0.8),
        ("one_to_one", out.one_to_one, ONE_TO_ONE, 0.2),
    ];
    for (what, head, topk, weight) in heads {
        let Some(head) = head else { continue };
        let l = head_loss(
            &head,
            &truths(),
            &anchors,
            &Criterion {
                reg_max: network.spec.reg_max,
                gains: GAINS,
                class_weights: None,
                topk,
            },
        );
        let sampled = |t: &Tensor<3>| {
            let v: Vec<f64> = t.clone().inner().into_data().try_to_vec().unwrap();
            v.iter().step_by(v.len() / 16).copied().collect::<Vec<_>>()
        };
        figures.insert(
            format!("{what}.items"),
            json!(l.sums.items(GAINS, l.score_sum)),
        );
        figures.insert(format!("{what}.score_sum"), json!(l.score_sum));
        figures.insert(format!("{what}.positives"), json!(l.positives));
        figures.insert(format!("{what}.boxes"), json!(sampled(&head.boxes)));
        figures.insert(format!("{what}.scores"), json!(sampled(&head.scores)));
        let term = l.total * (weight / l.score_sum.max(1.0));
        total = Some(match total {
            Some(t) => t + term,
            None => term,
        });
    }
    let mut grads = total.unwrap().backward();
    let gradient = tensors.gradients_f64(&network.layout, &mut grads);
    let norm = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>().sqrt();
    figures.insert("gradient.norm".into(), json!(norm(&gradient)));
    let norms: Vec<f64> = network
        .layout
        .params
        .iter()
        .step_by(7)
        .map(|p| norm(&gradient[p.range()]))
        .collect();
    figures.insert("gradient.norms_of_every_seventh".into(), json!(norms));
    let mut buffers = s.buffers.clone();
    out.collected
        .update_running(&network.layout, &mut buffers, 0.03);
    let sum = buffers.iter().map(|&v| f64::from(v)).sum::<f64>();
    figures.insert("running_statistics.sum".into(), json!(sum));

    let device = Device::flex();
    let tensors = Tensors::new(&network.layout, &s.params, &device, DType::F64)
        .with_running_stats(&network.layout, &s.buffers);
    let x = Tensor::<4>::from_data(
        TensorData::new(image(), [IMAGES, SIZE, SIZE, 3]),
        (&device, DType::F64),
    );
    let head = network
        .forward(
            &tensors,
            x,
            Heads {
                many: true,
                one: false,
            },
        )
        .one_to_many
        .unwrap();
    let mean = |t: Tensor<3>| t.mean().into_scalar::<f64>();
    figures.insert(
        "evaluation.means".into(),
        json!([mean(head.boxes), mean(head.scores)]),
    );
    figures
}

fn numbers(v: &Value) -> Vec<f64> {
    match v {
        Value::Array(a) => a.iter().map(|v| v.as_f64().unwrap()).collect(),
        v => vec![v.as_f64().unwrap()],
    }
}

fn check(name: &str) {
    let path = PathBuf::from(format!(
        "{}/tests/golden/{name}.json",
        env!("CARGO_MANIFEST_DIR")
    ));
    let ours = figures(name);
    if std::env::var_os("YOLO_TRAIN_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, serde_json::to_string_pretty(&ours).unwrap() + "\n").unwrap();
        return;
    }
    let committed: Map<String, Value> =
        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(
        ours.keys().collect::<Vec<_>>(),
        committed.keys().collect::<Vec<_>>()
    );
    let total = committed["gradient.norm"].as_f64().unwrap();
    for (key, value) in &ours {
        let (a, b) = (numbers(value), numbers(&committed[key]));
        assert_eq!(a.len(), b.len(), "{key}");
        for (i, (a, b)) in a.iter().zip(&b).enumerate() {
            // a gradient that is mathematically zero has only rounding in it
            let floor = if key.starts_with("gradient") {
                1e-9 * total
            } else {
                1e-9
            };
            assert!(
                (a - b).abs() <= 1e-7 * b.abs() + floor,
                "{name} {key}[{i}]: {a} against {b}"
            );
        }
    }
}

#[test]
fn yolo26n_gives_the_committed_figures() {
    check("yolo26n");
}
#[test]
fn yolo11n_gives_the_committed_figures() {
    check("yolo11n");
}
#[test]
fn yolov8n_gives_the_committed_figures() {
    check("yolov8n");
}
