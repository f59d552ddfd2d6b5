//! A pass over a split: detections, figures, loss.

use super::merge::{Validated, merge};
use super::partial::{Partial, StateError};
use super::{
    Curves, Detection, EvalError, InferError, Inference, Inferred, Metrics, Predictions,
    SuppressConfig, end_to_end, micro_batch, suppress,
};
use crate::data::Split;
use crate::data::batch::{Batch, Letterbox};
use crate::data::loader::LoaderError;
use crate::dist::{DistError, ProcessGroup};
use crate::loss::ShownLoss;
use crate::model::Network;
use rayon::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};

/// How detections are chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    pub suppress: SuppressConfig,
    /// Use the head that needs no suppression, where there is one.
    pub end_to_end: bool,
}

impl Choice {
    /// The detections of image `i` of a batch with the outputs `out`, best first, in pixels of the upright original image of
    /// `size` (width, height), which lies in the batch as `letterbox` says. With `classes`, those of other classes are left
    /// out before anything is chosen.
    #[must_use]
    pub fn detections(
        &self,
        network: &Network,
        out: &Inferred,
        i: usize,
        letterbox: &Letterbox,
        size: (u32, u32),
        classes: Option<&[usize]>,
    ) -> Vec<Detection> {
        let (boxes, mut scores) = out.decode(i, network.classes, network.spec.reg_max);
        if let Some(wanted) = classes {
            for (class, score) in scores.iter_mut().enumerate() {
                if !wanted.contains(&(class % network.classes)) {
                    *score = 0.0; // never above `conf`
                }
            }
        }
        let c = &self.suppress;
        let mut found = if self.end_to_end && network.spec.one_to_one {
            end_to_end(&boxes, &scores, network.classes, c)
        } else {
            suppress(&boxes, &scores, network.classes, c)
        };
        for d in &mut found {
            d.xyxy = letterbox.to_original(d.xyxy, size.0, size.1);
        }
        found
    }
}

/// Why a validation ended early.
#[derive(Debug, thiserror::Error)]
pub enum ValidateError {
    #[error(transparent)]
    Loader(#[from] LoaderError),
    #[error(transparent)]
    Eval(#[from] EvalError),
    #[error(transparent)]
    Infer(#[from] InferError),
    /// Ctrl-C, on this rank or another.
    #[error("interrupted")]
    Interrupted,
    /// Another rank could not validate its part.
    #[error("validation failed on rank {rank}: {reason}")]
    Peer { rank: usize, reason: String },
    /// What another rank sent.
    #[error("the validation state of rank {rank} cannot be used: {source}")]
    State { rank: usize, source: StateError },
    /// What another rank found does not belong to this.
    #[error("the validation of rank {rank} cannot be merged: {source}")]
    Merge { rank: usize, source: EvalError },
    #[error(transparent)]
    Dist(#[from] DistError),
}

/// What a validation found.
pub struct Validation<'a> {
    pub metrics: Metrics,
    pub curves: Curves,
    pub loss: ShownLoss,
    pub predictions: Predictions<'a>,
}

/// Validates `inference` on `batches` of `split`, this rank's part of them
/// ([`Loader::val_batches_of`](crate::data::loader::Loader::val_batches_of)), and merges what all ranks of `group` found: the
/// result has the bits of one rank's over all batches. `progress` gets this rank's images done. No rank waits for another
/// before its own batches are over.
///
/// # Errors
/// [`ValidateError`], on every rank where one fails: an unreadable image, figures that are not finite, an interruption.
pub fn validate<'a>(
    group: &dyn ProcessGroup,
    inference: &Inference,
    split: &'a Split,
    batches: impl Iterator<Item = Result<Batch, LoaderError>>,
    choice: &Choice,
    interrupted: &AtomicBool,
    progress: impl FnMut(usize),
) -> Result<Validated<'a>, ValidateError> {
    let own = part(inference, split, batches, choice, interrupted, progress);
    merge(group, split, own)
}

/// What this rank finds in its batches.
fn part<'a>(
    inference: &Inference,
    split: &'a Split,
    batches: impl Iterator<Item = Result<Batch, LoaderError>>,
    choice: &Choice,
    interrupted: &AtomicBool,
    mut progress: impl FnMut(usize),
) -> Result<Partial<'a>, ValidateError> {
    let mut partial = Partial::new(split)?;
    let mut done = 0;
    for batch in batches {
        if interrupted.load(Ordering::Relaxed) {
            return Err(ValidateError::Interrupted);
        }
        let batch = batch?;
        let (out, loss) = inference.run_with_loss(&micro_batch(&batch), choice.end_to_end)?;
        partial.losses.push(loss);
        let found: Vec<Vec<Detection>> = (0..batch.len())
            .into_par_iter()
            .map(|i| {
                let image = batch.images[i];
                let entry = &split.images[image.index];
                let size = (entry.width, entry.height);
                choice.detections(inference.network(), &out, i, &image.letterbox, size, None)
            })
            .collect();
        for (image, found) in batch.images.iter().zip(&found) {
            partial.add(image.index, found)?;
        }
        done += batch.len();
        progress(done);
    }
    Ok(partial)
}
