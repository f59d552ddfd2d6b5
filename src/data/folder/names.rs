//! Class names beside YOLO txt labels.

use std::fs;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::{ClassNames, files_in};
use crate::config::dataset::DatasetError;
use crate::data::DataError;
use crate::data::yolo;

/// Names of files of class names, one a line.
const FILES: [&str; 5] = [
    "classes.txt",
    "class_names.txt",
    "obj.names",
    "predefined_classes.txt",
    "_darknet.labels",
];

/// The class names in `root`, beside the images of `entries` or beside their labels; files that say the same
/// are fine.
pub(super) fn find(root: &Path, entries: &[PathBuf]) -> Result<ClassNames, DataError> {
    let mut folders = vec![root.to_path_buf(), root.join("labels"), root.join("data")];
    for entry in entries {
        folders.push(entry.clone());
        let image = entry.join("x.jpg");
        let labels = yolo::label_paths(&image).into_iter();
        let labels = labels.chain(yolo::labels_elsewhere(&image));
        folders.extend(labels.filter_map(|path| Some(path.parent()?.to_path_buf())));
    }
    let mut files: Vec<PathBuf> = Vec::new();
    for folder in folders {
        files.extend(FILES.iter().map(|name| folder.join(name)));
        files.extend(files_in(&folder, &["names"]));
    }
    files.retain(|file| file.is_file());
    let mut first: Option<(PathBuf, ClassNames)> = None;
    for file in files {
        let names = read(&file)?;
        match &first {
            Some((earlier, ClassNames::Given { names: known, .. })) if !says(&names, known) => {
                return Err(DataError::NamesDisagree {
                    first: earlier.clone(),
                    second: file,
                });
            }
            Some(_) => {}
            None => first = Some((file, names)),
        }
    }
    Ok(match first {
        Some((_, names)) => names,
        None => ClassNames::Numbered(highest_class(entries) + 1),
    })
}

fn says(names: &ClassNames, known: &[String]) -> bool {
    matches!(names, ClassNames::Given { names, .. } if names == known)
}

/// A file of names, one a line.
pub(super) fn read(file: &Path) -> Result<ClassNames, DataError> {
    let bytes = fs::read(file).map_err(|source| DataError::Io {
        path: file.to_path_buf(),
        source,
    })?;
    let text = String::from_utf8_lossy(&bytes);
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text).trim_end();
    let names: Vec<String> = text.lines().map(|line| line.trim().to_owned()).collect();
    let bad = |value: String, expected: String| DatasetError::Value {
        label: file.display().to_string(),
        key: "names".to_owned(),
        value,
        expected,
    };
    for (class, name) in names.iter().enumerate() {
        if name.is_empty() {
            let line = class + 1;
            return Err(bad(String::new(), format!("line {line} has no class name")).into());
        }
        if let Some(earlier) = names[..class].iter().position(|other| other == name) {
            let reason = format!("lines {} and {} have the same name", earlier + 1, class + 1);
            return Err(bad(name.clone(), reason).into());
        }
    }
    Ok(ClassNames::Given {
        names,
        from: file.display().to_string(),
    })
}

/// The highest class number of all label files; rows that are malformed do not count, they are found later.
fn highest_class(entries: &[PathBuf]) -> usize {
    let mut images = Vec::new();
    for entry in entries {
        collect(entry, 0, &mut images);
    }
    let of_image = |image: &PathBuf| {
        let mut places = yolo::label_paths(image)
            .into_iter()
            .chain(yolo::labels_elsewhere(image));
        let bytes = places.find_map(|path| fs::read(path).ok())?;
        let (rows, _) = yolo::parse(&bytes, usize::MAX);
        rows.iter().map(|(_, row)| row.class).max()
    };
    images
        .par_iter()
        .filter_map(of_image)
        .filter(|&class| class < 100_000)
        .max()
        .unwrap_or(0)
}

fn collect(folder: &Path, depth: usize, images: &mut Vec<PathBuf>) {
    for path in super::entries_of(folder) {
        let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase());
        let is_image = extension
            .is_some_and(|e| crate::data::decode::READABLE_EXTENSIONS.contains(&e.as_str()));
        if is_image {
            images.push(path);
        } else if depth < 8 && path.is_dir() {
            collect(&path, depth + 1, images);
        }
    }
}
