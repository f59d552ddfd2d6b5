//! Data sets: formats, checks, decoding, augmentation and batches.
//!
//! [`load_split`] makes a [`Split`] of what the user has; everything behind it sees only a `Split`.

pub mod augment;
pub mod batch;
pub mod cache;
mod check;
mod coco;
pub mod decode;
mod download;
mod error;
pub mod fingerprint;
mod folder;
mod frame;
pub mod geometry;
mod holdout;
pub mod hsv;
mod index;
pub mod letterbox;
pub mod loader;
mod locate;
pub mod mix;
pub mod mosaic;
pub mod pipeline;
pub mod prepare;
pub mod random;
pub mod report;
pub mod sampler;
pub mod shapes;
mod source;
#[cfg(test)]
mod test_support;
pub mod trig;
pub mod voc;
mod voc_index;
mod voc_list;
pub mod warp;
pub mod yolo;
mod yolo_index;

use std::path::PathBuf;

pub use decode::{DecodeError, Rgb, read_header, read_rgb};
pub use download::DownloadError;
pub use error::DataError;
pub use folder::{open, open_in};
pub use index::{IndexOptions, load_split};
pub use prepare::{Step, Unit, prepare};
pub use report::{DataReport, Finding, SplitReport};

/// A box for training. Corners in pixels of the upright (EXIF-corrected) original image, clipped to it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LabelBox {
    pub class: usize,
    pub xyxy: [f32; 4],
}

/// Ground truth of evaluation exactly as in the user's file.
#[derive(Debug, Clone, PartialEq)]
pub struct Truth {
    /// COCO: the annotation's id. YOLO txt and VOC: the number of the box in the split, from 1.
    pub id: u64,
    pub class: usize,
    /// `[x, y, width, height]` in pixels, not clipped.
    pub bbox: [f64; 4],
    /// COCO: `area` (of the mask), or width x height where the file has none.
    pub area: f64,
    /// Neutral in evaluation, as the COCO API treats crowd regions: what is found there is neither right nor
    /// wrong. Difficult objects of VOC are this too, and are trained on.
    pub crowd: bool,
}

/// One image with its boxes.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageEntry {
    /// COCO: the image's id. YOLO txt and VOC: the number in the sorted list, from 1.
    pub id: u64,
    /// COCO: `file_name`. YOLO txt and VOC: the path relative to the data set's root, with `/`.
    pub file_name: String,
    pub path: PathBuf,
    /// Of the upright image.
    pub width: u32,
    pub height: u32,
    /// Boxes for training: without crowd regions, boxes of no area and duplicates.
    pub labels: Vec<LabelBox>,
    /// Every box of the selected classes, as annotated.
    pub truths: Vec<Truth>,
}

/// One split of a data set.
#[derive(Debug, Clone)]
pub struct Split {
    /// By class.
    pub names: Vec<String>,
    /// Original category ids of this split's file by class; YOLO txt and VOC: the class number.
    pub category_ids: Vec<u64>,
    pub images: Vec<ImageEntry>,
    /// False for YOLO txt and VOC: ids are numbers in the sorted list, and predictions carry `file_name` too.
    pub image_id_in_file: bool,
}
