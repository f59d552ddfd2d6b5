//! A head's loss as training takes it: value and gradient in one pass where the kernels apply.

use super::{
    Anchors, Criterion, GroundTruth, RawHead, ShownLoss, head_loss, head_loss_and_gradient,
};
use crate::model::HeadOutput;
use crate::ops;
use crate::ops::cpu::lanes::Lanes;
use burn::tensor::Tensor;
use std::sync::{Arc, OnceLock};

/// `weight` times the gained numerators as a tensor whose backward pass gives their gradient, and what is shown of each
/// lane (without kernels, everything in the first).
///
/// In float32 on the CPU the tensor's value is 0: value and gradient were computed at once, outside the graph, and
/// only the gradient enters it. Elsewhere it is the reference of [`head_loss`].
pub fn weighted_loss(
    out: &HeadOutput,
    truths: &[Vec<GroundTruth>],
    anchors: &Anchors,
    c: &Criterion,
    weight: f64,
    lanes: &Lanes,
) -> (Tensor<1>, Vec<ShownLoss>) {
    let lanes = lanes.cut(truths.len());
    if !ops::kernels_apply(&out.scores) {
        let loss = head_loss(out, truths, anchors, c);
        let mut shown = vec![ShownLoss::default(); lanes.len()];
        if let Some(first) = shown.first_mut() {
            *first = ShownLoss::of(Some(&loss));
        }
        return (loss.total * weight, shown);
    }
    let found = Arc::new(OnceLock::new());
    let (found_by, anchors, truths) = (found.clone(), anchors.clone(), truths.to_vec());
    let (reg_max, gains, topk) = (c.reg_max, c.gains, c.topk);
    let class_weights = c.class_weights.map(<[f64]>::to_vec);
    let classes = out.scores.dims()[2];
    let run = move |boxes: &[f32], scores: &[f32], d_boxes: &mut [f32], d_scores: &mut [f32]| {
        let raw = RawHead {
            boxes,
            scores,
            classes,
        };
        let isa = ops::isa();
        let c = Criterion {
            reg_max,
            gains,
            class_weights: class_weights.as_deref(),
            topk,
        };
        let loss = head_loss_and_gradient(
            isa, raw, &truths, &anchors, &c, weight, &lanes, d_boxes, d_scores,
        );
        // it is called once
        let _ = found_by.set(loss);
    };
    let (d_boxes, d_scores) = ops::on_slices(out.boxes.clone(), out.scores.clone(), Arc::new(run));
    let loss: &Vec<super::FastLoss> = found.get().expect("the function ran");
    let total = ops::with_gradient(out.boxes.clone(), d_boxes)
        + ops::with_gradient(out.scores.clone(), d_scores);
    let shown = loss.iter().map(|l| ShownLoss {
        sums: l.sums,
        score_sum: l.score_sum,
    });
    (total, shown.collect())
}
