//! Which numbers a run computes with.

use super::error::TrainError;
use crate::config::{Amp, Settings};
use burn::tensor::{DType, Device};

/// What activations and the weights that convolutions read are kept as. Weights themselves, statistics, sums and the loss
/// are float32 always.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    Float32,
    Bfloat16,
    Float16,
}

impl Precision {
    /// The tensor library's name.
    #[must_use]
    pub fn dtype(self) -> DType {
        match self {
            Self::Float32 => DType::F32,
            Self::Bfloat16 => DType::BF16,
            Self::Float16 => DType::F16,
        }
    }

    /// As `--amp` and `--tf32` say, for `device`; with a line for people. From then on operations on GPUs do as `--tf32` and
    /// `--deterministic` say.
    ///
    /// # Errors
    /// [`TrainError::Precision`]: the device does not have these numbers.
    pub fn of(s: &Settings, device: &Device) -> Result<(Self, String), TrainError> {
        #[cfg(feature = "gpu")]
        {
            crate::ops::gpu::precision::set_tf32(s.tf32);
            crate::ops::gpu::precision::set_deterministic(s.deterministic);
        }
        let gpu = *device != Device::flex();
        let has = |p: Self| gpu && device.supports_dtype(p.dtype());
        let wanted = match s.amp {
            Amp::Off => Self::Float32,
            Amp::Auto if has(Self::Bfloat16) => Self::Bfloat16,
            Amp::Auto => Self::Float32,
            Amp::Bf16 => Self::Bfloat16,
            Amp::Fp16 => Self::Float16,
        };
        if wanted != Self::Float32 && !has(wanted) {
            return Err(TrainError::Precision {
                amp: s.amp.name(),
                device: if gpu { "this GPU" } else { "the CPU" },
            });
        }
        let line = match wanted {
            Self::Float32 if gpu && s.tf32 => {
                "numbers: float32, convolutions round their inputs to TF32 (--tf32)"
            }
            Self::Float32 => "numbers: float32",
            Self::Bfloat16 => "numbers: activations bfloat16, weights and sums float32 (--amp)",
            Self::Float16 => {
                "numbers: activations float16 with loss scaling, weights and sums float32 (--amp)"
            }
        };
        Ok((wanted, line.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_computes_in_float32_and_refuses_what_it_has_not() {
        let mut s = Settings::default();
        let cpu = Device::flex();
        assert_eq!(Precision::of(&s, &cpu).unwrap().0, Precision::Float32);
        s.set("amp", "bf16").unwrap();
        let e = Precision::of(&s, &cpu).unwrap_err().to_string();
        assert!(
            e.contains("bf16") && e.contains("the CPU") && e.contains("--amp auto"),
            "{e}"
        );
    }
}
