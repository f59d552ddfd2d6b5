//! What goes wrong on a GPU.

use cubecl::server::ServerError;

use crate::dist::DistError;
use crate::model::Network;
use crate::ops::DeviceFailure;
use crate::train::precision::Precision;

/// Why work on a GPU ended.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The driver, a kernel or an allocation failed.
    #[error(transparent)]
    Failed(#[from] DeviceFailure),
    /// As the last with the micro-batch that did not fit.
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
        Self::Failed(e.into())
    }
}

/// Images of a micro-batch on one GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::train) struct Images {
    pub count: usize,
    pub height: usize,
    pub width: usize,
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
        images: Images,
        ranks: usize,
    ) -> Self {
        let short = matches!(self, Self::Failed(DeviceFailure::Memory(_)));
        if !short || images == Images::default() {
            return self;
        }
        let Images {
            count: images,
            height,
            width,
        } = images;
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::model::ModelSpec;

    fn said(images: usize, ranks: usize) -> String {
        let network = Network::new(ModelSpec::resolve("yolo26n").unwrap(), 80);
        let images = Images {
            count: images,
            height: 640,
            width: 640,
        };
        let e = DeviceError::from(DeviceFailure::Memory("8 bytes".into()));
        e.with_size(&network, Precision::Float32, images, ranks)
            .to_string()
    }

    #[test]
    fn out_of_memory_names_what_did_not_fit_and_what_would() {
        let text = said(8, 2);
        assert!(text.contains("8 images of 640x640 did not fit"), "{text}");
        assert!(text.contains("about 4 images a rank would"), "{text}");
        assert!(text.contains("--batch 8"), "{text}");
        let text = said(1, 1);
        assert!(text.contains("give a smaller --imgsz or --model"), "{text}");
    }
}
