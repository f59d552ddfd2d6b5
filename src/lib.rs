//! `yolo-train` as a library.
pub mod data;
