//! Why a run ended early.

use super::class_weights::ClassWeightsError;
use crate::config::ConfigError;
use crate::config::dataset::DatasetError;
use crate::config::model::ModelConfigError;
use crate::data::DataError;
use crate::data::loader::LoaderError;
use crate::eval::{EvalError, ValidateError};
use crate::model::freeze::FreezeError;
use crate::model::weights::WeightsError;
use crate::ops::cpu::isa::IsaError;
use crate::report::run_dir::RunDirError;
use std::path::PathBuf;

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Isa(#[from] IsaError),
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Loader(#[from] LoaderError),
    #[error(transparent)]
    Model(#[from] ModelConfigError),
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error(transparent)]
    Freeze(#[from] FreezeError),
    #[error(transparent)]
    ClassWeights(#[from] ClassWeightsError),
    #[error(transparent)]
    Eval(#[from] EvalError),
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// A file of the run could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        path: PathBuf,
        source: std::io::Error,
    },
    /// Weights that do not serialize.
    #[error("cannot write {}: {reason}", path.display())]
    Serialize { path: PathBuf, reason: String },
    /// Threads could not be started.
    #[error("cannot start {threads} threads: {reason}; try fewer --threads")]
    Threads { threads: usize, reason: String },
    /// A loss or a gradient became NaN or infinite.
    #[error(
        "the {what} is not finite in epoch {epoch}, batch {batch} (step {step}); images: {}; \
         try a lower --lr0, longer --warmup-epochs, or look at these images and their labels",
        files.join(", ")
    )]
    NotFinite {
        what: &'static str,
        epoch: usize,
        batch: usize,
        step: u64,
        files: Vec<String>,
    },
    /// The weights and the data set do not fit.
    #[error(
        "{weights} was trained on {trained:?}, but {data} has the classes {found:?}; give the data set with these names in the same order"
    )]
    Classes {
        weights: String,
        trained: Vec<String>,
        data: String,
        found: Vec<String>,
    },
    /// The loader has nothing to offer.
    #[error(
        "no batch to train on: {images} images and --batch {batch} with --drop-last leave none; lower --batch or leave --drop-last out"
    )]
    NoBatch { images: usize, batch: usize },
    /// Ctrl-C or SIGTERM.
    #[error("interrupted")]
    Interrupted,
}

impl From<ValidateError> for TrainError {
    fn from(e: ValidateError) -> Self {
        match e {
            ValidateError::Loader(e) => Self::Loader(e),
            ValidateError::Eval(e) => Self::Eval(e),
            ValidateError::Interrupted => Self::Interrupted,
        }
    }
}
