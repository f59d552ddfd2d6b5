//! Forward passes with fixed weights.

use crate::data::batch::Batch;
use crate::loss::anchors::distances;
#[cfg(feature = "gpu")]
use crate::loss::device as device_loss;
use crate::loss::{
    Anchors, Criterion, Gains, GroundTruth, MicroBatch, ONE_TO_MANY, ONE_TO_ONE, ShownLoss,
    weighted_loss,
};
use crate::model::init::State;
use crate::model::{HeadOutput, Heads, Network, Output, Tensors};
use crate::ops;
use crate::ops::DeviceFailure;
use crate::ops::cpu::lanes::Lanes;
use burn::tensor::{DType, Device, Tensor};
use std::sync::Arc;

/// A batch of the loader as the network and the loss take it.
#[must_use]
pub fn micro_batch(batch: &Batch) -> MicroBatch<'_> {
    let (height, width) = batch.input;
    let scale_y = height as f64 / batch.height as f64;
    let scale_x = width as f64 / batch.width as f64;
    let mut truths = vec![vec![]; batch.len()];
    for b in &batch.boxes {
        truths[b.image].push(GroundTruth {
            class: b.class,
            xyxy: [0, 1, 2, 3].map(|i| f64::from(b.xyxy[i]) * [scale_x, scale_y][i % 2]),
        });
    }
    MicroBatch {
        pixels: &batch.pixels,
        size: (batch.height, batch.width),
        height,
        width,
        truths,
    }
}

/// Why a batch could not be computed.
#[derive(Debug, thiserror::Error)]
pub enum InferError {
    /// It needs more memory than the GPU has.
    #[error(
        "out of memory on the GPU: {images} images of {width}x{height} did not fit; give a smaller --batch or --imgsz"
    )]
    Memory {
        images: usize,
        height: usize,
        width: usize,
    },
    #[error(transparent)]
    Device(DeviceFailure),
}

impl InferError {
    fn of(e: DeviceFailure, batch: &MicroBatch) -> Self {
        match e {
            DeviceFailure::Memory(_) => Self::Memory {
                images: batch.truths.len(),
                height: batch.height,
                width: batch.width,
            },
            e => Self::Device(e),
        }
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
    ///
    /// # Errors
    /// [`InferError`].
    pub fn run(&self, batch: &MicroBatch, end_to_end: bool) -> Result<Inferred, InferError> {
        let one = self.network.spec.one_to_one && end_to_end;
        let out = self.forward(batch, Heads { many: !one, one });
        self.read(batch, out, one)
    }

    /// As [`run`](Self::run), with the loss of the head whose items are shown.
    ///
    /// # Errors
    /// [`InferError`].
    pub fn run_with_loss(
        &self,
        batch: &MicroBatch,
        end_to_end: bool,
    ) -> Result<(Inferred, ShownLoss), InferError> {
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
        let loss = loss_of(lossy, &batch.truths, &anchors, &c, self.tensors.lanes());
        let loss = loss.map_err(|e| InferError::of(e, batch))?;
        let read = self.read(batch, out, two && end_to_end)?;
        Ok((read, ShownLoss::over_lanes(&loss)))
    }

    fn forward(&self, batch: &MicroBatch, heads: Heads) -> Output {
        self.network
            .forward(&self.tensors, batch.image(&self.device, DType::F32), heads)
    }

    fn read(
        &self,
        batch: &MicroBatch,
        out: Output,
        one_to_one: bool,
    ) -> Result<Inferred, InferError> {
        let used = if one_to_one {
            out.one_to_one
        } else {
            out.one_to_many
        };
        let used = used.expect("the head that was asked for");
        let read = |t: Tensor<3>| ops::values(t).map_err(|e| InferError::of(e, batch));
        Ok(Inferred {
            boxes: read(used.boxes)?,
            scores: read(used.scores)?,
            anchors: Anchors::new(batch.height, batch.width, &self.network.strides),
        })
    }
}

/// What is shown of a head's loss, by lanes: on GPUs computed there.
fn loss_of(
    head: &HeadOutput,
    truths: &[Vec<GroundTruth>],
    anchors: &Anchors,
    c: &Criterion,
    lanes: &Lanes,
) -> Result<Vec<ShownLoss>, DeviceFailure> {
    #[cfg(feature = "gpu")]
    if ops::on_gpu(&head.scores) {
        return device_loss::shown_loss(head, truths, anchors, c, lanes);
    }
    Ok(weighted_loss(head, truths, anchors, c, 1.0, lanes).1)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::batch::{BatchBox, BatchImage, Letterbox};

    #[test]
    fn boxes_are_scaled_to_what_the_network_takes() {
        let batch = Batch {
            height: 4,
            width: 8,
            input: (8, 4),
            pixels: (0..4 * 8 * 3).collect(),
            images: vec![BatchImage {
                index: 0,
                letterbox: Letterbox::IDENTITY,
            }],
            boxes: vec![BatchBox {
                image: 0,
                class: 3,
                xyxy: [1.0, 1.0, 7.0, 3.5],
            }],
        };
        let micro = micro_batch(&batch);
        assert_eq!((micro.height, micro.width), (8, 4));
        assert_eq!(micro.truths[0][0].xyxy, [0.5, 2.0, 3.5, 7.0]);
        let image = micro.image(&Device::flex(), DType::F32);
        assert_eq!(image.dims(), [1, 8, 4, 3]);
    }
}
