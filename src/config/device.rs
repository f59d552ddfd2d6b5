//! `--device`: the text as a typed request, and what this version can run of it.

use thiserror::Error;

/// What `--device` asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceRequest {
    /// The best device that this build has.
    Auto,
    /// That many CPU ranks on this machine (`cpu` one, `cpu,cpu` or `cpu:2` two).
    Cpu { ranks: usize },
    /// GPUs by number, one rank each (`0`, `0,1`, `cuda:0`).
    Gpus(Vec<u32>),
    /// That many GPUs with nothing to do, picked at the start (`-1`, `-1,-1`).
    IdleGpus { count: usize },
    /// GPUs by number through wgpu (`wgpu`, `wgpu:0`, `wgpu:0,1`).
    Wgpu(Vec<u32>),
}

/// Why a `--device` text cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DeviceError {
    #[error("{text:?} names no device: allowed is {}", DeviceRequest::ALLOWED)]
    Unknown { text: String },
    #[error("device {number} is there twice in {text}: name each device once")]
    Duplicate {
        text: String,
        number: u32,
        detail: String,
    },
    #[error(
        "device {text} cannot be used: this build has no {what}; build one that has: cargo install --path . --features {feature}, or give --device cpu"
    )]
    NotInThisBuild {
        text: String,
        what: &'static str,
        feature: &'static str,
    },
    #[error(
        "device {text} stands for {ranks} ranks, but `yolo-train {command}` runs on one: give --device cpu"
    )]
    OneRank {
        text: String,
        ranks: usize,
        command: &'static str,
    },
    #[error(
        "device {text} stands for one rank, but {what} needs several: give --device cpu,cpu (or cpu:N)"
    )]
    SeveralRanks { text: String, what: &'static str },
}

impl DeviceError {
    /// What is wrong, where more can be said than what is allowed.
    pub(super) fn detail(&self) -> Option<&str> {
        match self {
            DeviceError::Duplicate { detail, .. } => Some(detail),
            _ => None,
        }
    }
}

/// More ranks or devices than any machine has are a slip of the finger.
const MAX_DEVICES: usize = 1024;

impl DeviceRequest {
    /// What is allowed, in words that end a sentence.
    pub const ALLOWED: &'static str = "auto, cpu, cpu:2 or cpu,cpu (two ranks), 0 or 0,1 (GPUs), -1 (an idle GPU), cuda:0, wgpu:0";

    /// Reads the text of `--device`; upper and lower case mean the same.
    ///
    /// # Errors
    /// [`DeviceError::Unknown`] for anything that is not in [`Self::ALLOWED`], [`DeviceError::Duplicate`] for a GPU that is named
    /// twice (two ranks on one GPU would wait for each other).
    pub fn parse(text: &str) -> Result<Self, DeviceError> {
        let unknown = || DeviceError::Unknown {
            text: text.to_owned(),
        };
        let lower = text.trim().to_ascii_lowercase();
        let request = match lower.as_str() {
            "auto" => Self::Auto,
            "cuda" => Self::Gpus(vec![0]),
            "wgpu" => Self::Wgpu(vec![0]),
            lower => {
                if let Some(ranks) = lower.strip_prefix("cpu:") {
                    let ranks = ranks.parse().map_err(|_| unknown())?;
                    Self::Cpu { ranks }
                } else if let Some(numbers) = lower.strip_prefix("cuda:") {
                    Self::Gpus(distinct(text, numbers)?)
                } else if let Some(numbers) = lower.strip_prefix("wgpu:") {
                    Self::Wgpu(distinct(text, numbers)?)
                } else {
                    let items: Vec<&str> = lower.split(',').map(str::trim).collect();
                    if items.iter().all(|&item| item == "cpu") {
                        Self::Cpu { ranks: items.len() }
                    } else if items.iter().all(|&item| item == "-1") {
                        Self::IdleGpus { count: items.len() }
                    } else {
                        Self::Gpus(distinct(text, lower)?)
                    }
                }
            }
        };
        match &request {
            Self::Cpu { ranks } if !(1..=MAX_DEVICES).contains(ranks) => Err(unknown()),
            Self::IdleGpus { count } if *count > MAX_DEVICES => Err(unknown()),
            _ => Ok(request),
        }
    }

    /// Ranks that it stands for.
    pub fn ranks(&self) -> usize {
        match self {
            Self::Auto => 1,
            Self::Cpu { ranks } => *ranks,
            Self::Gpus(numbers) | Self::Wgpu(numbers) => numbers.len(),
            Self::IdleGpus { count } => *count,
        }
    }

    /// The `number`-th of its devices alone, from 0.
    pub fn device_of(&self, number: usize) -> Option<Self> {
        if number >= self.ranks() {
            return None;
        }
        Some(match self {
            Self::Auto => Self::Auto,
            Self::Cpu { .. } => Self::Cpu { ranks: 1 },
            Self::Gpus(numbers) => Self::Gpus(vec![numbers[number]]),
            Self::IdleGpus { .. } => Self::IdleGpus { count: 1 },
            Self::Wgpu(numbers) => Self::Wgpu(vec![numbers[number]]),
        })
    }

    /// Whether this build can compute on it: `auto` and CPU ranks always, the others with their feature. What the machine
    /// has is [`crate::gpu::resolve`]'s business.
    ///
    /// # Errors
    /// [`DeviceError::NotInThisBuild`]; `text` is what the user wrote.
    pub fn check_supported(&self, text: &str) -> Result<(), DeviceError> {
        let (built, what, feature) = match self {
            Self::Auto | Self::Cpu { .. } => return Ok(()),
            Self::Gpus(_) | Self::IdleGpus { .. } => (cfg!(feature = "cuda"), "CUDA", "cuda"),
            Self::Wgpu(_) => (cfg!(feature = "wgpu"), "wgpu", "wgpu"),
        };
        match built {
            true => Ok(()),
            false => Err(DeviceError::NotInThisBuild {
                text: text.to_owned(),
                what,
                feature,
            }),
        }
    }
}

/// Whether several ranks may compute on one GPU, which is slow and for tests: NCCL wants `NCCL_MULTI_RANK_GPU_ENABLE=1`
/// besides.
fn shared() -> bool {
    std::env::var_os("YOLO_TRAIN_SHARE_GPU").is_some_and(|v| v == "1")
}

fn distinct(text: &str, numbers: &str) -> Result<Vec<u32>, DeviceError> {
    let mut found: Vec<u32> = Vec::new();
    for item in numbers.split(',') {
        let item = item.trim();
        let number = item
            .parse::<u16>()
            .ok()
            .filter(|_| item.bytes().all(|byte| byte.is_ascii_digit()))
            .map(u32::from)
            .ok_or_else(|| DeviceError::Unknown {
                text: text.to_owned(),
            })?;
        if found.contains(&number) && !shared() {
            return Err(DeviceError::Duplicate {
                text: text.to_owned(),
                number,
                detail: format!("device {number} is there twice, name each device once"),
            });
        }
        found.push(number);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_understood() {
        use DeviceRequest::*;
        for (text, request) in [
            ("auto", Auto),
            ("AUTO", Auto),
            ("cpu", Cpu { ranks: 1 }),
            ("cpu:1", Cpu { ranks: 1 }),
            ("cpu:4", Cpu { ranks: 4 }),
            ("cpu,cpu", Cpu { ranks: 2 }),
            ("0", Gpus(vec![0])),
            ("0,1", Gpus(vec![0, 1])),
            ("1, 0", Gpus(vec![1, 0])),
            ("cuda", Gpus(vec![0])),
            ("cuda:2,3", Gpus(vec![2, 3])),
            ("-1", IdleGpus { count: 1 }),
            ("-1,-1", IdleGpus { count: 2 }),
            ("wgpu", Wgpu(vec![0])),
            ("wgpu:1", Wgpu(vec![1])),
        ] {
            assert_eq!(DeviceRequest::parse(text), Ok(request), "{text}");
        }
    }

    #[test]
    fn garbage_is_refused() {
        for text in [
            "",
            ",",
            "gpu",
            "cpu:",
            "cpu:0",
            "cpu:x",
            "cpu,0",
            "0,",
            "0,-1",
            "+1",
            "-2",
            "1.5",
            "cuda:",
            "wgpu:x",
            "0 1",
            "99999999999",
            "cpu:99999",
        ] {
            assert_eq!(
                DeviceRequest::parse(text),
                Err(DeviceError::Unknown { text: text.into() })
            );
        }
    }

    #[test]
    fn a_gpu_that_is_named_twice_is_refused() {
        for text in ["0,0", "1,0,1", "cuda:2,2", "wgpu:0,0"] {
            let error = DeviceRequest::parse(text).unwrap_err();
            assert!(matches!(error, DeviceError::Duplicate { .. }), "{error}");
        }
    }

    #[test]
    fn this_build_runs_auto_and_cpu_ranks_and_what_its_features_add() {
        let (cuda, wgpu) = (cfg!(feature = "cuda"), cfg!(feature = "wgpu"));
        for (text, runs) in [
            ("auto", true),
            ("cpu", true),
            ("cpu:1", true),
            ("cpu,cpu", true),
            ("cpu:2", true),
            ("0", cuda),
            ("-1", cuda),
            ("wgpu:0", wgpu),
        ] {
            let request = DeviceRequest::parse(text).unwrap();
            assert_eq!(request.check_supported(text).is_ok(), runs, "{text}");
        }
    }

    #[test]
    fn every_form_has_its_number_of_ranks() {
        for (text, ranks) in [
            ("auto", 1),
            ("cpu", 1),
            ("cpu,cpu", 2),
            ("cpu:4", 4),
            ("1,0", 2),
            ("-1,-1,-1", 3),
            ("wgpu:0", 1),
        ] {
            assert_eq!(DeviceRequest::parse(text).unwrap().ranks(), ranks, "{text}");
        }
    }
}
