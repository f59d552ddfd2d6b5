//! The dataset YAML: where the splits of a data set lie and how its classes are called.
//!
//! Keys: `path, train, val (or validation), test, names, nc, download, generate`. Reading a file never
//! touches the images and never executes anything; [`crate::data::load_split`] looks at the data.

mod download;
mod folder;
mod raw;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};

use super::nearest;
pub use super::settings::SplitName;
pub use download::{Download, EmbeddedFile, Source, Wanted};
use raw::{RawDataset, RawNames, RawSplit};

/// Dataset files inside the binary, found by name when no such file lies on disk.
const EMBEDDED: [(&str, &str); 4] = [
    ("shapes.yaml", include_str!("../../datasets/shapes.yaml")),
    ("coco8.yaml", include_str!("../../datasets/coco8.yaml")),
    ("coco128.yaml", include_str!("../../datasets/coco128.yaml")),
    ("coco.yaml", include_str!("../../datasets/coco.yaml")),
];

/// The folder that relative `path`s fall back to, under the working directory.
pub const DATASETS_DIR: &str = "datasets";

const KEYS: [&str; 9] = [
    "path",
    "train",
    "val",
    "validation",
    "test",
    "names",
    "nc",
    "download",
    "generate",
];

/// Keys of the incumbent's other tasks and of labelling sites: known, of no meaning here, no warning.
const IGNORED_KEYS: [&str; 7] = [
    "channels",
    "flip_idx",
    "kpt_names",
    "kpt_shape",
    "license",
    "minival",
    "roboflow",
];

impl SplitName {
    pub const ALL: [Self; 3] = [Self::Train, Self::Val, Self::Test];

    /// The key in the dataset file.
    pub fn key(self) -> &'static str {
        self.name()
    }
}

impl fmt::Display for SplitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.key())
    }
}

/// What a split's key holds, as written; [`DatasetYaml::resolve`] makes paths of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SplitSource {
    /// Folders, `.txt` lists or one COCO `.json`.
    Paths(Vec<String>),
    /// `{images: DIR, annotations: FILE}`.
    Pair { images: String, annotations: String },
}

/// A built-in generator of images, named by the `generate` key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generator {
    Shapes,
}

/// A dataset file, read and checked for itself, its root folder located.
#[derive(Debug, Clone)]
pub struct DatasetYaml {
    /// How messages call it: the path as given, or "shapes.yaml (built in)".
    pub label: String,
    /// The file on disk; `None` for an embedded one.
    pub file: Option<PathBuf>,
    /// The folder that splits are relative to. If it does not exist anywhere: where it should be.
    pub root: PathBuf,
    /// The folders that `path` was looked for in, in order, when none exists. Empty: found.
    pub root_tried: Vec<PathBuf>,
    pub train: Option<SplitSource>,
    pub val: Option<SplitSource>,
    pub test: Option<SplitSource>,
    /// `names`, in class order. `None`: taken from the COCO JSON, or `class_0…` from [`Self::nc`].
    pub names: Option<Vec<String>>,
    pub nc: Option<usize>,
    /// Classes that the data are to be read for where the file has no `names`, such as those of a trained
    /// network; not a key, set by who loads the file. COCO categories are matched by name, and one that is
    /// missing is a warning.
    pub class_order: Option<Vec<String>>,
    pub download: Option<Download>,
    pub generate: Option<Generator>,
    /// Lines for the user, e.g. on unknown keys.
    pub warnings: Vec<String>,
    /// Lines for the user on what was found out, for data sets that are given as a folder.
    pub notes: Vec<String>,
    /// The part of the training split that is held out as validation, where nothing names a validation split;
    /// not a key, set where a folder is given.
    pub holdout: Option<f64>,
}

/// Why a dataset file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    #[error("no data set `{given}`: there is no such file, and no built-in one of that name{}; built in: {}", did_you_mean(.suggestion), .embedded.join(", "))]
    NotFound {
        given: String,
        suggestion: Option<String>,
        embedded: Vec<String>,
    },
    #[error(
        "`{given}` is {what}; --data takes a dataset file such as: path: {path}, train: {train}, val: …, names: […]"
    )]
    NotYaml {
        given: String,
        what: &'static str,
        path: String,
        train: String,
    },
    #[error("{}: {source}", .path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{label}: {reason}")]
    Syntax { label: String, reason: String },
    #[error("{label}: `{key}` is `{value}`: {expected}")]
    Value {
        label: String,
        key: String,
        value: String,
        expected: String,
    },
    #[error("{label}: nc is {nc}, but `names` holds {names}: correct one of them or leave nc out")]
    NamesCount {
        label: String,
        nc: usize,
        names: usize,
    },
    #[error("{label}: `val` and `validation` are the same key: leave one out")]
    ValTwice { label: String },
    #[error(
        "{label}: names no split: give `train` and `val`, each a folder of images, a .txt list or a COCO .json"
    )]
    NoSplits { label: String },
}

impl DatasetYaml {
    /// Finds and reads the file of `--data`: a path as given, else an embedded file by name (`shapes` or
    /// `shapes.yaml`). Relative paths are relative to the working directory.
    ///
    /// # Errors
    /// [`DatasetError`]: no such file, YAML that cannot be read, keys that contradict each other.
    pub fn load(data: &str) -> Result<Self, DatasetError> {
        Self::load_in(data, Path::new(""))
    }

    /// [`Self::load`] with another folder in the place of the working directory.
    pub fn load_in(data: &str, working_dir: &Path) -> Result<Self, DatasetError> {
        let file = working_dir.join(data);
        if file.is_file() {
            if has_extension(&file, "json") {
                return Err(not_yaml(data, "a JSON file", Path::new(data)));
            }
            let text = std::fs::read_to_string(&file).map_err(|source| DatasetError::Io {
                path: file.clone(),
                source,
            })?;
            return Self::parse(&text, data, Some(&file), working_dir);
        }
        let embedded = EMBEDDED
            .iter()
            .find(|(name, _)| *name == data || name.strip_suffix(".yaml") == Some(data));
        if let Some((name, text)) = embedded {
            return Self::parse(text, &format!("{name} (built in)"), None, working_dir);
        }
        if file.is_dir() {
            return Err(not_yaml(data, "a folder", Path::new("images/train")));
        }
        let names: Vec<String> = EMBEDDED.iter().map(|(name, _)| name.to_string()).collect();
        Err(DatasetError::NotFound {
            given: data.to_owned(),
            suggestion: nearest(data, names.iter().map(String::as_str)).map(str::to_owned),
            embedded: names,
        })
    }

    /// Reads the text of a dataset file that lies at `file` (`None`: embedded, its data live in ./datasets).
    pub fn parse(
        text: &str,
        label: &str,
        file: Option<&Path>,
        working_dir: &Path,
    ) -> Result<Self, DatasetError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let raw: RawDataset =
            serde_saphyr::from_str(text).map_err(|error| DatasetError::Syntax {
                label: label.to_owned(),
                reason: one_line(&error.without_snippet().to_string()),
            })?;
        let bad = |key: &str, value: &str, expected: &str| DatasetError::Value {
            label: label.to_owned(),
            key: key.to_owned(),
            value: value.to_owned(),
            expected: expected.to_owned(),
        };

        let mut warnings: Vec<String> = Vec::new();
        for key in &raw.unknown {
            if !IGNORED_KEYS.contains(&key.as_str()) {
                let suggestion = nearest(key, KEYS).map(str::to_owned);
                warnings.push(format!(
                    "{label}: unknown key `{key}` is ignored{}",
                    did_you_mean(&suggestion)
                ));
            }
        }

        if raw.val.is_some() && raw.validation.is_some() {
            return Err(DatasetError::ValTwice {
                label: label.to_owned(),
            });
        }
        let val = raw.val.or(raw.validation);
        if raw.train.is_none() && val.is_none() && raw.test.is_none() {
            return Err(DatasetError::NoSplits {
                label: label.to_owned(),
            });
        }

        let names = raw
            .names
            .map(|names| ordered_names(names, label))
            .transpose()?;
        if let (Some(names), Some(nc)) = (&names, raw.nc)
            && names.len() != nc
        {
            return Err(DatasetError::NamesCount {
                label: label.to_owned(),
                nc,
                names: names.len(),
            });
        }
        if raw.nc == Some(0) {
            return Err(bad("nc", "0", "at least one class is needed"));
        }

        let generate = match raw.generate.as_deref() {
            None => None,
            Some("shapes") => Some(Generator::Shapes),
            Some(other) => return Err(bad("generate", other, "the only generator is `shapes`")),
        };
        let download = match raw.download {
            Some(raw) => raw.read(label)?,
            None => None,
        };
        if let Some(Download::Code { first_line }) = &download {
            warnings.push(format!(
                "{label}: `download` holds code (`{first_line}`), which is never executed"
            ));
        }

        let (root, root_tried) = locate_root(raw.path.as_deref(), file, working_dir);
        Ok(Self {
            label: label.to_owned(),
            file: file.map(Path::to_path_buf),
            root,
            root_tried,
            train: raw.train.map(SplitSource::from),
            val: val.map(SplitSource::from),
            test: raw.test.map(SplitSource::from),
            names,
            nc: raw.nc,
            class_order: None,
            download,
            generate,
            warnings,
            notes: Vec::new(),
            holdout: None,
        })
    }

    /// The entry of a split, if the file names it; validation that is held out has that of training.
    pub fn split(&self, which: SplitName) -> Option<&SplitSource> {
        match which {
            SplitName::Train => self.train.as_ref(),
            SplitName::Val if self.val.is_none() && self.holdout.is_some() => self.train.as_ref(),
            SplitName::Val => self.val.as_ref(),
            SplitName::Test => self.test.as_ref(),
        }
    }

    /// Keys of the splits that the file names, for messages.
    pub fn splits_given(&self) -> Vec<&'static str> {
        SplitName::ALL
            .into_iter()
            .filter(|&which| self.split(which).is_some())
            .map(SplitName::key)
            .collect()
    }

    /// Class names if they follow from this file alone: `names`, or `class_0…` from `nc`.
    pub fn class_names(&self) -> Option<Vec<String>> {
        self.names.clone().or_else(|| {
            self.nc
                .map(|nc| (0..nc).map(|class| format!("class_{class}")).collect())
        })
    }

    /// The existing path of an entry relative to the root.
    ///
    /// An entry `../train/images` that exists only without its leading `../` is found there: one labelling
    /// site exports its files so, one level off.
    ///
    /// # Errors
    /// The paths that were tried, in order.
    pub fn resolve(&self, entry: &str) -> Result<PathBuf, Vec<PathBuf>> {
        let mut tried = vec![self.root.join(entry)];
        if let Some(rest) = entry.strip_prefix("../") {
            tried.push(self.root.join(rest));
        }
        match tried.iter().find(|path| path.exists()) {
            Some(path) => Ok(path.clone()),
            None => Err(tried),
        }
    }

    /// One sentence on how the missing files get to where they are looked for.
    pub fn missing_hint(&self) -> String {
        let root = self.root.display();
        match (&self.generate, &self.download) {
            (Some(Generator::Shapes), _) => {
                format!(
                    "`generate: shapes` draws them into {root} when the folder is missing; remove or rename that folder"
                )
            }
            (None, Some(download)) => download.hint(&self.root),
            (None, None) => format!(
                "put the files into {root}, or correct `path` in {}",
                self.label
            ),
        }
    }
}

impl From<RawSplit> for SplitSource {
    fn from(raw: RawSplit) -> Self {
        match raw {
            RawSplit::Paths(paths) => Self::Paths(paths),
            RawSplit::Pair {
                images,
                annotations,
            } => Self::Pair {
                images,
                annotations,
            },
        }
    }
}

/// Names in class order; a map must number them 0, 1, 2, … without gaps, in any order.
fn ordered_names(raw: RawNames, label: &str) -> Result<Vec<String>, DatasetError> {
    let bad = |value: String, expected: String| DatasetError::Value {
        label: label.to_owned(),
        key: "names".to_owned(),
        value,
        expected,
    };
    let names = match raw {
        RawNames::List(names) => names,
        RawNames::Map(mut pairs) => {
            pairs.sort_by_key(|(class, _)| *class);
            if let Some((expected, (class, name))) = pairs
                .iter()
                .enumerate()
                .find(|(expected, (class, _))| *expected as u64 != *class)
            {
                return Err(bad(
                    format!("{class}: {name}"),
                    format!(
                        "classes are numbered 0, 1, 2, …; {expected} is missing or given twice"
                    ),
                ));
            }
            pairs.into_iter().map(|(_, name)| name).collect()
        }
    };
    if names.is_empty() {
        return Err(bad(
            "[]".to_owned(),
            "at least one name is needed".to_owned(),
        ));
    }
    for (class, name) in names.iter().enumerate() {
        if name.trim().is_empty() {
            return Err(bad(
                format!("{class}: {name}"),
                "a name must not be empty".to_owned(),
            ));
        }
        if let Some(first) = names[..class].iter().position(|other| other == name) {
            return Err(bad(
                name.clone(),
                format!("classes {first} and {class} have the same name"),
            ));
        }
    }
    Ok(names)
}

/// `path` relative to the file's folder, then to ./datasets; without `path` the file's folder itself.
fn locate_root(
    path: Option<&str>,
    file: Option<&Path>,
    working_dir: &Path,
) -> (PathBuf, Vec<PathBuf>) {
    let datasets = working_dir.join(DATASETS_DIR);
    let folder = file.map(|file| match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    });
    let Some(path) = path.map(str::trim).filter(|path| !path.is_empty()) else {
        return (folder.unwrap_or(datasets), Vec::new());
    };
    let mut candidates: Vec<PathBuf> = Vec::new();
    candidates.extend(folder.map(|folder| folder.join(path)));
    candidates.push(datasets.join(path));
    candidates.dedup(); // an absolute path joins to itself
    match candidates.iter().find(|candidate| candidate.is_dir()) {
        Some(found) => (found.clone(), Vec::new()),
        None => {
            let expected = candidates
                .last()
                .expect("the datasets folder was pushed")
                .clone();
            (expected, candidates)
        }
    }
}

fn not_yaml(given: &str, what: &'static str, train: &Path) -> DatasetError {
    let path = if what == "a folder" { given } else { "." };
    DatasetError::NotYaml {
        given: given.to_owned(),
        what,
        path: path.to_owned(),
        train: train.display().to_string(),
    }
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension()
        .is_some_and(|found| found.eq_ignore_ascii_case(extension))
}

/// `; did you mean …?`, or nothing.
pub(crate) fn did_you_mean(suggestion: &Option<String>) -> String {
    match suggestion {
        Some(suggestion) => format!("; did you mean `{suggestion}`?"),
        None => String::new(),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
