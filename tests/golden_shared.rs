//! The network, its loss and its gradients against float64 references (`shared/golden`).

// programs for GPUs are built without the reference
#![cfg(not(feature = "gpu"))]

#[path = "support/isa.rs"]
mod isa;
#[path = "support/shared.rs"]
mod support;

use burn::tensor::{DType, Device, Tensor, TensorData};
use safetensors::SafeTensors;
use serde_json::Value;
use std::path::{Path, PathBuf};
use yolo_train::config::model::ModelSpec;
use yolo_train::loss::{
    Anchors, Criterion, Gains, GroundTruth, HeadLoss, ONE_TO_MANY, ONE_TO_ONE, head_loss,
};
use yolo_train::model::init::{NORM_MOMENTUM, State};
use yolo_train::model::weights::WeightsFile;
use yolo_train::model::{HeadOutput, Heads, Network, Output, Tensors};

const GAINS: Gains = Gains {
    boxes: 7.5,
    classes: 0.5,
    distances: 1.5,
};

struct Golden {
    folder: PathBuf,
    network: Network,
    state: State,
    meta: Value,
    image: Vec<f64>,
    truths: Vec<Vec<GroundTruth>>,
    n: usize,
}

fn tensors(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
fn floats(file: &SafeTensors, name: &str) -> Vec<f32> {
    let t = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
    match t.dtype() {
        safetensors::Dtype::F32 => t
            .data()
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect(),
        safetensors::Dtype::I64 => t
            .data()
            .chunks_exact(8)
            .map(|b| i64::from_le_bytes(b.try_into().unwrap()) as f32)
            .collect(),
        d => panic!("{name} is {d:?}"),
    }
}

impl Golden {
    fn open(name: &str) -> Option<Self> {
        let folder = support::shared("golden")?.join(name);
        let meta: Value = serde_json::from_slice(&tensors(&folder.join("meta.json"))).unwrap();
        let classes = meta["nc"].as_u64().unwrap() as usize;
        let network = Network::new(
            ModelSpec::resolve(name.split('_').next().unwrap()).unwrap(),
            classes,
        );
        assert_eq!(
            network.parameters() as u64,
            meta["parameters"].as_u64().unwrap(),
            "parameters"
        );
        let file = WeightsFile::open(&folder.join("weights.safetensors")).unwrap();
        let state = file.load(&network.layout, name, classes).unwrap();
        let batch = tensors(&folder.join("batch.safetensors"));
        let batch = SafeTensors::deserialize(&batch).unwrap();
        let view = batch.tensor("img_u8").unwrap();
        let [n, _, h, w] = *view.shape() else {
            panic!("shape")
        };
        let mut image = vec![0.0; n * h * w * 3];
        for (i, v) in view.data().iter().enumerate() {
            let (image_index, c, p) = (i / (3 * h * w), i / (h * w) % 3, i % (h * w));
            image[(image_index * h * w + p) * 3 + c] = f64::from(*v) / 255.0;
        }
        let mut truths = vec![vec![]; n];
        let (cls, boxes, index) = (
            floats(&batch, "cls"),
            floats(&batch, "bboxes_xywh_normalised"),
            floats(&batch, "batch_idx"),
        );
        for ((c, b), i) in cls.iter().zip(boxes.chunks_exact(4)).zip(index) {
            let b: Vec<f64> = b.iter().map(|&v| f64::from(v)).collect();
            let (w, h) = (w as f64, h as f64);
            let xyxy = [
                (b[0] - b[2] / 2.0) * w,
                (b[1] - b[3] / 2.0) * h,
                (b[0] + b[2] / 2.0) * w,
                (b[1] + b[3] / 2.0) * h,
            ];
            truths[i as usize].push(GroundTruth {
                class: *c as usize,
                xyxy,
            });
        }
        Some(Self {
            folder,
            network,
            state,
            meta,
            image,
            truths,
            n,
        })
    }

    fn image(&self, device: &Device, dtype: DType) -> Tensor<4> {
        let data = TensorData::new(self.image.clone(), [self.n, 320, 320, 3]).convert_dtype(dtype);
        Tensor::from_data(data, (device, dtype))
    }

    fn train_pass(&self, dtype: DType) -> (Tensors, Output) {
        let device = Device::flex().autodiff();
        let t = Tensors::new(&self.network.layout, &self.state.params, &device, dtype);
        let out = self.network.forward(
            &t,
            self.image(&device, dtype),
            Heads {
                many: true,
                one: true,
            },
        );
        (t, out)
    }

    fn losses(&self, out: &Output) -> Vec<(f64, HeadLoss)> {
        let anchors = Anchors::new(320, 320, &self.network.strides);
        let loss = |o: &HeadOutput, topk| {
            head_loss(
                o,
                &self.truths,
                &anchors,
                &Criterion {
                    reg_max: self.network.spec.reg_max,
                    gains: GAINS,
                    class_weights: None,
                    topk,
                },
            )
        };
        let many = loss(out.one_to_many.as_ref().unwrap(), ONE_TO_MANY);
        match &out.one_to_one {
            Some(o) => vec![(0.8, many), (0.2, loss(o, ONE_TO_ONE))],
            None => vec![(1.0, many)],
        }
    }
}

fn values(t: Tensor<3>) -> Vec<f64> {
    t.inner().into_data().convert::<f64>().try_to_vec().unwrap()
}

/// `[n, anchors, c]` against the reference's `[n, c, anchors]`.
fn compare_outputs(
    ours: &[f64],
    reference: &[f32],
    n: usize,
    anchors: usize,
    tolerance: f64,
    what: &str,
) {
    let c = ours.len() / n / anchors;
    assert_eq!(ours.len(), reference.len(), "{what}");
    let mut worst = 0.0f64;
    for (i, &r) in reference.iter().enumerate() {
        let (image, ch, a) = (i / (c * anchors), i / anchors % c, i % anchors);
        worst = worst.max((ours[(image * anchors + a) * c + ch] - f64::from(r)).abs());
    }
    println!("{what}: largest difference {worst:.2e}");
    assert!(worst < tolerance, "{what}: {worst} >= {tolerance}");
}

fn check_outputs(name: &str, dtype: DType) {
    let Some(g) = Golden::open(name) else { return };
    let (_, out) = g.train_pass(dtype);
    let file = tensors(&g.folder.join("train_outputs.safetensors"));
    let file = SafeTensors::deserialize(&file).unwrap();
    let two = out.one_to_one.is_some();
    for (prefix, head) in [
        ("one2many.", out.one_to_many.clone()),
        ("one2one.", out.one_to_one.clone()),
    ] {
        let Some(head) = head else { continue };
        let prefix = if two { prefix } else { "" };
        for (key, t) in [("boxes", head.boxes), ("scores", head.scores)] {
            let key = format!("{prefix}{key}");
            compare_outputs(
                &values(t),
                &floats(&file, &key),
                g.n,
                2100,
                1e-3,
                &format!("{name} {key}"),
            );
        }
    }
    let file = tensors(&g.folder.join("running_stats_after_one_forward.safetensors"));
    let file = SafeTensors::deserialize(&file).unwrap();
    let mut buffers = g.state.buffers.clone();
    out.collected
        .update_running(&g.network.layout, &mut buffers, NORM_MOMENTUM);
    let mut worst = 0.0f32;
    for n in &g.network.layout.norms {
        for (key, range) in [("running_mean", n.mean()), ("running_var", n.var())] {
            for (a, b) in buffers[range]
                .iter()
                .zip(floats(&file, &format!("{}.{key}", n.name)))
            {
                worst = worst.max((a - b).abs() / b.abs().max(1.0));
            }
        }
    }
    println!("{name}: running statistics differ by {worst:.2e}");
    assert!(worst < 1e-4, "running statistics differ by {worst}");
}

fn check_decoded(name: &str) {
    let Some(g) = Golden::open(name) else { return };
    let device = Device::flex();
    let layout = &g.network.layout;
    let t = Tensors::new(layout, &g.state.params, &device, DType::F32)
        .with_running_stats(layout, &g.state.buffers);
    let out = g.network.forward(
        &t,
        g.image(&device, DType::F32),
        Heads {
            many: true,
            one: false,
        },
    );
    let head = out.one_to_many.unwrap();
    let anchors = Anchors::new(320, 320, &g.network.strides);
    let (boxes, scores) = (values(head.boxes), values(head.scores));
    let file = tensors(&g.folder.join("eval_outputs.safetensors"));
    let file = SafeTensors::deserialize(&file).unwrap();
    let reference = floats(&file, "decoded");
    let (classes, width) = (g.network.classes, 4 * g.network.spec.reg_max);
    let (mut worst_box, mut worst_score) = (0.0f64, 0.0f64);
    for image in 0..g.n {
        for a in 0..2100 {
            let row = (image * 2100 + a) * width;
            let b = anchors.to_box(
                a,
                yolo_train::loss::anchors::distances(|i| boxes[row + i], g.network.spec.reg_max),
            );
            let xywh = [
                (b[0] + b[2]) / 2.0,
                (b[1] + b[3]) / 2.0,
                b[2] - b[0],
                b[3] - b[1],
            ];
            let at = |c: usize| f64::from(reference[(image * (4 + classes) + c) * 2100 + a]);
            xywh.iter()
                .enumerate()
                .for_each(|(c, v)| worst_box = worst_box.max((v - at(c)).abs()));
            for c in 0..classes {
                let p = 1.0 / (1.0 + (-scores[(image * 2100 + a) * classes + c]).exp());
                worst_score = worst_score.max((p - at(4 + c)).abs());
            }
        }
    }
    println!("{name}: decoded boxes differ by {worst_box:.2e} px, scores by {worst_score:.2e}");
    assert!(worst_box < 0.01 && worst_score < 1e-3);
}

fn check_loss_and_gradients(name: &str, dtype: DType) {
    let Some(g) = Golden::open(name) else { return };
    let (t, out) = g.train_pass(dtype);
    let losses = g.losses(&out);
    let batch = g.n as f64;
    let mut total: Option<Tensor<1>> = None;
    let mut weighted = [0.0; 3];
    for (i, (weight, l)) in losses.iter().enumerate() {
        let items = l.sums.items(GAINS, l.score_sum);
        if losses.len() == 2 {
            let key = ["one2many_items", "one2one_items"][i];
            for (item, name) in items.iter().zip(["box_loss", "cls_loss", "l1_loss"]) {
                close(
                    *item,
                    g.meta[key][name].as_f64().unwrap(),
                    1e-4,
                    &format!("{key} {name}"),
                );
            }
        }
        items
            .iter()
            .zip(&mut weighted)
            .for_each(|(a, w)| *w += a * weight * batch);
        let term = l.total.clone() * (weight * batch / l.score_sum.max(1.0));
        total = Some(match total {
            Some(t) => t + term,
            None => term,
        });
    }
    for (i, w) in weighted.iter().enumerate() {
        close(
            *w,
            g.meta["loss_times_batch"][i].as_f64().unwrap(),
            1e-4,
            &format!("loss component {i}"),
        );
    }
    let mut grads = total.unwrap().backward();
    let ours = t.gradients_f64(&g.network.layout, &mut grads);
    let total_norm = g.meta["total_grad_norm"].as_f64().unwrap();
    let norm = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>().sqrt();
    close(norm(&ours), total_norm, 1e-3, "total gradient norm");
    let file = std::fs::read(g.folder.join("grads.safetensors")).ok();
    let file = file.as_ref().map(|b| SafeTensors::deserialize(b).unwrap());
    let mut worst = 0.0f64;
    let mut checked = 0;
    for p in &g.network.layout.params {
        let Some(reference_norm) = g.meta["grad_norm"][&p.name].as_f64() else {
            continue;
        };
        checked += 1;
        let mine = &ours[p.range()];
        let (difference, scale) = match &file {
            Some(f) => {
                let reference = floats(f, &p.name);
                let [kh, kw, ci, co] =
                    *[&p.shape[..], &[1; 3]].concat().first_chunk::<4>().unwrap();
                let reordered: Vec<f64> = if p.shape.len() == 4 {
                    (0..reference.len())
                        .map(|i| {
                            let (o, c, k) = (i % co, i / co % ci, i / (co * ci));
                            f64::from(reference[(o * ci + c) * kh * kw + k])
                        })
                        .collect()
                } else {
                    reference.iter().map(|&v| f64::from(v)).collect()
                };
                (
                    norm(
                        &mine
                            .iter()
                            .zip(&reordered)
                            .map(|(a, b)| a - b)
                            .collect::<Vec<_>>(),
                    ),
                    norm(&reordered),
                )
            }
            None => ((norm(mine) - reference_norm).abs(), reference_norm),
        };
        let bound = 1e-3 * scale + 1e-6 * total_norm;
        worst = worst.max(difference / bound);
        assert!(
            difference <= bound,
            "{}: |difference| {difference:.3e} > {bound:.3e}",
            p.name
        );
    }
    println!("{name}: {checked} gradients, the worst at {worst:.3} of the bound");
    let trained = g
        .network
        .layout
        .params
        .iter()
        .filter(|p| p.kind != yolo_train::model::ParamKind::Constant)
        .count();
    assert_eq!(checked, trained, "every trained parameter has a reference");
}

fn close(a: f64, b: f64, relative: f64, what: &str) {
    assert!(
        (a - b).abs() <= relative * b.abs(),
        "{what}: {a} against {b}"
    );
}

macro_rules! golden {
    ($($name:ident)*) => { $(mod $name {
        use super::*;
        #[test]
        fn raw_outputs_and_running_statistics_match_the_shared_reference_in_float64() { check_outputs(stringify!($name), DType::F64); }
        #[test]
        fn raw_outputs_and_running_statistics_match_the_shared_reference_in_float32() { check_outputs(stringify!($name), DType::F32); }
        #[test]
        fn decoded_boxes_match_the_shared_reference() { check_decoded(stringify!($name)); }
        #[test]
        fn losses_and_gradients_match_the_shared_reference_in_float64() { check_loss_and_gradients(stringify!($name), DType::F64); }
        #[test]
        fn losses_and_gradients_match_the_shared_reference_in_float32() { check_loss_and_gradients(stringify!($name), DType::F32); }
    })* };
}
golden!(yolo26n_nc80 yolo26n_nc3 yolo11n_nc80 yolov8n_nc3);

#[test]
fn the_float32_shared_references_hold_under_every_instruction_set() {
    isa::under_every_other_isa("in_float32");
}
