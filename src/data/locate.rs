//! Where the files of a split lie, and in which format its labels are.

use std::path::{Path, PathBuf};

use super::{DataError, source, voc};
use crate::config::dataset::{DatasetYaml, SplitName, SplitSource};

/// Where a split lies and in which format.
pub(crate) enum Located {
    Coco {
        annotations: PathBuf,
        /// Given by the user; else searched.
        images: Option<PathBuf>,
    },
    /// Folders and lists.
    Yolo(Vec<PathBuf>),
    /// Folders of images with an XML file each, and lists in `ImageSets`.
    Voc(Vec<PathBuf>),
}

pub(crate) fn locate(yaml: &DatasetYaml, which: SplitName) -> Result<Located, DataError> {
    let split = which.key();
    let Some(source) = yaml.split(which) else {
        return Err(DataError::SplitNotGiven {
            yaml: yaml.label.clone(),
            split,
            given: yaml.splits_given(),
        });
    };
    let bad = |value: &str, reason: &str| DataError::SplitValue {
        yaml: yaml.label.clone(),
        split,
        value: value.to_owned(),
        reason: reason.to_owned(),
    };
    let find = |entry: &str| {
        yaml.resolve(entry).map_err(|mut tried| {
            // Where `path` itself was not found, every place of the split is named.
            for root in &yaml.root_tried {
                let place = root.join(entry);
                if !tried.contains(&place) {
                    tried.insert(0, place);
                }
            }
            DataError::SplitMissing {
                yaml: yaml.label.clone(),
                split,
                tried,
                hint: yaml.missing_hint(),
            }
        })
    };
    match source {
        SplitSource::Pair {
            images,
            annotations,
        } => {
            let folder = find(images)?;
            if !folder.is_dir() {
                return Err(bad(images, "`images` is not a folder"));
            }
            let file = find(annotations)?;
            if !is_file_of(&file, "json") {
                return Err(bad(annotations, "`annotations` is not a COCO .json file"));
            }
            Ok(Located::Coco {
                annotations: file,
                images: Some(folder),
            })
        }
        SplitSource::Paths(entries) => {
            let mut found = Vec::with_capacity(entries.len());
            for entry in entries {
                let path = find(entry)?;
                if is_file_of(&path, "json") {
                    if entries.len() > 1 {
                        return Err(bad(
                            entry,
                            "a COCO .json must be the only entry of its split; merge the files, ids must stay unique",
                        ));
                    }
                    return Ok(Located::Coco {
                        annotations: path,
                        images: None,
                    });
                }
                if !path.is_dir() && !is_file_of(&path, "txt") {
                    return Err(bad(
                        entry,
                        "is neither a folder, a .txt list of images nor a COCO .json",
                    ));
                }
                found.push(path);
            }
            let formats: Vec<Format> = found.iter().map(|entry| format_of(entry)).collect();
            match (
                formats.contains(&Format::Voc),
                formats.contains(&Format::Yolo),
            ) {
                (true, false) => Ok(Located::Voc(found)),
                (true, true) => Err(bad(
                    &entries.join(", "),
                    "some of these have Pascal VOC annotations and others YOLO txt labels; give one format",
                )),
                _ => Ok(Located::Yolo(found)),
            }
        }
    }
}

/// What the labels of an entry are.
#[derive(PartialEq, Eq)]
enum Format {
    Yolo,
    Voc,
    Unlabelled,
}

/// VOC is a list in `ImageSets`, or a folder of images that have XML files and no label files.
fn format_of(entry: &Path) -> Format {
    if entry.is_file() {
        return match voc::folder_of_list(entry) {
            Some(_) => Format::Voc,
            None => Format::Yolo,
        };
    }
    match source::sample(entry) {
        sample if sample.txt > 0 => Format::Yolo,
        sample if sample.xml > 0 => Format::Voc,
        _ => Format::Unlabelled,
    }
}

fn is_file_of(path: &Path, extension: &str) -> bool {
    path.is_file()
        && path
            .extension()
            .is_some_and(|found| found.eq_ignore_ascii_case(extension))
}
