//! A head's loss as training takes it: value and gradient in one pass where the kernels apply.

use super::{
    Anchors, Criterion, GroundTruth, RawHead, ShownLoss, head_loss, head_loss_and_gradient,
};
use crate::model::HeadOutput;
use crate::ops;
use crate::ops::cpu::{isa::Isa, lanes};
use burn::tensor::{Tensor, TensorData};

/// `weight` times the gained numerators as a tensor whose backward pass gives their gradient, and what is shown.
///
/// In float32 on the CPU the tensor's value is 0: value and gradient were computed at once, outside the graph, and
/// only the gradient enters it. Elsewhere it is the reference of [`head_loss`].
pub fn weighted_loss(
    out: &HeadOutput,
    truths: &[Vec<GroundTruth>],
    anchors: &Anchors,
    c: &Criterion,
    weight: f64,
) -> (Tensor<1>, ShownLoss) {
    if !ops::kernels_apply(&out.scores) {
        let loss = head_loss(out, truths, anchors, c);
        let shown = ShownLoss::of(Some(&loss));
        return (loss.total * weight, shown);
    }
    let read = |t: &Tensor<3>| {
        let data = t.clone().inner().into_data();
        data.try_to_vec::<f32>()
            .expect("float32, as the kernels need")
    };
    let (boxes, scores) = (read(&out.boxes), read(&out.scores));
    let (mut d_boxes, mut d_scores) = (vec![0.0; boxes.len()], vec![0.0; scores.len()]);
    let raw = RawHead {
        boxes: &boxes,
        scores: &scores,
        classes: out.scores.dims()[2],
    };
    let lanes = lanes::cut(truths.len(), ops::lanes());
    let loss = head_loss_and_gradient(
        Isa::best(),
        raw,
        truths,
        anchors,
        c,
        weight,
        &lanes,
        &mut d_boxes,
        &mut d_scores,
    );
    let seed = |x: &Tensor<3>, d: Vec<f32>| {
        let d = Tensor::<3>::from_data(TensorData::new(d, x.dims()), &x.device().inner());
        ops::with_gradient(x.clone(), d)
    };
    let total = seed(&out.boxes, d_boxes) + seed(&out.scores, d_scores);
    (
        total,
        ShownLoss {
            sums: loss.sums,
            score_sum: loss.score_sum,
        },
    )
}
