//! Why a run ended early.

use super::checkpoint::CheckpointError;
use super::class_weights::ClassWeightsError;
use super::engine::EngineError;
use crate::config::ConfigError;
use crate::config::dataset::DatasetError;
use crate::config::model::ModelConfigError;
use crate::data::DataError;
use crate::data::loader::LoaderError;
use crate::dist::DistError;
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
    /// `--amp` asks for numbers that the device does not have.
    #[error("{device} does not compute with --amp {amp}: give --amp auto, or off for float32")]
    Precision {
        amp: &'static str,
        device: &'static str,
    },
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
    /// A checkpoint that cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// `--resume` names no run.
    #[error(
        "no run to go on with for {word}: {} hold{} no checkpoints; give the folder of a run",
        looked.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", "),
        if looked.len() == 1 { "s" } else { "" }
    )]
    NoRun { word: String, looked: Vec<PathBuf> },
    /// A run without checkpoints.
    #[error(
        "{} has no checkpoint in {}: it ended before the first one; start it again, or give its weights with --weights",
        run.display(), folder.display()
    )]
    NoCheckpoint { run: PathBuf, folder: PathBuf },
    /// Another process trains in the folder.
    #[error("{} is in use by another process; wait for it or end it first", run.display())]
    InUse { run: PathBuf },
    /// Options that a resumed run keeps.
    #[error(
        "a run goes on with its own options: {}; only {} may change (a new run can start from its weights)",
        refused.join("; "), may.join(", ")
    )]
    CannotChange {
        refused: Vec<String>,
        may: Vec<&'static str>,
    },
    /// Images or labels are not those that the run began with.
    #[error(
        "the data set {data} is not the one that {} was trained on (its images or labels have changed), so the run cannot go on to the same result; \
         start a new one from its weights/last.safetensors",
        run.display()
    )]
    DataChanged { data: String, run: PathBuf },
    /// Nothing is left to do.
    #[error("{} is finished: {reason}; --epochs N with more epochs extends it", run.display())]
    Finished { run: PathBuf, reason: String },
    /// Ctrl-C or SIGTERM.
    #[error("interrupted")]
    Interrupted,
    /// Between ranks.
    #[error(transparent)]
    Dist(#[from] DistError),
    /// Work that every rank does for itself failed on another one.
    #[error("rank {rank} failed ({what}): {reason}")]
    OtherRank {
        rank: usize,
        what: &'static str,
        reason: String,
    },
    /// Less than an image for each rank.
    #[error(
        "--batch {batch} is less than an image for each of {ranks} ranks: give --batch {ranks} or more, or fewer devices"
    )]
    BatchBelowRanks { batch: usize, ranks: usize },
    /// Less than a lane for each rank.
    #[error(
        "{lanes} lanes are fewer than {ranks} ranks: give --lanes {ranks} or more (another number of lanes gives other bits), or fewer devices"
    )]
    LanesBelowRanks { lanes: usize, ranks: usize },
    /// Ranks no longer have the same weights.
    #[error(
        "ranks have come apart: {tensor} of rank {rank} differs from rank 0's at step {step}; its memory or device may be faulty, please report this otherwise"
    )]
    Diverged {
        rank: usize,
        tensor: String,
        step: u64,
    },
    /// A test asked for it.
    #[error("a fault was injected on rank {rank} at step {step}: {place}")]
    Injected {
        rank: usize,
        step: u64,
        place: &'static str,
    },
    /// Validation over several ranks.
    #[error(transparent)]
    Validate(ValidateError),
    #[cfg(feature = "gpu")]
    #[error(transparent)]
    Device(super::device::DeviceError),
}

impl From<EngineError> for TrainError {
    fn from(e: EngineError) -> Self {
        match e {
            EngineError::Dist(e) => Self::Dist(e),
            #[cfg(feature = "gpu")]
            EngineError::Device(super::device::DeviceError::Dist(e)) => Self::Dist(e),
            #[cfg(feature = "gpu")]
            EngineError::Device(e) => Self::Device(e),
        }
    }
}

impl From<ValidateError> for TrainError {
    fn from(e: ValidateError) -> Self {
        match e {
            ValidateError::Loader(e) => Self::Loader(e),
            ValidateError::Eval(e) => Self::Eval(e),
            ValidateError::Interrupted => Self::Interrupted,
            ValidateError::Dist(e) => Self::Dist(e),
            e => Self::Validate(e),
        }
    }
}
