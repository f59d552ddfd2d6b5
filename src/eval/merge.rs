//! From what each rank found to what all found.
//!
//! ```text
//! every rank   its batches -> status ----------- all done? -> state --+            +-> figures
//! rank 0                                                              +-> merged --+-> figures, curves, predictions
//! ```
//!
//! States go to rank 0 only, which writes and draws; every rank gets the row of figures, on which the best weights and the end
//! of training depend.

use super::partial::{Partial, StateError, floats_of, loss_of};
use super::{EvalError, Metrics, ValidateError, Validation};
use crate::data::Split;
use crate::dist::{Agreement, Buffer, Call, DType, ProcessGroup, Report, agree};
use crate::loss::ShownLoss;

/// The figures of a validation in one row. A figure of -1 does not exist, as in [`Metrics`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// See [`Metrics::coco`].
    pub coco: [f64; 12],
    pub precision: f64,
    pub recall: f64,
    pub confidence: f64,
    pub images: usize,
    pub instances: usize,
    /// Of all batches.
    pub loss: ShownLoss,
}

/// What all ranks found together.
pub struct Validated<'a> {
    /// The same on every rank.
    pub figures: Figures,
    /// On rank 0.
    pub whole: Option<Validation<'a>>,
}

impl Figures {
    fn new(metrics: &Metrics, loss: ShownLoss) -> Self {
        Self {
            coco: metrics.coco,
            precision: metrics.precision,
            recall: metrics.recall,
            confidence: metrics.confidence,
            images: metrics.images,
            instances: metrics.instances,
            loss,
        }
    }

    fn to_bytes(self) -> Vec<u8> {
        let others = [self.precision, self.recall, self.confidence];
        let loss = floats_of(&self.loss);
        let floats = self.coco.iter().chain(&others).chain(&loss);
        let counts = [self.images, self.instances];
        floats
            .map(|v| v.to_bits())
            .chain(counts.map(|n| n as u64))
            .flat_map(u64::to_le_bytes)
            .collect()
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, StateError> {
        const WORDS: usize = 12 + 3 + 4 + 2;
        let part = "row of figures";
        if bytes.len() < 8 * WORDS {
            return Err(StateError::Short { part });
        }
        if bytes.len() > 8 * WORDS {
            let bytes = bytes.len() - 8 * WORDS;
            return Err(StateError::Long { bytes });
        }
        let word =
            |i: usize| u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().expect("8 bytes"));
        let float = |i| f64::from_bits(word(i));
        let count = |i| {
            usize::try_from(word(i)).map_err(|_| StateError::Value {
                part,
                value: word(i).to_string(),
            })
        };
        Ok(Self {
            coco: std::array::from_fn(float),
            precision: float(12),
            recall: float(13),
            confidence: float(14),
            loss: loss_of(std::array::from_fn(|i| float(15 + i))),
            images: count(19)?,
            instances: count(20)?,
        })
    }
}

/// Merges what the ranks found, in order of ranks. Every rank comes here however its batches ended: where one failed or was
/// interrupted, all end with an error, the failed one with its own.
pub(super) fn merge<'a>(
    group: &dyn ProcessGroup,
    split: &'a Split,
    own: Result<Partial<'a>, ValidateError>,
) -> Result<Validated<'a>, ValidateError> {
    let (own, _) = together(group, "validation: batches", own, |_| vec![])?;
    let merged = if group.rank() == 0 {
        gather(group, split, own)?.map(Some)
    } else {
        let call = Call::bulk("validation: state").after_long_work(group);
        let state = Buffer::U8(own.to_bytes());
        drop(own);
        group.send(call, 0, state).wait()?;
        Ok(None)
    };
    let row = |whole: &Option<Validation>| {
        whole
            .as_ref()
            .map_or(vec![], |w| Figures::new(&w.metrics, w.loss).to_bytes())
    };
    let (whole, rows) = together(group, "validation: figures", merged, row)?;
    let figures =
        Figures::from_bytes(&rows[0]).map_err(|source| ValidateError::State { rank: 0, source })?;
    Ok(Validated { figures, whole })
}

/// Whether `own` came about on all ranks, and what each `says` of it to the others.
fn together<T>(
    group: &dyn ProcessGroup,
    name: &'static str,
    own: Result<T, ValidateError>,
    says: impl FnOnce(&T) -> Vec<u8>,
) -> Result<(T, Vec<Vec<u8>>), ValidateError> {
    let report = match &own {
        Ok(own) => Report::Done(says(own)),
        Err(ValidateError::Interrupted) => Report::Interrupted,
        Err(e) => Report::Failed(in_words(e)),
    };
    let agreed = agree(group, Call::latency(name).after_long_work(group), report)?;
    match (agreed, own) {
        (Agreement::Done(said), Ok(own)) => Ok((own, said)),
        // What this rank says as another's error would be its own.
        (_, Err(e)) if !matches!(e, ValidateError::Interrupted) => Err(e),
        (Agreement::Failed { rank, reason }, _) => Err(ValidateError::Peer { rank, reason }),
        _ => Err(ValidateError::Interrupted),
    }
}

/// An error with its causes.
fn in_words(error: &ValidateError) -> String {
    let first: &dyn std::error::Error = error;
    let chain = std::iter::successors(Some(first), |e| e.source());
    let words: Vec<String> = chain.map(ToString::to_string).collect();
    words.join(": ")
}

/// On rank 0: the whole of it. The outer error is the group's, the inner one has to be told the others.
fn gather<'a>(
    group: &dyn ProcessGroup,
    split: &'a Split,
    own: Partial<'a>,
) -> Result<Result<Validation<'a>, ValidateError>, ValidateError> {
    // Whatever is wrong with one of them, all are taken, as their senders wait for that.
    let states: Vec<Buffer> = (1..group.size())
        .map(|rank| {
            let call = Call::bulk("validation: state").after_long_work(group);
            let state = group.recv(call, rank, DType::U8).wait();
            group.beat("merging validations");
            state
        })
        .collect::<Result<_, _>>()?;
    Ok(whole(split, own, states.iter().map(Buffer::bytes)))
}

/// What `own` and the states of ranks 1, 2, … make together.
pub(super) fn whole<'a, 's>(
    split: &'a Split,
    mut all: Partial<'a>,
    states: impl Iterator<Item = &'s [u8]>,
) -> Result<Validation<'a>, ValidateError> {
    for (rank, state) in (1..).zip(states) {
        let next = Partial::from_bytes(split, state)
            .map_err(|source| ValidateError::State { rank, source })?;
        all.append(next)
            .map_err(|source: EvalError| ValidateError::Merge { rank, source })?;
    }
    let loss = all.loss();
    let (metrics, curves) = all.evaluator.finish_with_curves();
    Ok(Validation {
        metrics,
        curves,
        loss,
        predictions: all.predictions,
    })
}
