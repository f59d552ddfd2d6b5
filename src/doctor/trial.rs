//! Two small trials: does a convolution give the right numbers, can a run write its files.

use crate::ops;
use burn::tensor::{Device, Tensor, TensorData};
use serde::Serialize;
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// How one trial went.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trial {
    pub passed: bool,
    pub detail: String,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trials {
    pub compute: Trial,
    pub disk: Trial,
}

impl Trials {
    pub(super) fn run(project: &Path) -> Self {
        let of = |result: Result<String, String>| Trial {
            passed: result.is_ok(),
            detail: result.unwrap_or_else(|e| e),
        };
        Self {
            compute: of(compute()),
            disk: of(disk(project)),
        }
    }
}

/// Images, rows, columns, channels, filters.
const SHAPE: [usize; 5] = [2, 9, 13, 16, 24];

/// A 3x3 convolution against the sum that defines it, in float64.
fn compute() -> Result<String, String> {
    let [n, h, w, ci, co] = SHAPE;
    // fractions of which float32 holds the sums exactly, in any order
    let value = |i: usize| ((i * 7919) % 257) as f32 / 128.0 - 1.0;
    let x: Vec<f32> = (0..n * h * w * ci).map(value).collect();
    let weight: Vec<f32> = (0..9 * ci * co).map(|i| value(i * 3 + 1)).collect();
    let device = Device::flex();
    let a = Tensor::<4>::from_data(TensorData::new(x.clone(), [n, h, w, ci]), &device);
    let b = Tensor::<4>::from_data(TensorData::new(weight.clone(), [3, 3, ci, co]), &device);
    let y: Vec<f32> = ops::conv(a, b, 1, 1, &ops::cpu::lanes::Lanes::USUAL)
        .into_data()
        .try_to_vec()
        .map_err(|e| format!("the result cannot be read: {e:?}"))?;
    let expected = |image: usize, row: usize, column: usize, filter: usize| -> f64 {
        let mut sum = 0.0;
        for k in 0..9 {
            let (r, c) = (row + k / 3, column + k % 3);
            // outside the image there are zeros
            if (1..=h).contains(&r) && (1..=w).contains(&c) {
                for channel in 0..ci {
                    let pixel = x[((image * h + r - 1) * w + c - 1) * ci + channel];
                    let tap = weight[(k * ci + channel) * co + filter];
                    sum += f64::from(pixel) * f64::from(tap);
                }
            }
        }
        sum
    };
    let mut worst = 0.0_f64;
    for (i, &got) in y.iter().enumerate() {
        let (filter, rest) = (i % co, i / co);
        let (column, rest) = (rest % w, rest / w);
        let right = expected(rest / h, rest % h, column, filter);
        let error = (f64::from(got) - right).abs();
        worst = if error.is_nan() {
            f64::INFINITY
        } else {
            worst.max(error)
        };
    }
    let isa = ops::isa().name();
    if y.len() == n * h * w * co && worst == 0.0 {
        Ok(format!("a convolution with {isa} instructions is right"))
    } else {
        Err(format!(
            "a convolution is wrong by {worst:.1e} with {isa} instructions; try YOLO_TRAIN_ISA=portable and report this"
        ))
    }
}

const TRIAL_BYTES: usize = 8 << 20;

/// Writes, reads back and removes a file where runs go, or in the deepest folder above that is there.
fn disk(project: &Path) -> Result<String, String> {
    let project =
        std::path::absolute(project).map_err(|e| format!("{}: {e}", project.display()))?;
    let folder = project
        .ancestors()
        .find(|f| f.exists())
        .ok_or_else(|| format!("{}: no folder above it is there", project.display()))?;
    let path = folder.join(format!(".yolo-train-doctor-{}.tmp", std::process::id()));
    let failed = |what: &str, e: std::io::Error| format!("cannot {what} {}: {e}", path.display());
    let started = Instant::now();
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&path)
        .map_err(|e| failed("create", e))?;
    let removed = Removed(path.clone());
    let content: Vec<u8> = (0..TRIAL_BYTES).map(|i| ((i * 31) >> 5) as u8).collect();
    let mut out = file;
    out.write_all(&content)
        .and_then(|()| out.sync_all())
        .map_err(|e| failed("write", e))?;
    let seconds = started.elapsed().as_secs_f64();
    let mut read = Vec::with_capacity(TRIAL_BYTES);
    fs::File::open(&path)
        .and_then(|mut f| f.read_to_end(&mut read))
        .map_err(|e| failed("read", e))?;
    drop(removed);
    if read != content {
        return Err(format!(
            "{}: what is read is not what was written",
            folder.display()
        ));
    }
    let speed = TRIAL_BYTES as f64 / 1e6 / seconds.max(1e-9);
    Ok(format!(
        "{} takes files at {speed:.0} MB/s",
        folder.display()
    ))
}

/// Removes the file at the end, however that comes.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        // nothing is left to be done where it cannot be removed
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_build_computes_right() {
        let detail = compute().unwrap();
        assert!(detail.contains(ops::isa().name()), "{detail}");
    }

    #[test]
    fn a_folder_that_takes_files_passes_and_is_left_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let project = folder.path().join("runs/detect");
        let detail = disk(&project).unwrap();
        assert!(
            detail.starts_with(&folder.path().display().to_string()),
            "{detail}"
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_project_that_is_no_folder_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let message = disk(&file.join("runs")).unwrap_err();
        assert!(message.contains(&file.display().to_string()), "{message}");
    }
}
