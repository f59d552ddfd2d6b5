//! Which vector instructions the kernels use, chosen when the program runs.

#[cfg(target_arch = "aarch64")]
use super::simd::Neon;
#[cfg(target_arch = "x86_64")]
use super::simd::{Avx2, Avx512};
use super::simd::{Portable, Simd};

/// Environment variable that forces an instruction set: `avx512`, `avx2`, `neon` or `portable`.
pub const ISA_VARIABLE: &str = "YOLO_TRAIN_ISA";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "aarch64")]
    Neon,
    Portable,
}

/// An instruction set that this machine has. The only ways to get one check for it, so holding a value is the
/// proof that its instructions may be executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Isa(Kind);

/// An instruction set was forced that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IsaError {
    #[error("YOLO_TRAIN_ISA={value:?} names no instruction set; this machine has: {}", .available.join(", "))]
    Unknown {
        value: String,
        available: Vec<&'static str>,
    },
    #[error("YOLO_TRAIN_ISA={value}: this machine does not have it; it has: {}", .available.join(", "))]
    Unavailable {
        value: String,
        available: Vec<&'static str>,
    },
}

/// Work that is written once for every instruction set. `run` must be `#[inline(always)]`, and so must every
/// function that it calls with `s`: only then is it compiled with the instructions of `S`.
pub trait Kernel {
    type Output;
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

impl Isa {
    /// The instruction sets of this machine, best first. `portable` is always among them.
    pub fn available() -> Vec<Isa> {
        let mut all = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let avx512 = avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512bw");
            if avx512 {
                all.push(Isa(Kind::Avx512));
            }
            if avx2 {
                all.push(Isa(Kind::Avx2));
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            all.push(Isa(Kind::Neon));
        }
        all.push(Isa(Kind::Portable));
        all
    }

    /// The one that `YOLO_TRAIN_ISA` names, or the machine's best where it is unset or empty.
    pub fn detect() -> Result<Isa, IsaError> {
        match std::env::var_os(ISA_VARIABLE) {
            Some(value) if !value.is_empty() => Isa::parse(&value.to_string_lossy()),
            _ => Ok(Isa::best()),
        }
    }

    /// The machine's best.
    pub fn best() -> Isa {
        Isa::available()[0]
    }

    /// The one of that name, if the machine has it.
    pub fn parse(name: &str) -> Result<Isa, IsaError> {
        let available = Isa::available();
        if let Some(&isa) = available.iter().find(|isa| isa.name() == name) {
            return Ok(isa);
        }
        let value = name.to_string();
        let available = available.iter().map(|isa| isa.name()).collect();
        match name {
            "avx512" | "avx2" | "neon" => Err(IsaError::Unavailable { value, available }),
            _ => Err(IsaError::Unknown { value, available }),
        }
    }

    /// As `YOLO_TRAIN_ISA` spells it.
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => "neon",
            Kind::Portable => "portable",
        }
    }

    /// Elements of a vector.
    pub fn width(self) -> usize {
        struct Width;
        impl Kernel for Width {
            type Output = usize;
            #[inline(always)]
            fn run<S: Simd>(self, _: S) -> usize {
                S::N
            }
        }
        self.run(Width)
    }

    /// Vector registers.
    pub fn registers(self) -> usize {
        struct Registers;
        impl Kernel for Registers {
            type Output = usize;
            #[inline(always)]
            fn run<S: Simd>(self, _: S) -> usize {
                S::REGISTERS
            }
        }
        self.run(Registers)
    }

    /// Runs `kernel` compiled for this instruction set.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            // SAFETY: a value of `Isa` exists only where `available` found these features.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => unsafe { avx512(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { avx2(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => unsafe { neon(kernel) },
            Kind::Portable => kernel.run(Portable::new()),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bw,avx2,fma")]
fn avx512<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the features of the token are those of this function.
    kernel.run(unsafe { Avx512::new() })
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the features of the token are those of this function.
    kernel.run(unsafe { Avx2::new() })
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
fn neon<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the features of the token are those of this function.
    kernel.run(unsafe { Neon::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_portable_set_is_everywhere_and_names_are_read_back() {
        let all = Isa::available();
        assert_eq!(all.last().map(|i| i.name()), Some("portable"));
        for isa in all {
            assert_eq!(Isa::parse(isa.name()), Ok(isa));
        }
    }

    #[test]
    fn a_forced_set_that_is_unknown_or_missing_is_an_error_that_lists_the_machines() {
        let error = Isa::parse("sse9").unwrap_err();
        assert!(matches!(error, IsaError::Unknown { .. }));
        assert!(error.to_string().contains("portable"), "{error}");
        let missing = if cfg!(target_arch = "aarch64") {
            "avx2"
        } else {
            "neon"
        };
        assert!(matches!(
            Isa::parse(missing),
            Err(IsaError::Unavailable { .. })
        ));
    }
}
