//! A data set given as its folder (or as its COCO file) alone: finds out its format, its splits and its class
//! names, and says what it found. What could be meant in two ways is an error that lists both.
//!
//! Looked for, in this order: a dataset YAML in the folder; COCO JSON (`annotations/instances_train.json` and
//! the like, `train/_annotations.coco.json`, a file beside the images); Darknet's `obj.data`; Pascal VOC
//! (`Annotations`, `ImageSets/Main`); folders of images with YOLO txt or VOC XML labels (`images/train`,
//! `train/images`, `train`, `images`, the folder itself). If nothing is found, the folders below are looked at.

mod coco_files;
mod layout;
mod names;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};

use super::DataError;
use super::voc_index;
use crate::config::dataset::{DatasetError, DatasetYaml, SplitName, SplitSource};

/// The part of the training images that is held out where a folder has no validation part.
pub const HOLDOUT: f64 = 0.1;
/// How deep a data set may lie below the folder that was given.
const DEEPEST: usize = 3;
/// More folders than this beside each other are not each a data set.
const MOST_FOLDERS: usize = 64;

/// What `--data` names: a dataset file, a built-in one, a folder, or a COCO JSON file. `notes` of the result
/// say what was found out of a folder.
///
/// # Errors
/// [`DataError`]: as [`DatasetYaml::load`], and folders that hold no data set or more than one.
pub fn open(data: &str) -> Result<DatasetYaml, DataError> {
    open_in(data, Path::new(""))
}

/// [`open`] with another folder in the place of the working directory.
pub fn open_in(data: &str, working_dir: &Path) -> Result<DatasetYaml, DataError> {
    match DatasetYaml::load_in(data, working_dir) {
        Err(DatasetError::NotYaml { .. }) if !data.trim().is_empty() => {}
        other => return Ok(other?),
    }
    let path = working_dir.join(data);
    let found = if path.is_dir() {
        let mut found = find(&path, 0)?;
        match found.len() {
            1 => found.remove(0),
            0 => {
                return Err(DataError::NoDataset {
                    folder: path.clone(),
                    holds: contents(&path),
                });
            }
            _ => {
                return Err(DataError::SeveralDatasets {
                    folder: path,
                    found: found.iter().map(Found::text).collect(),
                });
            }
        }
    } else {
        coco_files::of_file(&path)?
    };
    describe(data, found)
}

/// A data set that was found.
struct Found {
    root: PathBuf,
    content: Content,
}

enum Content {
    /// A dataset file.
    Yaml(PathBuf),
    Splits(Splits),
}

#[derive(Default)]
struct Splits {
    format: &'static str,
    /// Entries relative to the root. A split of the whole is the training one, part of which is held out.
    train: Vec<String>,
    val: Vec<String>,
    test: Vec<String>,
    names: ClassNames,
    notes: Vec<String>,
}

/// Where class names come from.
#[derive(Default, Clone, PartialEq)]
enum ClassNames {
    /// The categories of the COCO file, or the names in the XML files.
    #[default]
    FromLabels,
    Given {
        names: Vec<String>,
        from: String,
    },
    /// YOLO txt without a file of names: numbers up to the highest in the labels.
    Numbered(usize),
}

impl Splits {
    fn of(&mut self, which: SplitName) -> &mut Vec<String> {
        match which {
            SplitName::Train => &mut self.train,
            SplitName::Val => &mut self.val,
            SplitName::Test => &mut self.test,
        }
    }

    fn parts(&self) -> String {
        let all = [
            ("train", &self.train),
            ("val", &self.val),
            ("test", &self.test),
        ];
        let given = all.into_iter().filter(|(_, entries)| !entries.is_empty());
        let shown = |entries: &[String]| {
            let shown = entries.iter().map(|entry| match entry.as_str() {
                "" => ".",
                entry => entry,
            });
            shown.collect::<Vec<_>>().join(", ")
        };
        given
            .map(|(split, entries)| format!("{split} {}", shown(entries)))
            .collect::<Vec<_>>()
            .join("; ")
    }
}

impl Found {
    fn splits(root: &Path, splits: Splits) -> Self {
        Self {
            root: root.to_path_buf(),
            content: Content::Splits(splits),
        }
    }

    /// For lists of what could be meant.
    fn text(&self) -> String {
        match &self.content {
            Content::Yaml(file) => format!("the dataset file {}", file.display()),
            Content::Splits(splits) => {
                format!(
                    "{} in {} ({})",
                    splits.format,
                    self.root.display(),
                    splits.parts()
                )
            }
        }
    }

    fn is_voc_with_lists(&self) -> bool {
        matches!(&self.content, Content::Splits(splits)
            if splits.format == voc_index::FORMAT && splits.train.iter().any(|e| e.ends_with(".txt")))
    }
}

/// All data sets at the top of a folder; if there is none, those of the folders below it.
fn find(folder: &Path, depth: usize) -> Result<Vec<Found>, DataError> {
    if let Some(found) = find_yaml(folder)? {
        return Ok(vec![found]);
    }
    let mut found: Vec<Found> = Vec::new();
    found.extend(coco_files::find(folder)?);
    found.extend(layout::find(folder)?);
    if !found.is_empty() || depth >= DEEPEST {
        return Ok(found);
    }
    let folders = folders_in(folder);
    if folders.len() > MOST_FOLDERS {
        return Ok(found);
    }
    for below in folders {
        found.extend(find(&below, depth + 1)?);
    }
    if found.len() > 1 && found.iter().all(Found::is_voc_with_lists) {
        return Ok(vec![merge_years(folder, found)]);
    }
    Ok(found)
}

/// `VOC2007` and `VOC2012` beside each other are one data set.
fn merge_years(folder: &Path, found: Vec<Found>) -> Found {
    let mut all = Splits {
        format: voc_index::FORMAT,
        ..Splits::default()
    };
    for Found { root, content } in found {
        let Content::Splits(mut splits) = content else {
            continue;
        };
        for which in SplitName::ALL {
            let entries = std::mem::take(splits.of(which));
            all.of(which)
                .extend(entries.iter().map(|e| relative(folder, &root.join(e))));
        }
    }
    Found::splits(folder, all)
}

/// `data.yaml` or `dataset.yaml`, else the only YAML file that is a dataset file.
fn find_yaml(folder: &Path) -> Result<Option<Found>, DataError> {
    let found = |file: PathBuf| Found {
        root: folder.to_path_buf(),
        content: Content::Yaml(file),
    };
    let usual = ["data.yaml", "dataset.yaml", "data.yml", "dataset.yml"];
    if let Some(file) = usual
        .iter()
        .map(|name| folder.join(name))
        .find(|f| f.is_file())
    {
        return Ok(Some(found(file)));
    }
    let mut files = files_in(folder, &["yaml", "yml"]);
    files.retain(|file| {
        let text = fs::read_to_string(file).unwrap_or_default();
        DatasetYaml::parse(&text, "", Some(file), Path::new("")).is_ok()
    });
    if files.len() > 1 {
        return Err(DataError::SeveralDatasets {
            folder: folder.to_path_buf(),
            found: files.iter().map(|f| f.display().to_string()).collect(),
        });
    }
    Ok(files.pop().map(found))
}

/// Makes a data set of what was found, with the lines for the user.
fn describe(data: &str, found: Found) -> Result<DatasetYaml, DataError> {
    let (mut yaml, mut line) = match found.content {
        Content::Yaml(file) => {
            let label = file.display().to_string();
            let mut yaml = DatasetYaml::load_in(&label, Path::new(""))?;
            if !yaml.root_tried.is_empty() {
                yaml.warnings.push(format!(
                    "{label}: its `path` is not here ({}); its own folder is taken",
                    yaml.root.display()
                ));
                yaml.root = found.root;
                yaml.root_tried.clear();
            }
            let line = format!("{data}: described by {label}");
            (yaml, line)
        }
        Content::Splits(splits) => {
            let mut yaml = DatasetYaml::of_folder(data, &found.root);
            let mut line = format!("{data}: {}, {}", splits.format, splits.parts());
            if found.root != Path::new(data) {
                line = format!(
                    "{data}: {} in {}, {}",
                    splits.format,
                    found.root.display(),
                    splits.parts()
                );
            }
            match splits.names {
                ClassNames::FromLabels => {}
                ClassNames::Given { names, from } => {
                    line.push_str(&format!("; {} class names from {from}", names.len()));
                    yaml.names = Some(names);
                }
                ClassNames::Numbered(count) => {
                    yaml.warnings.push(format!(
                        "{data}: no file of class names (classes.txt, obj.names, *.names, data.yaml): the {count} classes up to the \
                         highest number in the labels are called class_0…class_{}",
                        count - 1
                    ));
                    yaml.nc = Some(count);
                }
            }
            let source =
                |entries: Vec<String>| (!entries.is_empty()).then_some(SplitSource::Paths(entries));
            yaml.train = source(splits.train);
            yaml.val = source(splits.val);
            yaml.test = source(splits.test);
            yaml.warnings.extend(splits.notes);
            (yaml, line)
        }
    };
    if yaml.val.is_none() && yaml.train.is_some() {
        yaml.holdout = Some(HOLDOUT);
        line.push_str(&format!(
            "; no validation part, so {:.0} % of the training images, at least one, by a hash of their names, are held out as that",
            HOLDOUT * 100.0
        ));
    }
    yaml.notes.push(line);
    Ok(yaml)
}

/// What a word in a name says of a split: `train2017`, `valid`, `test-dev`.
fn split_word(word: &str) -> Option<SplitName> {
    let word = word.to_lowercase();
    match word.trim_end_matches(|c: char| c.is_ascii_digit()) {
        "train" | "training" => Some(SplitName::Train),
        "val" | "valid" | "validation" | "dev" => Some(SplitName::Val),
        "test" | "testing" => Some(SplitName::Test),
        _ => None,
    }
}

/// `path` below `root` with `/`.
fn relative(root: &Path, path: &Path) -> String {
    super::source::relative_name(root, path)
}

/// Files of these extensions at the top of a folder, by name, without hidden ones.
fn files_in(folder: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut files = entries_of(folder);
    files.retain(|path| {
        let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase());
        extension.is_some_and(|e| extensions.contains(&e.as_str())) && path.is_file()
    });
    files
}

/// The folders in a folder, by name, without hidden ones.
fn folders_in(folder: &Path) -> Vec<PathBuf> {
    let mut folders = entries_of(folder);
    // Most entries of a large folder are files with an extension: not one call to the system for each.
    folders.retain(|path| {
        let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase());
        !extension.is_some_and(|e| ["jpg", "txt", "png", "xml", "json"].contains(&e.as_str()))
            && path.is_dir()
    });
    folders
}

fn entries_of(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            !name.starts_with('.') && name != "__MACOSX"
        })
        .collect();
    entries.sort();
    entries
}

/// What a folder without a data set holds, for the message.
fn contents(folder: &Path) -> String {
    let mut images = 0;
    let mut others: Vec<String> = Vec::new();
    for path in entries_of(folder) {
        let extension = path
            .extension()
            .map(|e| e.to_string_lossy().to_lowercase())
            .unwrap_or_default();
        if super::decode::READABLE_EXTENSIONS.contains(&extension.as_str()) {
            images += 1;
        } else {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            others.push(name.into_owned());
        }
    }
    let shown = others.len().min(8);
    let more = if others.len() > shown { ", …" } else { "" };
    match (images, others.is_empty()) {
        (0, true) => "nothing".to_owned(),
        (_, true) => format!("{images} images"),
        (0, false) => format!("{}{more}", others[..shown].join(", ")),
        _ => format!("{images} images, {}{more}", others[..shown].join(", ")),
    }
}
