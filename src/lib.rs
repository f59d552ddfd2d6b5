//! Trains YOLO-style object detectors on COCO-format data.

pub mod cli;
pub mod config;
