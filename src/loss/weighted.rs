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
/// The tensor's value is 0 where there is a graph: value and gradient were computed outside of it, by kernels in float32
/// on the CPU and by [`head_loss`] elsewhere, and only the gradient enters it.
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
        if !ops::HAS_REFERENCE {
            unreachable!("{}", ops::NO_REFERENCE);
        }
        // on a graph of its own: the network's must not depend on what is in the images, as every rank has to come to
        // the same collectives
        let apart = HeadOutput {
            boxes: out.boxes.clone().detach().require_grad(),
            scores: out.scores.clone().detach().require_grad(),
        };
        let loss = head_loss(&apart, truths, anchors, c);
        let total = match out.boxes.is_autodiff() {
            true => {
                let grads = (loss.total.clone() * weight).backward();
                let [boxes, scores] = [(&apart.boxes, &out.boxes), (&apart.scores, &out.scores)]
                    .map(|(apart, out)| {
                        let g = apart.grad(&grads);
                        let g = g.unwrap_or_else(|| out.clone().inner().zeros_like());
                        ops::with_gradient(out.clone(), Tensor::from_inner(g))
                    });
                boxes + scores
            }
            false => loss.total.clone() * weight,
        };
        let mut shown = vec![ShownLoss::default(); lanes.len()];
        if let Some(first) = shown.first_mut() {
            *first = ShownLoss::of(Some(&loss));
        }
        return (total, shown);
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
