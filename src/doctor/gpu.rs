//! GPUs, as far as files tell: nothing is loaded or asked.

use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders that systems put the CUDA driver's library into.
const LIBRARY_FOLDERS: [&str; 8] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/lib/wsl/lib",
    "usr/local/nvidia/lib64",
    "usr/local/cuda/compat",
    "run/opengl-driver/lib",
];

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Gpus {
    /// Version of NVIDIA's kernel driver.
    pub nvidia_driver: Option<String>,
    /// Models of NVIDIA GPUs.
    pub nvidia_models: Vec<String>,
    /// `/dev/nvidia0`, …: a container has those that it may use.
    pub nvidia_devices: Vec<PathBuf>,
    /// Where `libcuda.so.1` lies.
    pub cuda_library: Option<PathBuf>,
    /// Whether AMD's compute driver is there (`/dev/kfd`).
    pub amd: bool,
}

impl Gpus {
    /// `root` is `/`.
    pub(super) fn find(root: &Path) -> Self {
        let driver = fs::read_to_string(root.join("proc/driver/nvidia/version")).ok();
        let mut models: Vec<(String, String)> = entries(&root.join("proc/driver/nvidia/gpus"))
            .into_iter()
            .filter_map(|gpu| {
                let text = fs::read_to_string(gpu.join("information")).ok()?;
                let model = text.lines().find_map(|l| l.strip_prefix("Model:"))?;
                let place = gpu.file_name()?.to_string_lossy().into_owned();
                Some((place, model.trim().to_owned()))
            })
            .collect();
        models.sort();
        let mut devices: Vec<(u32, PathBuf)> = entries(&root.join("dev"))
            .into_iter()
            .filter_map(|path| {
                let name = path.file_name()?.to_str()?.strip_prefix("nvidia")?;
                Some((name.parse().ok()?, path.clone()))
            })
            .collect();
        devices.sort();
        Self {
            nvidia_driver: driver.and_then(|text| version(&text)),
            nvidia_models: models.into_iter().map(|(_, model)| model).collect(),
            nvidia_devices: devices.into_iter().map(|(_, path)| path).collect(),
            cuda_library: library(root),
            amd: root.join("dev/kfd").exists(),
        }
    }

    /// Whether there is a GPU, or a part of what one needs.
    #[must_use]
    pub fn any(&self) -> bool {
        *self != Self::default()
    }
}

/// Paths in a folder; none where it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let read = fs::read_dir(folder).into_iter().flatten();
    read.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// The first word of the kernel module's line that is a version: digits with points.
fn version(text: &str) -> Option<String> {
    let line = text.lines().next()?;
    let is_version =
        |w: &&str| w.contains('.') && w.chars().all(|c| c.is_ascii_digit() || c == '.');
    line.split_whitespace().find(is_version).map(str::to_owned)
}

fn library(root: &Path) -> Option<PathBuf> {
    let set = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let set: Vec<PathBuf> = std::env::split_paths(&set).collect();
    let usual = LIBRARY_FOLDERS.iter().map(|folder| root.join(folder));
    set.into_iter()
        .chain(usual)
        .map(|folder| folder.join("libcuda.so.1"))
        .find(|file| file.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_models_devices_and_library_are_found_in_their_files() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert!(!Gpus::find(root.path()).any() || std::env::var_os("LD_LIBRARY_PATH").is_some());
        write(
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\nGCC version: 12.2.0\n",
        );
        write(
            "proc/driver/nvidia/gpus/0000:01:00.0/information",
            "Model: \t\t NVIDIA H200\nIRQ: 18\n",
        );
        for device in ["nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm"] {
            write(&format!("dev/{device}"), "");
        }
        write("usr/lib64/libcuda.so.1", "");
        let g = Gpus::find(root.path());
        assert_eq!(g.nvidia_driver.as_deref(), Some("535.129.03"));
        assert_eq!(g.nvidia_models, ["NVIDIA H200"]);
        let devices: Vec<_> = g
            .nvidia_devices
            .iter()
            .map(|d| d.file_name().unwrap())
            .collect();
        assert_eq!(devices, ["nvidia2", "nvidia10"]);
        assert!(g.cuda_library.is_some() && !g.amd && g.any());
    }
}
