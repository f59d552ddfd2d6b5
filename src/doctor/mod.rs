//! What this machine has of what training needs: `yolo-train doctor`.
//!
//! Everything is read from files of the system and from two small trials, and builds for GPUs ask their drivers; nothing
//! of the user's is changed, and the one temporary file is removed. What a system does not tell is `None`, and shown as unknown.

mod accelerators;
mod gpu;
mod limits;
mod machine;
mod report;
mod trial;

pub use accelerators::{Accelerators, Cuda};
pub use gpu::Gpus;
pub use limits::Cgroup;
pub use machine::{Machine, Space};
pub use report::{Advice, NotReady, Report};
pub use trial::{Trial, Trials};

use crate::ops::cpu::isa::{ISA_VARIABLE, Isa};
use serde::Serialize;
use std::path::Path;

/// Version of the framework beneath; a test compares it with Cargo.toml.
const BURN: &str = "0.22.1";

/// Which program this is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Versions {
    pub program: &'static str,
    /// Of the source, where whoever built it set `YOLO_TRAIN_COMMIT`.
    pub commit: Option<&'static str>,
    pub burn: &'static str,
    pub target: String,
}

/// Vector instructions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Instructions {
    /// Sets that this machine has, best first.
    pub available: Vec<&'static str>,
    /// The one that is used; `None` where the variable asks for one that cannot be.
    pub used: Option<&'static str>,
    /// Value of `YOLO_TRAIN_ISA`.
    pub forced: Option<String>,
    pub error: Option<String>,
}

impl Instructions {
    fn find() -> Self {
        let detected = Isa::detect();
        Self {
            available: Isa::available().iter().map(|isa| isa.name()).collect(),
            used: detected.as_ref().ok().map(|isa| isa.name()),
            forced: std::env::var(ISA_VARIABLE).ok().filter(|v| !v.is_empty()),
            error: detected.err().map(|e| e.to_string()),
        }
    }
}

/// Looks at this machine, for runs whose folders go into `project`.
#[must_use]
pub fn examine(project: &Path) -> Report {
    let versions = Versions {
        program: env!("CARGO_PKG_VERSION"),
        commit: option_env!("YOLO_TRAIN_COMMIT").filter(|c| !c.is_empty()),
        burn: BURN,
        target: format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
    };
    Report::new(
        versions,
        Instructions::find(),
        Machine::find(Path::new("/"), project),
        Gpus::find(Path::new("/")),
        Accelerators::find(),
        Trials::run(project),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_the_framework_is_the_one_that_is_built_in() {
        let manifest = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        let line = manifest.lines().find(|l| l.starts_with("burn = ")).unwrap();
        assert!(line.contains(&format!("\"={BURN}\"")), "{line}");
    }
}
