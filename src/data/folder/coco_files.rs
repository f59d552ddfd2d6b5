//! COCO JSON files in a folder, by their names: which belong together, and which split each is.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{ClassNames, Found, Splits, files_in, folders_in, relative, split_word};
use crate::config::dataset::SplitName;
use crate::data::DataError;
use crate::data::coco;

pub(super) const FORMAT: &str = "COCO JSON";

/// Files of COCO's own archive, and of those who follow it, that hold no boxes.
const OTHER_TASKS: [&str; 4] = ["captions", "image_info", "panoptic", "stuff"];

pub(super) fn find(folder: &Path) -> Result<Vec<Found>, DataError> {
    // A file in the folder of each split.
    let mut splits = Splits {
        format: FORMAT,
        ..Splits::default()
    };
    for below in folders_in(folder) {
        let Some(which) = below
            .file_name()
            .and_then(|name| split_word(&name.to_string_lossy()))
        else {
            continue;
        };
        let file = below.join("_annotations.coco.json");
        let files = if file.is_file() {
            vec![file]
        } else {
            detections(files_in(&below, &["json"]))
        };
        match &files[..] {
            [] => {}
            [only] => splits.of(which).push(relative(folder, only)),
            several => return Err(ambiguous(folder, several)),
        }
    }
    for which in SplitName::ALL {
        let entries = splits.of(which);
        if entries.len() > 1 {
            let entries: Vec<PathBuf> = entries.iter().map(|e| folder.join(e)).collect();
            return Err(ambiguous(folder, &entries));
        }
    }
    if !splits.train.is_empty() || !splits.val.is_empty() {
        return Ok(vec![Found::splits(folder, splits)]);
    }
    // Files beside each other, told apart by their names.
    for below in ["annotations", "Annotations", ""] {
        let files = files_in(&folder.join(below), &["json"]);
        if let Some(splits) = by_name(folder, files)? {
            return Ok(vec![Found::splits(folder, splits)]);
        }
    }
    Ok(Vec::new())
}

/// A COCO file that was given itself: the whole data set.
pub(super) fn of_file(file: &Path) -> Result<Found, DataError> {
    let folder = file.parent().unwrap_or(Path::new(""));
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    coco::check_detection(file)?;
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    Ok(Found::splits(
        folder,
        Splits {
            format: FORMAT,
            train: vec![name.into_owned()],
            names: ClassNames::FromLabels,
            ..Splits::default()
        },
    ))
}

/// A name in three: what is before and after the word of a split, and that split.
struct Named {
    group: String,
    which: Option<SplitName>,
    file: PathBuf,
}

fn name_of(file: &Path) -> Named {
    let stem = file
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let is_end = |c: char| matches!(c, '_' | '-' | '.' | ' ');
    let mut at = 0;
    for word in stem.split(is_end) {
        if let Some(which) = split_word(word) {
            let letters = word.trim_end_matches(|c: char| c.is_ascii_digit()).len();
            return Named {
                group: format!("{}*{}", &stem[..at], &stem[at + letters..]),
                which: Some(which),
                file: file.to_path_buf(),
            };
        }
        at += word.len() + 1;
    }
    Named {
        group: stem,
        which: None,
        file: file.to_path_buf(),
    }
}

fn by_name(folder: &Path, files: Vec<PathBuf>) -> Result<Option<Splits>, DataError> {
    let is_instances = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("instances_")
    };
    // The names of COCO's own files are enough; others are looked into.
    let files = if files.iter().any(is_instances) {
        files.into_iter().filter(is_instances).collect()
    } else {
        detections(files)
    };
    let mut groups: BTreeMap<String, Vec<(SplitName, PathBuf)>> = BTreeMap::new();
    let mut wholes: Vec<PathBuf> = Vec::new();
    for Named { group, which, file } in files.iter().map(|file| name_of(file)) {
        match which {
            None => wholes.push(file),
            Some(which) => {
                let group = groups.entry(group).or_default();
                if let Some((_, first)) = group.iter().find(|(other, _)| *other == which) {
                    return Err(ambiguous(folder, &[first.clone(), file]));
                }
                group.push((which, file));
            }
        }
    }
    let mut splits = Splits {
        format: FORMAT,
        ..Splits::default()
    };
    match (groups.len(), &wholes[..]) {
        (0, []) => return Ok(None),
        (0, [whole]) => splits.train.push(relative(folder, whole)),
        (0, several) => return Err(ambiguous(folder, several)),
        (1, _) => {
            for (which, file) in groups.into_values().flatten() {
                splits.of(which).push(relative(folder, &file));
            }
            if !wholes.is_empty() {
                let names: Vec<String> = wholes.iter().map(|f| f.display().to_string()).collect();
                splits.notes.push(format!(
                    "left aside, as its neighbours are named after splits: {}",
                    names.join(", ")
                ));
            }
        }
        _ => {
            let all: Vec<PathBuf> = groups
                .into_values()
                .flatten()
                .map(|(_, file)| file)
                .collect();
            return Err(ambiguous(folder, &all));
        }
    }
    Ok(Some(splits))
}

/// Those of the files that hold images and categories.
fn detections(files: Vec<PathBuf>) -> Vec<PathBuf> {
    files
        .into_iter()
        .filter(|file| {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            !OTHER_TASKS.iter().any(|task| name.starts_with(task))
                && coco::check_detection(file).is_ok()
        })
        .collect()
}

fn ambiguous(folder: &Path, files: &[PathBuf]) -> DataError {
    DataError::SeveralDatasets {
        folder: folder.to_path_buf(),
        found: files
            .iter()
            .map(|file| file.display().to_string())
            .collect(),
    }
}
