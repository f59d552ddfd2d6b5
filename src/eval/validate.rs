//! A pass over a split: detections, figures, loss.

use super::{
    Curves, Detection, EvalError, Evaluator, Inference, Metrics, Predictions, SuppressConfig,
    end_to_end, micro_batch, suppress,
};
use crate::data::Split;
use crate::data::batch::Batch;
use crate::data::loader::LoaderError;
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

/// Why a validation ended early.
#[derive(Debug, thiserror::Error)]
pub enum ValidateError {
    #[error(transparent)]
    Loader(#[from] LoaderError),
    #[error(transparent)]
    Eval(#[from] EvalError),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

/// What a validation found.
pub struct Validation<'a> {
    pub metrics: Metrics,
    pub curves: Curves,
    pub loss: ShownLoss,
    pub predictions: Predictions<'a>,
}

/// Validates `inference` on `batches` of `split`. `progress` gets the images done.
///
/// # Errors
/// [`ValidateError`]: an unreadable image, figures that are not finite, an interruption.
pub fn validate<'a>(
    network: &Network,
    inference: &Inference,
    split: &'a Split,
    batches: impl Iterator<Item = Result<Batch, LoaderError>>,
    choice: &Choice,
    interrupted: &AtomicBool,
    mut progress: impl FnMut(usize),
) -> Result<Validation<'a>, ValidateError> {
    let mut evaluator = Evaluator::new(split)?;
    let mut predictions = Predictions::new(split);
    let mut loss = ShownLoss::default();
    let mut done = 0;
    for batch in batches {
        if interrupted.load(Ordering::Relaxed) {
            return Err(ValidateError::Interrupted);
        }
        let batch = batch?;
        let out = inference.run(&micro_batch(&batch), choice.end_to_end);
        loss.add(out.loss);
        let found: Vec<Vec<Detection>> = (0..batch.len())
            .into_par_iter()
            .map(|i| {
                let (boxes, scores) = out.decode(i, network.classes, network.spec.reg_max);
                let c = &choice.suppress;
                let mut found = if choice.end_to_end && network.spec.one_to_one {
                    end_to_end(&boxes, &scores, network.classes, c)
                } else {
                    suppress(&boxes, &scores, network.classes, c)
                };
                let image = batch.images[i];
                let entry = &split.images[image.index];
                for d in &mut found {
                    d.xyxy = image
                        .letterbox
                        .to_original(d.xyxy, entry.width, entry.height);
                }
                found
            })
            .collect();
        for (image, found) in batch.images.iter().zip(&found) {
            evaluator.add(image.index, found)?;
            predictions.add(image.index, found)?;
        }
        done += batch.len();
        progress(done);
    }
    let (metrics, curves) = evaluator.finish_with_curves();
    Ok(Validation {
        metrics,
        curves,
        loss,
        predictions,
    })
}
