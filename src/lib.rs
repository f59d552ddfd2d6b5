//! Trains YOLO-style object detectors on COCO-format data.

pub mod config;
pub mod model;
pub mod ops;
pub mod loss;
pub mod train;
