//! Forward passes with fixed weights.

use crate::data::batch::Batch;
use crate::loss::anchors::distances;
use crate::loss::{
    Anchors, Criterion, Gains, GroundTruth, MicroBatch, ONE_TO_MANY, ONE_TO_ONE, ShownLoss,
    weighted_loss,
};
use crate::model::init::State;
use crate::model::{Heads, Network, Output, Tensors};
use burn::tensor::{DType, Device, Tensor};
use std::sync::Arc;

/// A batch of the loader as the network and the loss take it.
#[must_use]
pub fn micro_batch(batch: &Batch) -> MicroBatch<'_> {
    let mut truths = vec![vec![]; batch.len()];
    for b in &batch.boxes {
        truths[b.image].push(GroundTruth {
            class: b.class,
            xyxy: b.xyxy.map(f64::from),
        });
    }
    MicroBatch {
        pixels: &batch.pixels,
        height: batch.height,
        width: batch.width,
        truths,
    }
}

/// A network with fixed weights on one device: validation.
pub struct Inference<'a> {
    network: &'a Network,
    tensors: Tensors,
    device: Device,
    gains: Gains,
    class_weights: Option<Arc<[f64]>>,
}

/// Raw outputs of a batch, on the host.
pub struct Inferred {
    /// `[n, anchors, 4 * reg_max]`
    pub boxes: Vec<f32>,
    /// `[n, anchors, classes]` logits.
    pub scores: Vec<f32>,
    pub anchors: Anchors,
}

impl<'a> Inference<'a> {
    /// Uploads `state`.
    #[must_use]
    pub fn new(network: &'a Network, state: &State, gains: Gains, device: &Device) -> Self {
        let layout = &network.layout;
        let tensors = Tensors::new(layout, &state.params, device, DType::F32)
            .with_running_stats(layout, &state.buffers);
        Self {
            network,
            tensors,
            device: device.clone(),
            gains,
            class_weights: None,
        }
    }

    #[must_use]
    pub fn network(&self) -> &'a Network {
        self.network
    }

    /// The loss weighs the classes as training does.
    #[must_use]
    pub fn with_class_weights(mut self, weights: Option<Arc<[f64]>>) -> Self {
        self.class_weights = weights;
        self
    }

    /// Outputs of the one-to-many head, or of the one-to-one head (`end_to_end`), where there are both.
    #[must_use]
    pub fn run(&self, batch: &MicroBatch, end_to_end: bool) -> Inferred {
        let one = self.network.spec.one_to_one && end_to_end;
        let out = self.forward(batch, Heads { many: !one, one });
        self.read(batch, out, one)
    }

    /// As [`run`](Self::run), with the loss of the head whose items are shown.
    #[must_use]
    pub fn run_with_loss(&self, batch: &MicroBatch, end_to_end: bool) -> (Inferred, ShownLoss) {
        let two = self.network.spec.one_to_one;
        let heads = Heads {
            many: !(two && end_to_end),
            one: two,
        };
        let out = self.forward(batch, heads);
        let anchors = Anchors::new(batch.height, batch.width, &self.network.strides);
        let (lossy, topk) = match &out.one_to_one {
            Some(o) => (o, ONE_TO_ONE),
            None => (
                out.one_to_many.as_ref().expect("one head is there"),
                ONE_TO_MANY,
            ),
        };
        let c = Criterion {
            reg_max: self.network.spec.reg_max,
            gains: self.gains,
            class_weights: self.class_weights.as_deref(),
            topk,
        };
        let lanes = self.tensors.lanes();
        let loss = weighted_loss(lossy, &batch.truths, &anchors, &c, 1.0, lanes).1;
        let loss = ShownLoss::over_lanes(&loss);
        (self.read(batch, out, two && end_to_end), loss)
    }

    fn forward(&self, batch: &MicroBatch, heads: Heads) -> Output {
        self.network
            .forward(&self.tensors, batch.image(&self.device), heads)
    }

    fn read(&self, batch: &MicroBatch, out: Output, one_to_one: bool) -> Inferred {
        let used = if one_to_one {
            out.one_to_one
        } else {
            out.one_to_many
        };
        let used = used.expect("the head that was asked for");
        let read = |t: Tensor<3>| t.into_data().try_to_vec::<f32>().expect("float32 outputs");
        Inferred {
            boxes: read(used.boxes),
            scores: read(used.scores),
            anchors: Anchors::new(batch.height, batch.width, &self.network.strides),
        }
    }
}

impl Inferred {
    /// Boxes `x1 y1 x2 y2` in pixels `[anchors, 4]` and probabilities `[anchors, classes]` of an image.
    #[must_use]
    pub fn decode(&self, image: usize, classes: usize, reg_max: usize) -> (Vec<f32>, Vec<f32>) {
        let n = self.anchors.len();
        let width = 4 * reg_max;
        let raw = &self.boxes[image * n * width..(image + 1) * n * width];
        let boxes = (0..n).flat_map(|a| {
            let d = distances(|i| f64::from(raw[a * width + i]), reg_max);
            self.anchors.to_box(a, d).map(|v| v as f32)
        });
        let logits = &self.scores[image * n * classes..(image + 1) * n * classes];
        (
            boxes.collect(),
            logits.iter().map(|&l| 1.0 / (1.0 + (-l).exp())).collect(),
        )
    }
}
