//! The stand-in for CUDA's libraries (`tests/fake-cuda`), built when it is needed first, and folders that lead to it.
#![allow(dead_code, reason = "each file of tests uses a part")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The shared library.
pub fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        // a folder of its own: the tests' may be locked
        let target = package.join("target/fake-cuda");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let built = Command::new(cargo)
            .args([
                "build",
                "--release",
                "--offline",
                "--quiet",
                "--package",
                "fake-cuda",
            ])
            .arg("--manifest-path")
            .arg(package.join("Cargo.toml"))
            .arg("--target-dir")
            .arg(&target)
            .status()
            .unwrap();
        assert!(built.success(), "tests/fake-cuda is not built");
        target.join("release/libfake_cuda.so")
    })
}

/// Names under which the library is found.
pub const DRIVER: &[&str] = &["libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1"];
pub const NVRTC: &[&str] = &["libnvrtc.so", "libnvrtc.so.12"];
pub const NCCL: &[&str] = &["libnccl.so.2"];
pub const CUDNN: &[&str] = &["libcudnn.so.9"];
pub const HEADERS: &str = "cuda/include/cuda_fp16.h";

/// A machine with what is named.
pub struct Machine {
    pub folder: tempfile::TempDir,
}

impl Machine {
    /// With everything.
    pub fn whole() -> Self {
        let machine = Machine::with(&[DRIVER, NVRTC, NCCL, CUDNN]);
        machine.headers();
        machine
    }

    pub fn with(libraries: &[&[&str]]) -> Self {
        let machine = Machine {
            folder: tempfile::tempdir().unwrap(),
        };
        for name in libraries.concat() {
            machine.put(&format!("lib/{name}"));
        }
        fs::create_dir_all(machine.path("tmp")).unwrap();
        fs::create_dir_all(machine.path("home")).unwrap();
        machine
    }

    pub fn headers(&self) {
        let file = self.path(HEADERS);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "").unwrap();
        let inner = file.with_file_name("crt");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("mma.h"), "").unwrap();
        let version = "#define CUDART_VERSION  12040\n";
        fs::write(file.with_file_name("cuda_runtime_api.h"), version).unwrap();
    }

    /// The library under another name.
    pub fn put(&self, name: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(library(), path).unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Lets a process see this machine.
    pub fn apply(&self, command: &mut Command) {
        for name in [
            "CUDA_PATH",
            "CUDA_HOME",
            "CUDA_VISIBLE_DEVICES",
            "VIRTUAL_ENV",
            "CONDA_PREFIX",
        ] {
            command.env_remove(name);
        }
        if self.path(HEADERS).exists() {
            command.env("CUDA_PATH", self.path("cuda"));
        }
        command
            .env("LD_LIBRARY_PATH", self.path("lib"))
            .env("HOME", self.path("home"))
            .env("XDG_CACHE_HOME", self.path("home/cache"))
            .env("FAKE_NCCL_FOLDER", self.path("tmp"));
    }

    /// Files that ranks have left.
    pub fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("tmp")).unwrap();
        let names = entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned());
        names.collect()
    }
}
