//! What one rank found in its part of a split, as values and as bytes.
//!
//! ```text
//! "YTVS"  u32 format  images of the split  classes
//! length  state of hotcoco's StreamingEval
//! images, and for each: index - the one before, outcomes, each (2 class + true positive, f64 score)
//! images, and for each: index - the one before, detections, each (category id, 4 f64 box, f64 score)
//! batches, and for each: 4 f64 loss
//! ```
//!
//! Numbers without a type are unsigned LEB128; floats are little-endian. The bytes go between ranks that run the same
//! version, and are not kept.

use super::best_f1::Outcome;
use super::results::CocoDetection;
use super::{Detection, EvalError, Evaluator, Predictions};
use crate::data::Split;
use crate::loss::{Components, ShownLoss};
use hotcoco::StreamingEval;
use std::collections::BTreeMap;

const MAGIC: [u8; 4] = *b"YTVS";
const FORMAT: u32 = 1;

/// Why the state that another rank sent cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("it is no state of a validation")]
    Foreign,
    #[error(
        "it has format {found}, this program reads {FORMAT}; run the same version on all ranks"
    )]
    Format { found: u32 },
    #[error("it ends within its {part}")]
    Short { part: &'static str },
    #[error("{bytes} bytes follow its end")]
    Long { bytes: usize },
    #[error("its {part} hold {value}, which is not possible here")]
    Value { part: &'static str, value: String },
    #[error(
        "it is about a split of {images} images and {classes} classes, here are {} and {}; give all ranks the same data",
        here.0, here.1
    )]
    OtherSplit {
        images: u64,
        classes: u64,
        here: (usize, usize),
    },
    #[error("its {part}: {source}")]
    Coco {
        part: &'static str,
        source: Box<hotcoco::Error>,
    },
}

/// What a rank found in its batches.
pub(super) struct Partial<'a> {
    pub evaluator: Evaluator<'a>,
    pub predictions: Predictions<'a>,
    /// Of each batch, in order: sums of floats must not depend on how the batches were dealt out.
    pub losses: Vec<ShownLoss>,
}

impl<'a> Partial<'a> {
    /// Nothing yet.
    ///
    /// # Errors
    /// As [`Evaluator::new`].
    pub fn new(split: &'a Split) -> Result<Self, EvalError> {
        Ok(Self {
            evaluator: Evaluator::new(split)?,
            predictions: Predictions::new(split),
            losses: vec![],
        })
    }

    /// The detections of an image.
    ///
    /// # Errors
    /// As [`Evaluator::add`].
    pub fn add(&mut self, image_index: usize, found: &[Detection]) -> Result<(), EvalError> {
        self.evaluator.add(image_index, found)?;
        self.predictions.add(image_index, found)
    }

    /// Takes over what the next rank found.
    ///
    /// # Errors
    /// As [`Evaluator::merge`].
    pub fn append(&mut self, next: Partial<'a>) -> Result<(), EvalError> {
        self.evaluator.merge(next.evaluator)?;
        // The same images as the evaluator's, which are in one of both only.
        self.predictions.images.extend(next.predictions.images);
        self.losses.extend(next.losses);
        Ok(())
    }

    /// The loss of all batches.
    pub fn loss(&self) -> ShownLoss {
        let mut sum = ShownLoss::default();
        self.losses.iter().for_each(|&loss| sum.add(loss));
        sum
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let split = self.evaluator.split;
        let mut out = Writer(MAGIC.to_vec());
        out.0.extend(FORMAT.to_le_bytes());
        out.count(split.images.len());
        out.count(split.names.len());
        let coco = self.evaluator.coco.to_bytes();
        out.count(coco.len());
        out.0.extend(coco);
        out.images(&self.evaluator.outcomes, |out, o| {
            out.number(o.class as u64 * 2 + u64::from(o.true_positive));
            out.float(o.score);
        });
        out.images(&self.predictions.images, |out, d| {
            out.number(d.category_id);
            d.bbox.iter().for_each(|&v| out.float(v));
            out.float(d.score);
        });
        out.count(self.losses.len());
        for loss in &self.losses {
            floats_of(loss).iter().for_each(|&v| out.float(v));
        }
        out.0
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote on a rank with the same split.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn from_bytes(split: &'a Split, bytes: &[u8]) -> Result<Self, StateError> {
        let rest = bytes.strip_prefix(&MAGIC).ok_or(StateError::Foreign)?;
        let (format, rest) = rest.split_first_chunk().ok_or(StateError::Foreign)?;
        let found = u32::from_le_bytes(*format);
        if found != FORMAT {
            return Err(StateError::Format { found });
        }
        let mut from = Reader(rest);
        let (images, classes) = (from.number("sizes")?, from.number("sizes")?);
        let here = (split.images.len(), split.names.len());
        if (images, classes) != (here.0 as u64, here.1 as u64) {
            return Err(StateError::OtherSplit {
                images,
                classes,
                here,
            });
        }

        let mut partial = Self::new(split).map_err(|e| StateError::Value {
            part: "ground truths",
            value: e.to_string(),
        })?;
        let length = from.count("figures")?;
        let coco = from.take(length, "figures")?;
        let of_coco = |source: hotcoco::Error| StateError::Coco {
            part: "figures",
            source: Box::new(source),
        };
        let coco = StreamingEval::from_bytes(coco).map_err(of_coco)?;
        // Into the empty one, which compares classes and parameters.
        partial.evaluator.coco.merge(coco).map_err(of_coco)?;
        partial.evaluator.outcomes = from.images("outcomes", here.0, |from, part| {
            let packed = from.number(part)?;
            let class = packed / 2;
            if class >= classes {
                return Err(impossible(part, format!("class {class}")));
            }
            Ok(Outcome {
                class: class as usize,
                score: from.finite(part)?,
                true_positive: packed % 2 == 1,
            })
        })?;
        let mut categories = split.category_ids.clone();
        categories.sort_unstable();
        partial.predictions.images = from.images("detections", here.0, |from, part| {
            let category_id = from.number(part)?;
            if categories.binary_search(&category_id).is_err() {
                return Err(impossible(part, format!("category {category_id}")));
            }
            let mut bbox = [0.0; 4];
            for v in &mut bbox {
                *v = from.finite(part)?;
            }
            Ok(CocoDetection {
                category_id,
                bbox,
                score: from.finite(part)?,
            })
        })?;
        let outcomes = &partial.evaluator.outcomes;
        if !outcomes.keys().eq(partial.predictions.images.keys()) {
            return Err(impossible("detections", "other images than its outcomes"));
        }
        for _ in 0..from.count("losses")? {
            let mut floats = [0.0; 4];
            for v in &mut floats {
                *v = from.float("losses")?;
            }
            partial.losses.push(loss_of(floats));
        }
        match from.0.len() {
            0 => Ok(partial),
            bytes => Err(StateError::Long { bytes }),
        }
    }
}

/// The numbers of a loss in a fixed order.
pub(super) fn floats_of(loss: &ShownLoss) -> [f64; 4] {
    let Components {
        boxes,
        classes,
        distances,
    } = loss.sums;
    [boxes, classes, distances, loss.score_sum]
}

/// See [`floats_of`].
pub(super) fn loss_of([boxes, classes, distances, score_sum]: [f64; 4]) -> ShownLoss {
    ShownLoss {
        sums: Components {
            boxes,
            classes,
            distances,
        },
        score_sum,
    }
}

fn impossible(part: &'static str, value: impl Into<String>) -> StateError {
    StateError::Value {
        part,
        value: value.into(),
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn number(&mut self, mut v: u64) {
        while v >= 0x80 {
            self.0.push(v as u8 | 0x80);
            v >>= 7;
        }
        self.0.push(v as u8);
    }

    fn count(&mut self, n: usize) {
        self.number(n as u64);
    }

    fn float(&mut self, v: f64) {
        self.0.extend(v.to_le_bytes());
    }

    fn images<T>(&mut self, images: &BTreeMap<usize, Vec<T>>, each: impl Fn(&mut Self, &T)) {
        self.count(images.len());
        let mut before = 0;
        for (&index, items) in images {
            self.count(index - before);
            before = index;
            self.count(items.len());
            items.iter().for_each(|item| each(self, item));
        }
    }
}

/// What is still to be read.
struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn take(&mut self, n: usize, part: &'static str) -> Result<&'b [u8], StateError> {
        let (taken, rest) = self
            .0
            .split_at_checked(n)
            .ok_or(StateError::Short { part })?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self, part: &'static str) -> Result<u64, StateError> {
        let mut v = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.take(1, part)?[0];
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            v |= bits << shift;
            if byte < 0x80 {
                return Ok(v);
            }
        }
        Err(impossible(part, "a number of more than 64 bits"))
    }

    fn count(&mut self, part: &'static str) -> Result<usize, StateError> {
        let n = self.number(part)?;
        usize::try_from(n).map_err(|_| impossible(part, n.to_string()))
    }

    fn float(&mut self, part: &'static str) -> Result<f64, StateError> {
        let bytes = self.take(8, part)?;
        Ok(f64::from_le_bytes(bytes.try_into().expect("8 bytes")))
    }

    fn finite(&mut self, part: &'static str) -> Result<f64, StateError> {
        match self.float(part)? {
            v if v.is_finite() => Ok(v),
            v => Err(impossible(part, v.to_string())),
        }
    }

    /// Of a split of `most` images.
    fn images<T>(
        &mut self,
        part: &'static str,
        most: usize,
        each: impl Fn(&mut Self, &'static str) -> Result<T, StateError>,
    ) -> Result<BTreeMap<usize, Vec<T>>, StateError> {
        let mut images = BTreeMap::new();
        let mut before = 0_usize;
        for _ in 0..self.count(part)? {
            let step = self.count(part)?;
            let index = before
                .checked_add(step)
                .filter(|&index| index < most && (step > 0 || images.is_empty()))
                .ok_or_else(|| impossible(part, format!("image {before} + {step}")))?;
            before = index;
            // Not allocated ahead: the number may be wrong.
            let mut items = vec![];
            for _ in 0..self.count(part)? {
                items.push(each(self, part)?);
            }
            images.insert(index, items);
        }
        Ok(images)
    }
}
