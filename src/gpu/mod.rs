//! GPUs: which ones there are, what they lack, and what `--device` stands for on this machine.
//!
//! - [`resolve`] makes devices of a request; [`Device::burn_device`] is what tensors live on.
//! - [`assign`] and [`assigned`] hold the one device of this process: a rank is a process.
//! - `cuda` (feature `cuda`) asks the driver, never panics, and makes libraries of PyPI wheels and toolkits loadable.
//! - `wgpu` (feature `wgpu`) lists adapters.
//! - [`place`] knows where libraries and headers lie, [`select`] chooses among GPUs; both touch no GPU.

#[cfg(feature = "cuda")]
pub mod cuda;
mod error;
pub mod place;
pub mod select;
#[cfg(feature = "wgpu")]
pub mod wgpu;

pub use error::{GpuError, Lack};

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use crate::config::DeviceRequest;

/// Environment variable with the device of a rank, which the first process of a machine sets.
pub const DEVICE_VARIABLE: &str = "YOLO_TRAIN_DEVICE";

/// One device of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Device {
    Cpu,
    /// By the driver's number, which counts what `CUDA_VISIBLE_DEVICES` leaves.
    Cuda(u32),
    /// By the place in the list of adapters.
    Wgpu(u32),
}

impl Device {
    /// Whether it is no CPU.
    #[must_use]
    pub fn is_gpu(self) -> bool {
        self != Device::Cpu
    }

    /// The number of a CUDA GPU.
    #[must_use]
    pub fn cuda(self) -> Option<u32> {
        match self {
            Device::Cuda(index) => Some(index),
            _ => None,
        }
    }

    /// The tensor library's device. It is opened when the first tensor is made on it.
    ///
    /// # Panics
    /// For a device that this build has not: [`resolve`] gives none of those.
    #[must_use]
    pub fn burn_device(self) -> burn::tensor::Device {
        match self {
            Device::Cpu => burn::tensor::Device::flex(),
            #[cfg(feature = "cuda")]
            Device::Cuda(index) => burn::tensor::Device::cuda(index as usize),
            #[cfg(feature = "wgpu")]
            Device::Wgpu(index) => wgpu::device(index),
            #[allow(unreachable_patterns)]
            other => unreachable!("{other} is refused by builds that have it not"),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(index) => write!(f, "cuda:{index}"),
            Device::Wgpu(index) => write!(f, "wgpu:{index}"),
        }
    }
}

impl FromStr for Device {
    type Err = GpuError;

    /// Reads what [`Device`]'s `Display` writes.
    fn from_str(text: &str) -> Result<Self, GpuError> {
        let number = |kind: &str| text.strip_prefix(kind).and_then(|n| n.parse().ok());
        if text == "cpu" {
            return Ok(Device::Cpu);
        }
        let cuda = number("cuda:").map(Device::Cuda);
        cuda.or_else(|| number("wgpu:").map(Device::Wgpu))
            .ok_or_else(|| GpuError::Variable { text: text.into() })
    }
}

/// What a request stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// One for each rank.
    pub devices: Vec<Device>,
    /// What to tell the user: what `auto` came to, and why.
    pub note: Option<String>,
}

impl Resolved {
    fn plain(devices: Vec<Device>) -> Self {
        Resolved {
            devices,
            note: None,
        }
    }
}

/// The devices of this machine that `request` stands for; `text` is what the user wrote. CUDA is made ready in this
/// process where one of them is a CUDA GPU, so that nothing of it panics later.
///
/// # Errors
/// [`GpuError`]: what is missing and how to get it, or which devices there are.
pub fn resolve(request: &DeviceRequest, text: &str) -> Result<Resolved, GpuError> {
    request.check_supported(text)?;
    match request {
        DeviceRequest::Cpu { ranks } => Ok(Resolved::plain(vec![Device::Cpu; *ranks])),
        DeviceRequest::Auto => Ok(automatic()),
        #[cfg(feature = "cuda")]
        DeviceRequest::Gpus(numbers) => {
            let numbers = select::by_number(text, numbers, &cuda::ready(text)?.gpus)?;
            together(text, numbers.len())?;
            let devices = numbers.into_iter().map(Device::Cuda).collect();
            Ok(Resolved::plain(devices))
        }
        #[cfg(feature = "cuda")]
        DeviceRequest::IdleGpus { count } => {
            let gpus = select::idle(text, *count, &cuda::ready(text)?.gpus)?;
            together(text, gpus.len())?;
            let note = select::chosen(&gpus);
            Ok(Resolved {
                devices: gpus.iter().map(|gpu| Device::Cuda(gpu.index)).collect(),
                note: Some(note),
            })
        }
        #[cfg(feature = "wgpu")]
        DeviceRequest::Wgpu(numbers) => Ok(Resolved::plain(
            wgpu::by_number(text, numbers)?
                .into_iter()
                .map(Device::Wgpu)
                .collect(),
        )),
        #[allow(unreachable_patterns)]
        _ => unreachable!("the build has what it supports"),
    }
}

/// Several GPUs need NCCL.
#[cfg(feature = "cuda")]
fn together(text: &str, count: usize) -> Result<(), GpuError> {
    match cuda::library(place::Library::Nccl) {
        Err(reason) if count > 1 => Err(GpuError::Lacks {
            text: text.into(),
            lack: Lack::Nccl,
            reason,
        }),
        _ => Ok(()),
    }
}

/// `auto`: the first CUDA GPU where this build and this machine have one that works, otherwise the CPU.
#[cfg(feature = "cuda")]
fn automatic() -> Resolved {
    match cuda::ready("auto") {
        Ok(found) => Resolved {
            note: found.gpus.first().map(|gpu| {
                let name = &gpu.name;
                format!(
                    "device: cuda:{} ({name}); --device cpu for the CPU",
                    gpu.index
                )
            }),
            devices: found
                .gpus
                .first()
                .map_or(vec![Device::Cpu], |gpu| vec![Device::Cuda(gpu.index)]),
        },
        Err(error) => Resolved {
            note: Some(format!("device: cpu ({})", error.reason())),
            devices: vec![Device::Cpu],
        },
    }
}

#[cfg(not(feature = "cuda"))]
fn automatic() -> Resolved {
    Resolved::plain(vec![Device::Cpu])
}

/// The device of the `local_rank`-th rank that a launcher has started on this machine. One device that was named is taken
/// by all of them (each may see another one, by `CUDA_VISIBLE_DEVICES`); `auto` counts the GPUs.
///
/// # Errors
/// As [`resolve`], and [`GpuError::IdleForLauncher`]: each rank would find the same ones.
pub fn of_launched(
    request: &DeviceRequest,
    text: &str,
    local_rank: usize,
) -> Result<Resolved, GpuError> {
    let own = match request {
        DeviceRequest::IdleGpus { .. } => {
            return Err(GpuError::IdleForLauncher { text: text.into() });
        }
        #[cfg(feature = "cuda")]
        DeviceRequest::Auto => {
            let Ok(found) = cuda::ready(text) else {
                return Ok(automatic());
            };
            match &found.gpus[..] {
                // one that is seen alone is this rank's own
                [_] => DeviceRequest::Gpus(vec![0]),
                _ => DeviceRequest::Gpus(vec![local_rank as u32]),
            }
        }
        request if request.ranks() == 1 => request.clone(),
        request => request
            .device_of(local_rank)
            .ok_or_else(|| GpuError::Variable { text: text.into() })?,
    };
    resolve(&own, text)
}

static ASSIGNED: OnceLock<Device> = OnceLock::new();

/// Makes `device` the one of this process; the first call counts.
pub fn assign(device: Device) {
    let _ = ASSIGNED.set(device);
}

/// The device of this process; the CPU where none was assigned.
#[must_use]
pub fn assigned() -> Device {
    ASSIGNED.get().copied().unwrap_or(Device::Cpu)
}

/// Bytes of the memory of this process's GPU, where the driver tells.
#[must_use]
pub fn memory_of_assigned() -> Option<u64> {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(index) = assigned() {
        let gpus = &cuda::inventory().gpus;
        return gpus
            .iter()
            .find(|g| g.index == index)
            .map(|g| g.memory_bytes);
    }
    None
}

/// The device that the first process of this machine has given to this rank.
///
/// # Errors
/// [`GpuError::Variable`]: another text than it writes; otherwise as [`resolve`].
pub fn of_environment() -> Result<Option<Device>, GpuError> {
    let Ok(text) = std::env::var(DEVICE_VARIABLE) else {
        return Ok(None);
    };
    let request = match text.parse()? {
        Device::Cpu => DeviceRequest::Cpu { ranks: 1 },
        Device::Cuda(index) => DeviceRequest::Gpus(vec![index]),
        Device::Wgpu(index) => DeviceRequest::Wgpu(vec![index]),
    };
    Ok(resolve(&request, &text)?.devices.first().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_written_as_it_is_read() {
        for device in [Device::Cpu, Device::Cuda(3), Device::Wgpu(0)] {
            assert_eq!(device.to_string().parse(), Ok(device));
        }
        for text in ["", "cuda", "cuda:x", "gpu:0"] {
            assert!(text.parse::<Device>().is_err(), "{text}");
        }
    }

    #[test]
    fn cpu_ranks_are_devices_of_their_own() {
        let request = DeviceRequest::Cpu { ranks: 3 };
        let resolved = resolve(&request, "cpu:3").unwrap();
        assert_eq!(resolved, Resolved::plain(vec![Device::Cpu; 3]));
    }

    #[test]
    fn idle_gpus_are_not_looked_for_by_each_rank_of_a_launcher() {
        let request = DeviceRequest::IdleGpus { count: 2 };
        assert_eq!(
            of_launched(&request, "-1,-1", 0),
            Err(GpuError::IdleForLauncher {
                text: "-1,-1".into()
            })
        );
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_build_without_cuda_says_how_to_get_one() {
        let error = resolve(&DeviceRequest::Gpus(vec![0]), "0").unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("cargo install --path . --features cuda"),
            "{text}"
        );
    }
}
