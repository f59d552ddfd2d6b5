//! The images of a Pascal VOC split and the XML file of each.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::decode::READABLE_EXTENSIONS;
use super::index::Context;
use super::report::{Finding, FindingKind};
use super::source::{self, Listed};
use super::{DataError, voc};
use crate::config::dataset::DatasetYaml;

/// An image of a split and where its annotation may lie.
pub(crate) struct Item {
    pub listed: Listed,
    pub xml: Option<PathBuf>,
}

/// The images of all entries, by name, each once.
pub(crate) fn list(
    context: &Context,
    entries: &[PathBuf],
    findings: &mut Vec<Finding>,
) -> Result<Vec<Item>, DataError> {
    let yaml = context.yaml;
    let mut items: Vec<Item> = Vec::new();
    let mut folders: Vec<PathBuf> = Vec::new();
    for entry in entries {
        match voc::folder_of_list(entry).filter(|_| entry.is_file()) {
            Some(root) => read_list(yaml, entry, &root, &mut items)?,
            None => folders.push(entry.clone()),
        }
    }
    if !folders.is_empty() {
        let listing = source::list(yaml, &folders)?;
        // Images of the same name share labels in YOLO txt; here too, and it is told by the same words.
        findings.extend(listing.findings);
        let found = listing.images.into_par_iter().map(|listed| {
            let mut paths = voc::annotation_paths(&listed.path).into_iter();
            Item {
                xml: paths.find(|path| path.is_file()),
                listed,
            }
        });
        items.extend(found.collect::<Vec<_>>());
        add_images_named_otherwise(context, &mut items, findings);
    }
    items.sort_by(|a, b| a.listed.cmp(&b.listed));
    let mut seen = BTreeSet::new();
    items.retain(|item| {
        let is_new = seen.insert(item.listed.path.clone());
        if !is_new {
            findings.push(source::repeat(&item.listed));
        }
        is_new
    });
    Ok(items)
}

/// The lines of a list: a name without folder and extension, in the lists of one class followed by 1, 0 or -1.
/// Blank lines and comments (`#`) are fine.
fn read_list(
    yaml: &DatasetYaml,
    list: &Path,
    root: &Path,
    items: &mut Vec<Item>,
) -> Result<(), DataError> {
    let bytes = fs::read(list).map_err(|source| DataError::Io {
        path: list.to_path_buf(),
        source,
    })?;
    let text = String::from_utf8_lossy(&bytes);
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let annotations = voc::annotation_folder(root).unwrap_or_else(|| root.join("Annotations"));
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let name = match line.rsplit_once(char::is_whitespace) {
            Some((name, "1" | "0" | "-1")) => name.trim_end(),
            _ => line,
        };
        let stem = match name.rsplit_once('.') {
            Some((stem, end))
                if end == "xml" || READABLE_EXTENSIONS.contains(&end.to_lowercase().as_str()) =>
            {
                stem
            }
            _ => name,
        };
        let xml = annotations.join(format!("{stem}.xml"));
        let xml = xml.is_file().then_some(xml);
        let path = image_of(root, stem, xml.as_deref());
        items.push(Item {
            listed: Listed {
                name: source::relative_name(&yaml.root, &path),
                path,
                by: Some((list.to_path_buf(), index + 1)),
            },
            xml,
        });
    }
    Ok(())
}

/// The image of a listed name: by its name in a folder of images, or by the name that its annotation gives.
/// Where there is none: where it should be.
fn image_of(root: &Path, stem: &str, xml: Option<&Path>) -> PathBuf {
    let folders = ["JPEGImages", "images", "Images", "img"];
    let in_folders = |name: &str| {
        folders
            .iter()
            .map(|folder| root.join(folder).join(name))
            .find(|path| path.exists())
    };
    for extension in READABLE_EXTENSIONS {
        for extension in [extension.to_owned(), extension.to_uppercase()] {
            if let Some(found) = in_folders(&format!("{stem}.{extension}")) {
                return found;
            }
        }
    }
    let named = xml.and_then(filename_in);
    let found = named.as_deref().and_then(in_folders);
    found.unwrap_or_else(|| root.join(folders[0]).join(format!("{stem}.jpg")))
}

/// The last part of `filename` of an annotation file.
fn filename_in(xml: &Path) -> Option<String> {
    let annotation = voc::parse(&fs::read(xml).ok()?).ok()?;
    let name = annotation.filename?.replace('\\', "/");
    name.rsplit('/').next().map(str::to_owned)
}

/// Annotation files in the folders that hold those of the images, which no image has the name of: their images
/// are called as `filename` says, or are missing.
fn add_images_named_otherwise(context: &Context, items: &mut [Item], findings: &mut Vec<Finding>) {
    let taken: BTreeSet<PathBuf> = items.iter().filter_map(|item| item.xml.clone()).collect();
    // The folder of annotations that is just beside a folder of images, and that folder.
    let folders: BTreeMap<PathBuf, PathBuf> = items
        .iter()
        .filter_map(|item| {
            let first = voc::annotation_paths(&item.listed.path)
                .into_iter()
                .next()?;
            let images = item.listed.path.parent()?;
            Some((first.parent()?.to_path_buf(), images.to_path_buf()))
        })
        .collect();
    for (annotations, images) in folders {
        let mut found: Vec<PathBuf> = fs::read_dir(&annotations)
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|e| e == "xml") && !taken.contains(path))
            .collect();
        found.sort();
        for xml in found {
            let named = filename_in(&xml).map(|name| images.join(name));
            let unannotated = match &named {
                Some(image) => items
                    .iter_mut()
                    .find(|item| item.listed.path == *image && item.xml.is_none()),
                None => None,
            };
            match unannotated {
                Some(item) => item.xml = Some(xml),
                None => findings.push(context.bad_image(Finding::new(
                    FindingKind::MissingImage,
                    xml.display().to_string(),
                    format!(
                        "no image of this name in {}, and none that its `filename` names",
                        images.display()
                    ),
                ))),
            }
        }
    }
}
