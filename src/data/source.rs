//! The images of a split that is given as folders and `.txt` lists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::decode::{READABLE_EXTENSIONS, UNREADABLE_EXTENSIONS};
use super::report::{Action, Finding, FindingKind};
use super::{DataError, voc, yolo};
use crate::config::dataset::DatasetYaml;

/// Folders deeper than this are taken for a cycle of links.
const DEEPEST: usize = 32;

/// One image that a folder or a list names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Listed {
    /// Path relative to the data set's root where it lies below it, with `/`.
    pub name: String,
    pub path: PathBuf,
    /// List file and line that named it.
    pub by: Option<(PathBuf, usize)>,
}

/// All images of a split, sorted by name, and what was odd.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub images: Vec<Listed>,
    pub findings: Vec<Finding>,
}

/// Lists the images of `entries`, existing folders and `.txt` files.
pub(crate) fn list(yaml: &DatasetYaml, entries: &[PathBuf]) -> Result<Listing, DataError> {
    let mut listing = Listing::default();
    for entry in entries {
        if entry.is_dir() {
            let mut walk = Walk::default();
            walk.folder(entry, 0)?;
            walk.report(entry, &mut listing.findings);
            listing
                .images
                .extend(walk.images.into_iter().map(|path| Listed {
                    name: relative_name(&yaml.root, &path),
                    path,
                    by: None,
                }));
        } else {
            read_list(yaml, entry, &mut listing)?;
        }
    }
    listing.images.sort();
    remove_repeats(&mut listing);
    find_shared_labels(&mut listing);
    Ok(listing)
}

/// `path` below `root` with `/`, or the whole path.
pub(crate) fn relative_name(root: &Path, path: &Path) -> String {
    let relative = path.strip_prefix(root).unwrap_or(path);
    let parts: Vec<_> = relative
        .iter()
        .map(|part| part.to_string_lossy())
        .filter(|part| part != ".")
        .collect();
    parts.join("/").replacen("//", "/", 1)
}

/// How many images [`sample`] looks at.
const SAMPLED: usize = 100;

/// What the first images of a folder have beside them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    pub images: usize,
    /// Images with YOLO rows.
    pub txt: usize,
    /// Images with an XML file.
    pub xml: usize,
}

/// Looks at the first [`SAMPLED`] images, by name, of a folder or of the first folder below it that has any.
pub(crate) fn sample(folder: &Path) -> Sample {
    let mut sample = Sample::default();
    for image in first_images(folder, 0) {
        sample.images += 1;
        let labels = yolo::label_paths(&image).into_iter();
        let labels = labels.chain(yolo::labels_elsewhere(&image));
        sample.txt += usize::from(labels.into_iter().any(|path| has_rows(&path)));
        let xml = voc::annotation_paths(&image);
        sample.xml += usize::from(xml.iter().any(|path| path.is_file()));
    }
    sample
}

pub(crate) fn first_images(folder: &Path, depth: usize) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| !is_hidden(path))
        .collect();
    found.sort();
    let is_image = |path: &&PathBuf| READABLE_EXTENSIONS.contains(&extension(path).as_str());
    let images: Vec<PathBuf> = found
        .iter()
        .filter(is_image)
        .take(SAMPLED)
        .cloned()
        .collect();
    if !images.is_empty() || depth >= 4 {
        return images;
    }
    found
        .iter()
        .filter(|path| path.is_dir())
        .map(|path| first_images(path, depth + 1))
        .find(|images| !images.is_empty())
        .unwrap_or_default()
}

/// Whether a file's first row that is not blank begins with a number.
fn has_rows(path: &Path) -> bool {
    let Ok(bytes) = fs::read(path) else {
        return false;
    };
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    let first = text.iter().find(|byte| !byte.is_ascii_whitespace());
    first.is_some_and(|byte| byte.is_ascii_digit())
}

fn extension(path: &Path) -> String {
    path.extension()
        .map(|extension| extension.to_string_lossy().to_lowercase())
        .unwrap_or_default()
}

fn is_hidden(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with('.'))
}

#[derive(Default)]
struct Walk {
    images: Vec<PathBuf>,
    unread: BTreeMap<String, usize>,
    hidden: usize,
}

impl Walk {
    fn folder(&mut self, folder: &Path, depth: usize) -> Result<(), DataError> {
        let io = |source| DataError::Io {
            path: folder.to_path_buf(),
            source,
        };
        if depth > DEEPEST {
            return Err(io(std::io::Error::other(format!(
                "more than {DEEPEST} folders deep: do links go round in a circle?"
            ))));
        }
        for entry in fs::read_dir(folder).map_err(io)? {
            let path = entry.map_err(io)?.path();
            let hidden = is_hidden(&path);
            let extension = extension(&path);
            // Follows links. A dangling one counts as a file, so that its image is reported as missing.
            let is_dir = path.is_dir();
            let readable = READABLE_EXTENSIONS.contains(&extension.as_str());
            match (hidden, is_dir) {
                (true, true) => {}
                (true, false) if readable => self.hidden += 1,
                (true, false) => {}
                (false, true) => self.folder(&path, depth + 1)?,
                (false, false) if readable => self.images.push(path),
                (false, false) if UNREADABLE_EXTENSIONS.contains(&extension.as_str()) => {
                    *self.unread.entry(extension).or_default() += 1;
                }
                (false, false) => {}
            }
        }
        Ok(())
    }

    fn report(&self, folder: &Path, findings: &mut Vec<Finding>) {
        let folder = folder.display().to_string();
        let total: usize = self.unread.values().sum();
        if total > 0 {
            let formats: Vec<String> = self
                .unread
                .iter()
                .map(|(extension, count)| format!("{count} .{extension}"))
                .collect();
            findings.push(
                Finding::new(
                    FindingKind::UnreadFormat,
                    folder.clone(),
                    "image files of formats that are not read are left out; convert them to JPEG or PNG",
                )
                .value(formats.join(", "))
                .done(Action::LeftOut),
            );
        }
        if self.hidden > 0 {
            findings.push(
                Finding::new(
                    FindingKind::HiddenFile,
                    folder,
                    "image files whose names begin with a dot are left out",
                )
                .value(self.hidden.to_string())
                .done(Action::LeftOut),
            );
        }
    }
}

/// Where the file of a list's line lies: see [`read_list`].
fn find_listed(root: &Path, folder: &Path, line: &str) -> PathBuf {
    let beside = folder.join(line.strip_prefix("./").unwrap_or(line));
    if line.starts_with("./") {
        return beside;
    }
    let below_root = root.join(line);
    if below_root.exists() {
        return below_root;
    }
    if !beside.exists()
        && let Some((_, rest)) = line.split_once('/')
    {
        let without_first = folder.join(rest);
        if without_first.exists() {
            return without_first;
        }
    }
    beside
}

/// A list's lines: `./x` and other relative paths are relative to the list's folder, the latter first to the
/// data set's root. Darknet's lists begin with `data/`, a folder that their exporters do not write: a path that
/// exists only without its first part is found. Blank lines are fine.
fn read_list(yaml: &DatasetYaml, list: &Path, listing: &mut Listing) -> Result<(), DataError> {
    let io = |source| DataError::Io {
        path: list.to_path_buf(),
        source,
    };
    let bytes = fs::read(list).map_err(io)?;
    let text = String::from_utf8_lossy(&bytes);
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let folder = list.parent().unwrap_or(Path::new(""));
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let path = find_listed(&yaml.root, folder, line);
        listing.images.push(Listed {
            name: relative_name(&yaml.root, &path),
            path,
            by: Some((list.to_path_buf(), index + 1)),
        });
    }
    Ok(())
}

fn remove_repeats(listing: &mut Listing) {
    let findings = &mut listing.findings;
    listing.images.dedup_by(|later, first| {
        let same = later.path == first.path;
        if same {
            findings.push(repeat(later));
        }
        same
    });
}

pub(crate) fn repeat(image: &Listed) -> Finding {
    let finding = match &image.by {
        Some((list, line)) => Finding::new(
            FindingKind::DuplicateImage,
            list.display().to_string(),
            "the image is listed twice; it is taken once",
        )
        .line(*line)
        .value(image.name.clone()),
        None => Finding::new(
            FindingKind::DuplicateImage,
            image.path.display().to_string(),
            "the image is found twice; it is taken once",
        ),
    };
    finding.done(Action::LeftOut)
}

/// `a.jpg` and `a.png` in one folder share `a.txt`.
fn find_shared_labels(listing: &mut Listing) {
    let mut stems: BTreeMap<PathBuf, BTreeSet<String>> = BTreeMap::new();
    for image in &listing.images {
        stems
            .entry(image.path.with_extension(""))
            .or_default()
            .insert(image.name.clone());
    }
    for (_, names) in stems.into_iter().filter(|(_, names)| names.len() > 1) {
        let names: Vec<String> = names.into_iter().collect();
        listing.findings.push(
            Finding::new(
                FindingKind::SharedLabels,
                names[0].clone(),
                "images of the same name get the same label file",
            )
            .value(names.join(", "))
            .done(Action::Kept),
        );
    }
}
