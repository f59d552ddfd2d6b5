//! Detection on the user's images: from `--source` to annotated images, label files and COCO results.
//!
//! ```text
//! source (which files) -> names (what their results are called) -> batches (decoded ahead by the loader's threads)
//!        -> eval::Inference, eval::Choice (as in validation) -> output
//! ```
//!
//! An image's detections depend on the image and the settings alone, and are those of `val` with a batch of one.

mod batches;
mod error;
mod names;
mod output;
mod run;
mod source;

pub use error::PredictError;
pub use run::run;
