//! Folders of images with label files: YOLO txt and Pascal VOC, and Darknet's `obj.data`.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Found, Splits, files_in, folders_in, names, relative, split_word};
use crate::config::dataset::SplitName;
use crate::data::DataError;
use crate::data::source::{Sample, first_images, sample};
use crate::data::voc;
use crate::data::voc_index;

pub(super) const YOLO: &str = "YOLO txt";

pub(super) fn find(folder: &Path) -> Result<Vec<Found>, DataError> {
    let mut found = Vec::new();
    let lists = voc_lists(folder);
    let has_lists = lists.is_some();
    if let Some(splits) = lists {
        found.push(Found::splits(folder, splits));
    }
    if let Some(splits) = darknet(folder)? {
        found.push(Found::splits(folder, splits));
        return Ok(found);
    }
    for layout in layouts(folder)? {
        let samples: Vec<Sample> = layout
            .iter()
            .map(|(_, entry)| sample(&folder.join(entry)))
            .collect();
        let is_yolo = samples.iter().any(|sample| sample.txt > 0);
        let is_voc = samples.iter().any(|sample| sample.xml > 0) && !has_lists;
        if !is_yolo && !is_voc {
            continue;
        }
        let splits = |format| {
            let mut splits = Splits {
                format,
                ..Splits::default()
            };
            for (which, entry) in &layout {
                splits.of(*which).push(entry.clone());
            }
            splits
        };
        if is_yolo {
            let mut splits = splits(YOLO);
            let entries: Vec<PathBuf> = layout.iter().map(|(_, e)| folder.join(e)).collect();
            splits.names = names::find(folder, &entries)?;
            found.push(Found::splits(folder, splits));
        }
        if is_voc {
            found.push(Found::splits(folder, splits(voc_index::FORMAT)));
        }
        break;
    }
    Ok(found)
}

/// The splits of one way to lay out a data set; a whole is the training split.
type Layout = Vec<(SplitName, String)>;

/// The ways in which images may lie in a folder, those with splits first.
fn layouts(folder: &Path) -> Result<Vec<Layout>, DataError> {
    let mut layouts: Vec<Layout> = Vec::new();
    let below = folders_in(folder);
    let image_folders: Vec<&PathBuf> = below
        .iter()
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            ["images", "jpegimages", "imgs", "img"].contains(&name.to_lowercase().as_str())
        })
        .collect();
    for images in &image_folders {
        layouts.push(splits_in(folder, &folders_in(images), false)?);
    }
    layouts.push(splits_in(folder, &below, true)?);
    layouts.retain(|layout| !layout.is_empty());
    for images in image_folders {
        layouts.push(vec![(SplitName::Train, relative(folder, images))]);
    }
    let beside = first_images(folder, 0);
    if beside
        .first()
        .is_some_and(|image| image.parent() == Some(folder))
    {
        layouts.push(vec![(SplitName::Train, String::new())]);
    }
    Ok(layouts)
}

/// Folders that are named after splits. `with_images`: the images may lie in a folder `images` of theirs.
fn splits_in(
    root: &Path,
    folders: &[PathBuf],
    with_images: bool,
) -> Result<Vec<(SplitName, String)>, DataError> {
    let mut splits: Vec<(SplitName, String)> = Vec::new();
    for folder in folders {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let Some(which) = split_word(&name) else {
            continue;
        };
        let images = folder.join("images");
        let place = if with_images && images.is_dir() {
            &images
        } else {
            folder
        };
        if sample(place).images == 0 {
            continue;
        }
        if let Some((_, first)) = splits.iter().find(|(other, _)| *other == which) {
            let both = [root.join(first), place.clone()];
            return Err(DataError::SeveralDatasets {
                folder: root.to_path_buf(),
                found: both.iter().map(|path| path.display().to_string()).collect(),
            });
        }
        splits.push((which, relative(root, place)));
    }
    Ok(splits)
}

/// The lists of `ImageSets/Main` where `Annotations` lies beside it.
fn voc_lists(folder: &Path) -> Option<Splits> {
    voc::annotation_folder(folder)?;
    let lists = files_in(&folder.join("ImageSets/Main"), &["txt"]);
    let list = |name: &str| {
        let found = lists
            .iter()
            .find(|list| list.file_stem().is_some_and(|s| s == name));
        found.map(|list| relative(folder, list))
    };
    let mut splits = Splits {
        format: voc_index::FORMAT,
        ..Splits::default()
    };
    splits.test.extend(list("test"));
    match (list("train"), list("val"), list("trainval")) {
        (Some(train), Some(val), _) => {
            splits.train.push(train);
            splits.val.push(val);
        }
        (_, val, Some(whole)) => {
            splits.train.push(whole);
            // `trainval` holds it: it is no validation part of its own.
            if let Some(val) = val {
                splits.notes.push(format!(
                    "{val} is part of {} and is left aside",
                    splits.train[0]
                ));
            }
        }
        (Some(train), None, None) => splits.train.push(train),
        (None, Some(val), None) => splits.val.push(val),
        (None, None, None) => {
            // Some tools write one list of another name; those of single classes have a `_` in theirs.
            let whole: Vec<&PathBuf> = lists
                .iter()
                .filter(|list| !list.to_string_lossy().ends_with("_test.txt"))
                .filter(|list| {
                    let stem = list.file_stem().unwrap_or_default().to_string_lossy();
                    !stem.contains('_') && stem != "test"
                })
                .collect();
            match whole[..] {
                [only] => splits.train.push(relative(folder, only)),
                _ => return None,
            }
        }
    }
    Some(splits)
}

/// Darknet's `*.data`: `train = data/train.txt`, `valid = …`, `names = …`, relative to a folder above.
fn darknet(folder: &Path) -> Result<Option<Splits>, DataError> {
    let files = files_in(folder, &["data"]);
    let Some(file) = files.first() else {
        return Ok(None);
    };
    let text = fs::read_to_string(file).unwrap_or_default();
    let value = |key: &str| {
        text.lines().find_map(|line| {
            let (found, value) = line.split_once('=')?;
            (found.trim() == key).then(|| value.trim().to_owned())
        })
    };
    // As the folder is called where it was written, or with the first part left out.
    let existing = |entry: String| {
        let rest = entry.split_once('/').map(|(_, rest)| rest.to_owned());
        [Some(entry), rest]
            .into_iter()
            .flatten()
            .find(|entry| folder.join(entry).is_file())
    };
    let mut splits = Splits {
        format: "Darknet's lists of YOLO txt",
        ..Splits::default()
    };
    splits.train.extend(value("train").and_then(existing));
    splits
        .val
        .extend(value("valid").or(value("val")).and_then(existing));
    splits.test.extend(value("test").and_then(existing));
    if splits.train.is_empty() && splits.val.is_empty() {
        return Ok(None);
    }
    splits.names = match value("names").and_then(existing) {
        Some(file) => names::read(&folder.join(file))?,
        None => names::find(folder, &[folder.to_path_buf()])?,
    };
    Ok(Some(splits))
}
