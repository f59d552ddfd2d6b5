//! The images of a COCO file: its entries, where the files lie, and whether they are what was annotated.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::super::DataError;
use super::super::index::Context;
use super::super::report::{Action, Finding, FindingKind, SplitReport};
use super::CocoImage;

/// How many images are tried in a folder before it is taken for the wrong one.
const TRIED_IMAGES: usize = 100;

/// An entry of `images` that can be used.
pub(super) struct Entry {
    pub id: u64,
    pub file_name: String,
    /// As annotated; absent or zero in some files.
    pub size: Option<(u64, u64)>,
    url: Option<String>,
}

pub(super) fn read_images(
    context: &Context,
    path: &Path,
    shown: &str,
    images: Vec<CocoImage>,
    report: &mut SplitReport,
) -> Result<Vec<Entry>, DataError> {
    let mut entries: Vec<Entry> = Vec::with_capacity(images.len());
    let mut by_id: HashMap<u64, usize> = HashMap::with_capacity(images.len());
    let mut names: HashSet<String> = HashSet::with_capacity(images.len());
    for (index, image) in images.into_iter().enumerate() {
        let mut malformed = |value: String, reason: &str| {
            let mut finding = Finding::new(
                FindingKind::MalformedImageEntry,
                format!("{shown}, images"),
                reason,
            )
            .value(value);
            finding.index = Some(index);
            report.findings.push(context.bad_image(finding));
        };
        let Some(id) = image.id.as_id() else {
            malformed(
                format!("id: {}", image.id),
                "the id is not a whole number from 0",
            );
            continue;
        };
        let Some(file_name) = image.file_name.as_text().filter(|name| !name.is_empty()) else {
            malformed(
                format!("file_name: {}", image.file_name),
                "the image has no file name",
            );
            continue;
        };
        if let Some(&first) = by_id.get(&id) {
            let first: &Entry = &entries[first];
            if first.file_name != file_name {
                return Err(DataError::DuplicateImageId {
                    path: path.to_path_buf(),
                    id,
                    first: first.file_name.clone(),
                    second: file_name,
                });
            }
            report.findings.push(
                Finding::new(
                    FindingKind::DuplicateImage,
                    shown,
                    "the image is listed twice with the same id; it is taken once",
                )
                .value(file_name)
                .done(Action::LeftOut),
            );
            continue;
        }
        if !names.insert(file_name.clone()) {
            report.findings.push(
                Finding::new(
                    FindingKind::DuplicateImage,
                    shown,
                    "the image is listed under two ids",
                )
                .value(file_name.clone())
                .done(Action::Kept),
            );
        }
        let size = match (image.width.as_id(), image.height.as_id()) {
            (Some(width), Some(height)) if width > 0 && height > 0 => Some((width, height)),
            _ => None,
        };
        by_id.insert(id, entries.len());
        entries.push(Entry {
            id,
            file_name,
            size,
            url: image.coco_url.as_text().filter(|url| !url.is_empty()),
        });
    }
    Ok(entries)
}

/// Finds image files: one folder for the whole file.
pub(super) struct Finder {
    folder: PathBuf,
    /// The file's names have folders of their own that do not exist here: only their last part counts.
    last_part: bool,
}

impl Finder {
    /// The first folder, in the order of [`folders`], that holds one of the first images; by its whole name
    /// first, then by the last part of its name.
    pub fn find(
        context: &Context,
        path: &Path,
        given: Option<&Path>,
        entries: &[Entry],
    ) -> Result<Self, DataError> {
        let folders = match given {
            Some(folder) => vec![folder.to_path_buf()],
            None => folders(&context.yaml.root, path),
        };
        for last_part in [false, true] {
            for folder in &folders {
                let finder = Self {
                    folder: folder.clone(),
                    last_part,
                };
                let mut tried = entries.iter().take(TRIED_IMAGES);
                if tried.any(|entry| finder.path(&entry.file_name).is_file()) {
                    return Ok(finder);
                }
            }
        }
        let first = &entries[0];
        let hint = match &first.url {
            Some(url) => format!(
                "its address is {url}; put the images into {}, or give `{}: {{images: FOLDER, annotations: {}}}`",
                folders[folders.len().min(2) - 1].display(),
                context.which.key(),
                path.display()
            ),
            None => format!(
                "{}, or give `{}: {{images: FOLDER, annotations: {}}}`",
                context.yaml.missing_hint(),
                context.which.key(),
                path.display()
            ),
        };
        Err(DataError::ImagesMissing {
            annotations: path.to_path_buf(),
            first: first.file_name.clone(),
            tried: folders,
            hint,
        })
    }

    pub fn path(&self, file_name: &str) -> PathBuf {
        // Files from Windows have backslashes; no photograph has one in its name.
        let name = file_name.replace('\\', "/");
        if self.last_part {
            let last = name.rsplit('/').next().unwrap_or(&name);
            return self.folder.join(last);
        }
        self.folder.join(name)
    }
}

/// Where images of `dir/instances_train2017.json` are looked for, in order: `dir`, `dir/images`,
/// `root/images`, `root`, `dir/../images`, `dir/data`, and below `dir/..`, `dir/../images`, `root` and `root/images` the
/// folders `instances_train2017` and `train2017` (the file's name, and what follows its last `_`).
fn folders(root: &Path, json: &Path) -> Vec<PathBuf> {
    let dir = json.parent().unwrap_or(Path::new(""));
    let above = dir
        .parent()
        .map_or_else(|| dir.join(".."), Path::to_path_buf);
    let mut folders = vec![
        dir.to_path_buf(),
        dir.join("images"),
        root.join("images"),
        root.to_path_buf(),
        above.join("images"),
        dir.join("data"),
    ];
    let stem = json.file_stem().unwrap_or_default().to_string_lossy();
    let short = stem.rsplit_once('_').map(|(_, rest)| rest);
    for name in [Some(&*stem), short].into_iter().flatten() {
        folders.extend([
            above.join(name),
            above.join("images").join(name),
            root.join(name),
            root.join("images").join(name),
        ]);
    }
    let mut seen = HashSet::new();
    folders.retain(|folder| seen.insert(folder.clone()));
    folders
}
