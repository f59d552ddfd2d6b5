use crate::data::loader::LoaderError;
use crate::eval::{EvalError, InferError};
use crate::model::weights::WeightsError;
use crate::report::run_dir::RunDirError;
use std::path::PathBuf;

/// Why nothing, or not everything, was predicted.
#[derive(Debug, thiserror::Error)]
pub enum PredictError {
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error(transparent)]
    Loader(#[from] LoaderError),
    #[error(transparent)]
    Eval(#[from] EvalError),
    #[error(transparent)]
    Infer(#[from] InferError),
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// An address, a camera, a screen, a video.
    #[error("--source {given}: {kind} cannot be read; {advice}")]
    Kind {
        given: String,
        kind: &'static str,
        advice: &'static str,
    },
    /// Nothing of that name.
    #[error(
        "--source {given}: there is no such file or folder (looked for {}); a pattern has *, ? or [a-z] in it, in quotes",
        path.display()
    )]
    Missing { given: String, path: PathBuf },
    #[error("--source {given}: not a pattern: {reason} at character {position}")]
    Pattern {
        given: String,
        reason: &'static str,
        position: usize,
    },
    #[error("--source {given}: no images; {found}")]
    Empty { given: String, found: String },
    #[error("--source: {}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("--classes {class}: the weights have {} classes, 0 to {} ({})", names.len(), names.len().saturating_sub(1), names.join(", "))]
    NoSuchClass { class: usize, names: Vec<String> },
    #[error("cannot write {}: {source}", path.display())]
    Write {
        path: PathBuf,
        source: std::io::Error,
    },
    /// Some or all files could not be used; each was named when it was met.
    #[error(
        "{bad} of {images} images cannot be used (first {first}){}",
        if bad < images { "; the others are done" } else { "" }
    )]
    BadImages {
        bad: usize,
        images: usize,
        first: String,
    },
    #[error("interrupted")]
    Interrupted,
}
