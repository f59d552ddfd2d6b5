//! What goes wrong on a GPU.

use cubecl::server::ServerError;

use crate::dist::DistError;
use crate::loss::MicroBatch;
use crate::model::Network;
use crate::train::precision::Precision;

/// Why work on a GPU ended.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The driver or a kernel failed.
    #[error("the GPU failed: {reason}")]
    Failed { reason: String },
    /// An allocation failed.
    #[error(
        "out of memory on the GPU: {images} images of {width}x{height} did not fit; {}",
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

/// Part of a GPU's memory that training may fill.
const USABLE: f64 = 0.9;
/// What is kept of a forward pass, in outputs of convolutions: what batch norms read, what they give, concatenations.
const KEPT: f64 = 2.5;

impl DeviceError {
    /// A failure for want of memory says what did not fit, and what would.
    pub(in crate::train) fn with_size(
        self,
        network: &Network,
        precision: Precision,
        batch: &MicroBatch,
        ranks: usize,
    ) -> Self {
        if !self.is_memory() {
            return self;
        }
        let (images, height, width) = (batch.truths.len(), batch.height, batch.width);
        let outputs = network.conv_outputs((height, width)) as f64;
        let per_image = outputs * KEPT * precision.dtype().size() as f64;
        // weights, average, gradient, two moments
        let fixed = 5.0 * 4.0 * network.layout.param_len as f64;
        let fits = match crate::gpu::memory_of_assigned() {
            Some(bytes) => ((bytes as f64 * USABLE - fixed) / per_image).max(0.0) as usize,
            None => images / 2,
        };
        let fits = fits.min(images.saturating_sub(1));
        Self::Memory {
            images,
            height,
            width,
            fits,
            batch: fits * ranks,
        }
    }

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
