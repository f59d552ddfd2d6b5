use std::path::PathBuf;

/// What can go wrong between a network's boxes and the COCO figures.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    #[error("{names} class names but {ids} category ids: a split needs one id per class")]
    Categories { names: usize, ids: usize },

    #[error(
        "category id {id} stands for two classes, {first:?} and {second:?}: give each category its own id"
    )]
    RepeatedCategoryId {
        id: u64,
        first: String,
        second: String,
    },

    #[error(
        "image id {id} stands for two images, {first} and {second}: their boxes cannot be told apart; give each image its own id"
    )]
    RepeatedImageId {
        id: u64,
        first: String,
        second: String,
    },

    #[error(
        "{file}: ground truth {id} has class {class}, but the data set has {classes} classes (0 to {})",
        classes.saturating_sub(1)
    )]
    TruthClass {
        file: String,
        id: u64,
        class: usize,
        classes: usize,
    },

    #[error("image index {index} is outside the split of {images} images")]
    ImageIndex { index: usize, images: usize },

    #[error("{file}: detections were given twice, and would count twice")]
    ImageTwice { file: String },

    #[error(
        "{file}: a detection has class {class}, but the data set has {classes} classes (0 to {})",
        classes.saturating_sub(1)
    )]
    Class {
        file: String,
        class: usize,
        classes: usize,
    },

    #[error(
        "{file}: a detection is not finite (box {xyxy:?}, score {score}): the weights have probably diverged"
    )]
    NotFinite {
        file: String,
        xyxy: [f32; 4],
        score: f32,
    },

    #[error("evaluation {place}: {source}")]
    Matching {
        place: String,
        source: hotcoco::Error,
    },

    #[error("two evaluators of different splits cannot be merged")]
    OtherSplit,

    #[error("cannot write {path}: {source}")]
    Write {
        path: PathBuf,
        source: std::io::Error,
    },
}
