//! What goes wrong on a GPU.

use cubecl::server::ServerError;

use crate::dist::DistError;

/// Why work on a GPU ended.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The driver or a kernel failed.
    #[error("the GPU failed: {reason}")]
    Failed { reason: String },
    /// An allocation failed.
    #[error(
        "out of memory on the GPU: {images} images of {width}x{height} did not fit{}; {}",
        asked.as_deref().map(|a| format!(" ({a})")).unwrap_or_default(),
        if *fits == 0 {
            "give a smaller --imgsz or --model".to_owned()
        } else {
            format!("about {fits} images a rank would: give --batch {batch} (gradients are added up to the same step), a smaller --imgsz or --model")
        }
    )]
    Memory {
        images: usize,
        height: usize,
        width: usize,
        /// What the driver was asked for.
        asked: Option<String>,
        /// Images of a rank that would fit; 0 if unknown.
        fits: usize,
        /// The whole batch then.
        batch: usize,
    },
    /// Another rank is lost, late, or does something else.
    #[error(transparent)]
    Dist(#[from] DistError),
}

impl From<ServerError> for DeviceError {
    fn from(e: ServerError) -> Self {
        Self::Failed {
            reason: e.to_string(),
        }
    }
}

impl DeviceError {
    /// Whether it says that memory was not enough.
    pub(super) fn is_memory(&self) -> bool {
        let Self::Failed { reason } = self else {
            return false;
        };
        let reason = reason.to_ascii_lowercase();
        ["out of memory", "out_of_memory", "outofmemory"]
            .iter()
            .any(|w| reason.contains(w))
    }
}
