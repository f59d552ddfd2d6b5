//! Why a device cannot be used, and what to do about it.

use crate::config::DeviceError;
use thiserror::Error;

/// What a CUDA GPU needs and this machine has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lack {
    Driver,
    Gpu,
    Nvrtc,
    Headers,
    Nccl,
    Cudnn,
}

impl Lack {
    /// Its name, for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Lack::Driver => "NVIDIA driver",
            Lack::Gpu => "GPU",
            Lack::Nvrtc => "NVRTC, the compiler of kernels",
            Lack::Headers => "CUDA headers",
            Lack::Nccl => "NCCL, which several GPUs need",
            Lack::Cudnn => "cuDNN",
        }
    }

    /// How to get it.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            Lack::Driver => {
                "install NVIDIA's driver (Debian: nvidia-driver, Ubuntu: nvidia-driver-570-server, container: --gpus all with nvidia-container-toolkit)"
            }
            Lack::Gpu => {
                "look at CUDA_VISIBLE_DEVICES and nvidia-smi; a container is started with --gpus all"
            }
            Lack::Nvrtc => {
                "install the CUDA toolkit (cuda-nvrtc-12-8, or nvidia-cuda-toolkit of Debian), or: pip install nvidia-cuda-nvrtc-cu12 (CUDA 13: nvidia-cuda-nvrtc); other places in YOLO_TRAIN_CUDA_LIBS"
            }
            Lack::Headers => {
                "install the CUDA toolkit (cuda-cudart-dev-12-8 and cuda-cccl-12-8, or nvidia-cuda-toolkit of Debian), or: pip install nvidia-cuda-runtime-cu12 nvidia-cuda-cccl-cu12 nvidia-cuda-nvcc-cu12 (CUDA 13: nvidia-cuda-runtime nvidia-cuda-cccl nvidia-cuda-crt); other places in CUDA_PATH"
            }
            Lack::Nccl => {
                "install libnccl2 (of NVIDIA's repository or Debian's contrib), or: pip install nvidia-nccl-cu12 (CUDA 13: nvidia-nccl-cu13); other places in YOLO_TRAIN_CUDA_LIBS"
            }
            Lack::Cudnn => {
                "install libcudnn9-cuda-12, or: pip install nvidia-cudnn-cu12 (CUDA 13: nvidia-cudnn-cu13); other places in YOLO_TRAIN_CUDA_LIBS"
            }
        }
    }
}

/// Why a device cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GpuError {
    /// This build lacks what the device needs.
    #[error(transparent)]
    NotBuilt(#[from] DeviceError),
    #[error("device {text} cannot be used: {reason}; {}", lack.remedy())]
    Lacks {
        text: String,
        lack: Lack,
        reason: String,
    },
    #[error("device {text}: there is no GPU {number}; {}", exist(gpus, "GPU"))]
    NoSuchGpu {
        text: String,
        number: u32,
        /// Number and name of those that exist.
        gpus: Vec<(u32, String)>,
    },
    #[error(
        "device {text}: there is no adapter {number}; {}",
        exist(adapters, "adapter")
    )]
    NoSuchAdapter {
        text: String,
        number: u32,
        adapters: Vec<(u32, String)>,
    },
    #[error(
        "device {text} asks for {wanted} idle GPU{}, but {idle} of {all} {}: {}",
        if *wanted == 1 { "" } else { "s" },
        if *idle == 1 { "is" } else { "are" },
        busy.join("; ")
    )]
    Busy {
        text: String,
        wanted: usize,
        idle: usize,
        all: usize,
        /// Who is busy with what.
        busy: Vec<String>,
    },
    #[error(
        "device {text}: each rank of a launcher would find the same idle GPUs; name them (0,1,…), or let yolo-train start the ranks"
    )]
    IdleForLauncher { text: String },
    #[error(
        "{text:?} is no device that a rank can be given (variable {})",
        super::DEVICE_VARIABLE
    )]
    Variable { text: String },
}

fn exist(found: &[(u32, String)], what: &str) -> String {
    match found {
        [] => format!("this machine has no {what}"),
        found => {
            let each: Vec<_> = found
                .iter()
                .map(|(n, name)| format!("{n} ({name})"))
                .collect();
            format!("there are {}", each.join(", "))
        }
    }
}

impl GpuError {
    /// Why, without the remedy.
    #[must_use]
    pub fn reason(&self) -> String {
        match self {
            GpuError::Lacks { reason, .. } => reason.clone(),
            other => other.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_does_not_exist_names_those_that_do() {
        let error = GpuError::NoSuchGpu {
            text: "7".into(),
            number: 7,
            gpus: vec![(0, "NVIDIA H200".into()), (1, "NVIDIA H200".into())],
        };
        assert_eq!(
            error.to_string(),
            "device 7: there is no GPU 7; there are 0 (NVIDIA H200), 1 (NVIDIA H200)"
        );
    }

    #[test]
    fn what_is_missing_comes_with_how_to_get_it() {
        for lack in [
            Lack::Driver,
            Lack::Gpu,
            Lack::Nvrtc,
            Lack::Headers,
            Lack::Nccl,
            Lack::Cudnn,
        ] {
            let error = GpuError::Lacks {
                text: "0".into(),
                lack,
                reason: format!("no {}", lack.name()),
            };
            let text = error.to_string();
            assert!(
                text.ends_with(lack.remedy()) && !text.contains('\n'),
                "{text}"
            );
        }
    }
}
