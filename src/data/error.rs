//! Why a split cannot be used.

use std::io;
use std::path::PathBuf;

use super::DownloadError;
use super::report::SplitReport;
use crate::config::dataset::{DatasetError, did_you_mean};

/// Every variant says what is wrong, with which value, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    #[error(transparent)]
    Download(#[from] DownloadError),
    #[error("{}: {source}", .path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{yaml}: names no `{split}` split (it names {})", .given.join(", "))]
    SplitNotGiven {
        yaml: String,
        split: &'static str,
        given: Vec<&'static str>,
    },
    #[error("{yaml}: the `{split}` split is missing; looked for {}. {hint}", paths(.tried))]
    SplitMissing {
        yaml: String,
        split: &'static str,
        tried: Vec<PathBuf>,
        hint: String,
    },
    #[error("{yaml}: `{split}: {value}`: {reason}")]
    SplitValue {
        yaml: String,
        split: &'static str,
        value: String,
        reason: String,
    },
    #[error("{}: none of its images is there; looked for {first} in {}. {hint}", .annotations.display(), paths(.tried))]
    ImagesMissing {
        annotations: PathBuf,
        first: String,
        tried: Vec<PathBuf>,
        hint: String,
    },
    #[error("{}:{line}:{column}: not valid JSON: {reason}", .path.display())]
    Json {
        path: PathBuf,
        line: usize,
        column: usize,
        reason: String,
    },
    #[error("{}: not a COCO file of detection annotations: {reason}", .path.display())]
    NotCoco { path: PathBuf, reason: String },
    #[error("{}: image id {id} is given twice, for {first} and {second}: annotations cannot be told apart", .path.display())]
    DuplicateImageId {
        path: PathBuf,
        id: u64,
        first: String,
        second: String,
    },
    #[error("{}: category {value}: {reason}", .path.display())]
    Category {
        path: PathBuf,
        value: String,
        reason: String,
    },
    #[error("{yaml}: `names` has `{name}`, which is no category of {}{}; it has: {}", .path.display(), did_you_mean(.suggestion), .available.join(", "))]
    NameNotInFile {
        yaml: String,
        name: String,
        path: PathBuf,
        suggestion: Option<String>,
        available: Vec<String>,
    },
    #[error("{yaml}: nc is {nc}, but {} has {found} categories ({}): correct nc, or select them by name with `names`", .path.display(), .available.join(", "))]
    CategoryCount {
        yaml: String,
        nc: usize,
        found: usize,
        path: PathBuf,
        available: Vec<String>,
    },
    #[error("{yaml}: YOLO txt labels have no class names: give `names` (or `nc`)")]
    NoNames { yaml: String },
    #[error("--classes {class}: there are {} classes, 0…{} ({})", .names.len(), .names.len().saturating_sub(1), .names.join(", "))]
    NoSuchClass { class: usize, names: Vec<String> },
    #[error("--classes: no class is given")]
    NoClasses,
    #[error("{yaml}: the `{split}` split has no images; looked for {looked_for}")]
    NoImages {
        yaml: String,
        split: &'static str,
        looked_for: String,
    },
    #[error(
        "{yaml}: the `{split}` split has {images} images and not one box to train on; looked for {looked_for}"
    )]
    NoLabels {
        yaml: String,
        split: &'static str,
        images: usize,
        looked_for: String,
        report: Box<SplitReport>,
    },
    #[error("{}: {} problem{} in the data; correct them, or give --skip-bad to leave these boxes and images out{}", .report.split, .report.malformed, if .report.malformed == 1 { "" } else { "s" }, .report.malformed_text())]
    Malformed { report: Box<SplitReport> },
    #[error("{}: no data set is recognised in this folder, which holds {holds}; looked for a dataset YAML, COCO JSON (annotations/*.json, \
             train/_annotations.coco.json), YOLO txt labels (images/train + labels/train, train/images + train/labels, or .txt \
             files beside the images), Pascal VOC (Annotations + JPEGImages, or .xml files beside the images)", .folder.display())]
    NoDataset { folder: PathBuf, holds: String },
    #[error("{}: which data set is meant? found {}; give the one that you mean as --data, or write a dataset file", .folder.display(), .found.join("; "))]
    SeveralDatasets { folder: PathBuf, found: Vec<String> },
    #[error("{} and {} give different class names: remove the wrong one", .first.display(), .second.display())]
    NamesDisagree { first: PathBuf, second: PathBuf },
    #[error("cannot start {threads} threads to check the data: {reason}")]
    Threads { threads: usize, reason: String },
    #[error("drawing the shapes data set into {}: {source}", .path.display())]
    Generate {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl DataError {
    /// The report of the split, where the data themselves are what is wrong: for `data-report.json`.
    pub fn report(&self) -> Option<&SplitReport> {
        match self {
            Self::Malformed { report } | Self::NoLabels { report, .. } => Some(report),
            _ => None,
        }
    }
}

fn paths(paths: &[PathBuf]) -> String {
    let shown: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    shown.join(", ")
}
