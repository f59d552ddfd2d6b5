//! The program in a folder of its own, with the small drawn data set of `squares.rs`.
#![allow(dead_code, reason = "each file of tests uses a part")]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// Options of a run that takes a second: two batches an epoch, a step each.
pub const QUICK: [&str; 13] = [
    "--data",
    "data.yaml",
    "--imgsz",
    "32",
    "--batch",
    "4",
    "--nbs",
    "4",
    "--workers",
    "1",
    "--threads",
    "1",
    "--no-plots",
];

pub fn workplace() -> TempDir {
    let t = tempfile::tempdir().unwrap();
    super::squares::data_set(t.path());
    t
}

/// The program with these words, its output kept.
pub fn program(folder: &Path, words: &[&str]) -> Command {
    let mut c = Command::new(assert_cmd::cargo::cargo_bin!("yolo-train"));
    c.current_dir(folder)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    c
}

pub fn output(folder: &Path, words: &[&str]) -> Output {
    program(folder, words).output().unwrap()
}

pub fn stderr(o: &Output) -> String {
    String::from_utf8_lossy(&o.stderr).into_owned()
}
