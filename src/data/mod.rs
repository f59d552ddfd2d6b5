//! Stub of the contract's types, so that this branch compiles alone; data-formats owns the real file.
use std::path::PathBuf;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LabelBox {
    pub class: usize,
    pub xyxy: [f32; 4],
}

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

#[derive(Debug, Clone)]
pub struct Split {
    pub names: Vec<String>,
    pub category_ids: Vec<u64>,
    pub images: Vec<ImageEntry>,
    pub image_id_in_file: bool,
}
