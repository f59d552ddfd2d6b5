//! Trains YOLO-style object detectors on COCO-format data.

pub mod cli;
pub mod config;
pub mod data;
pub mod dist;
pub mod doctor;
pub mod eval;
pub mod gpu;
pub mod loss;
pub mod model;
pub mod ops;
pub mod predict;
pub mod pulse;
pub mod report;
pub mod train;
