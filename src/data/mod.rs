//! Data: index and formats, decoding, augmentation, sampling, loading.
use std::path::PathBuf;

pub mod decode;

pub mod augment;
pub mod batch;
pub mod cache;
pub mod geometry;
pub mod hsv;
pub mod letterbox;
pub mod loader;
pub mod mix;
pub mod mosaic;
pub mod pipeline;
pub mod random;
pub mod sampler;
pub mod shapes;
pub mod trig;
pub mod warp;

/// A box for training. Corners in pixels of the upright (EXIF-corrected) original image, clipped to it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LabelBox {
    pub class: usize,
    pub xyxy: [f32; 4],
}

/// Ground truth of evaluation exactly as in the user's file (COCO: bbox x,y,w,h).
#[derive(Debug, Clone, PartialEq)]
pub struct Truth {
    pub id: u64,
    pub class: usize,
    pub bbox: [f64; 4],
    pub area: f64,
    pub crowd: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ImageEntry {
    pub id: u64,
    pub file_name: String,
    pub path: PathBuf,
    pub width: u32,
    pub height: u32,
    pub labels: Vec<LabelBox>,
    pub truths: Vec<Truth>,
}

/// One split of a data set.
#[derive(Debug, Clone)]
pub struct Split {
    pub names: Vec<String>,
    pub category_ids: Vec<u64>,
    pub images: Vec<ImageEntry>,
    pub image_id_in_file: bool,
}
