//! The one conversion from a [`Detection`] to the numbers of the COCO results format.

use super::{Detection, EvalError};
use crate::data::{ImageEntry, Split};

/// A detection as the COCO API reads it from a results file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct CocoDetection {
    pub category_id: u64,
    /// `[x, y, width, height]` in pixels of the original image.
    pub bbox: [f64; 4],
    pub score: f64,
}

impl CocoDetection {
    /// Widens first and subtracts in f64, so that nothing is rounded twice.
    ///
    /// # Errors
    /// A class that the split does not have, or a number that is not finite (JSON has no spelling for it).
    pub fn new(split: &Split, image: &ImageEntry, d: &Detection) -> Result<Self, EvalError> {
        let &category_id = split
            .category_ids
            .get(d.class)
            .ok_or_else(|| EvalError::Class {
                file: image.file_name.clone(),
                class: d.class,
                classes: split.category_ids.len(),
            })?;
        let [x1, y1, x2, y2] = d.xyxy.map(f64::from);
        if !d.xyxy.iter().chain([&d.score]).all(|v| v.is_finite()) {
            return Err(EvalError::NotFinite {
                file: image.file_name.clone(),
                xyxy: d.xyxy,
                score: d.score,
            });
        }
        Ok(Self {
            category_id,
            bbox: [x1, y1, x2 - x1, y2 - y1],
            score: f64::from(d.score),
        })
    }
}

/// The image at `index`.
///
/// # Errors
/// An index outside the split.
pub(super) fn image_at(split: &Split, index: usize) -> Result<&ImageEntry, EvalError> {
    split.images.get(index).ok_or(EvalError::ImageIndex {
        index,
        images: split.images.len(),
    })
}
