//! A split of a COCO JSON file: its categories become classes, its images are found on disk, its annotations
//! become boxes.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::check::Seen;
use super::coco::{self, BoxField, CocoAnnotation, CocoCategory, CocoImage, Extent};
use super::decode::Header;
use super::index::{Context, Draft, Located, locate};
use super::report::{Action, Finding, FindingKind, SplitReport};
use super::{DataError, ImageEntry, Split, Truth};
use crate::config::dataset::SplitName;
use crate::config::nearest;

/// How many images are tried in a folder before it is taken for the wrong one.
const TRIED_IMAGES: usize = 100;

pub(crate) fn index(
    context: &Context,
    path: &Path,
    folder: Option<&Path>,
) -> Result<Draft, DataError> {
    let file = coco::read(path)?;
    let shown = path.display().to_string();
    let mut report = SplitReport::new(context.which.key(), "COCO JSON", shown.clone());
    let classes = Classes::select(
        context,
        path,
        file.categories.unwrap_or_default(),
        &mut report,
    )?;
    let entries = read_images(
        context,
        path,
        &shown,
        file.images.unwrap_or_default(),
        &mut report,
    )?;
    report.images_listed = entries.len();
    let annotations = file.annotations.unwrap_or_default();
    let looked_for = format!("annotations of its images in {shown}");
    if entries.is_empty() {
        return Err(DataError::NoImages {
            yaml: context.yaml.label.clone(),
            split: context.which.key(),
            looked_for: format!("`images` in {shown}"),
        });
    }
    let finder = Finder::find(context, path, folder, &entries)?;

    let by_image = assign(context, &shown, &entries, &annotations, &mut report);
    let count = entries.len();
    let chosen: Vec<usize> = (0..count)
        .filter(|&index| context.is_chosen(index, count))
        .collect();
    let outcomes: Vec<Outcome> = chosen
        .par_iter()
        .map(|&index| {
            let boxes = &by_image[index];
            read_image(context, &shown, &entries[index], &finder, &classes, boxes)
        })
        .collect();

    let mut images = Vec::with_capacity(outcomes.len());
    let mut oriented: Option<(usize, String)> = None;
    for outcome in outcomes {
        report.findings.extend(outcome.findings);
        for category in outcome.other_categories {
            let name = classes.category_names[&category].clone();
            *report.other_categories.entry(name).or_default() += 1;
        }
        let Some(entry) = outcome.entry else { continue };
        if outcome.is_oriented {
            oriented.get_or_insert((0, entry.file_name.clone())).0 += 1;
        }
        images.push(entry);
    }
    let oriented = oriented
        .as_ref()
        .map(|(count, name)| (*count, name.as_str()));
    report.findings.extend(context.oriented(oriented));
    Ok(Draft {
        split: Split {
            names: classes.names,
            category_ids: classes.ids,
            images,
            image_id_in_file: true,
        },
        report,
        looked_for,
    })
}

/// Which categories are classes, and which class.
struct Classes {
    names: Vec<String>,
    /// By class.
    ids: Vec<u64>,
    class_of: HashMap<u64, usize>,
    /// Of every category of the file.
    category_names: HashMap<u64, String>,
}

impl Classes {
    /// Classes are the dataset file's `names` in their order; else, outside training, the categories of the
    /// training split's COCO file, so that the same number means the same class; else the file's own, by id.
    fn select(
        context: &Context,
        path: &Path,
        categories: Vec<CocoCategory>,
        report: &mut SplitReport,
    ) -> Result<Self, DataError> {
        let yaml = context.yaml;
        let own = check_categories(path, &categories)?;
        let mut classes = Self {
            names: Vec::new(),
            ids: Vec::new(),
            class_of: HashMap::new(),
            category_names: own.iter().cloned().collect(),
        };
        let available = || own.iter().map(|(_, name)| name.clone()).collect::<Vec<_>>();
        if let Some(names) = &yaml.names {
            for name in names {
                let mut found = own.iter().filter(|(_, own)| own == name);
                let Some((id, _)) = found.next() else {
                    let available = available();
                    return Err(DataError::NameNotInFile {
                        yaml: yaml.label.clone(),
                        name: name.clone(),
                        path: path.to_path_buf(),
                        suggestion: nearest(name, available.iter().map(String::as_str))
                            .map(str::to_owned),
                        available,
                    });
                };
                if let Some((other, _)) = found.next() {
                    return Err(DataError::Category {
                        path: path.to_path_buf(),
                        value: name.clone(),
                        reason: format!(
                            "`names` selects it, but ids {id} and {other} both have this name"
                        ),
                    });
                }
                classes.push(name.clone(), *id);
            }
            return Ok(classes);
        }
        if let Some(nc) = yaml.nc
            && nc != own.len()
        {
            return Err(DataError::CategoryCount {
                yaml: yaml.label.clone(),
                nc,
                found: own.len(),
                path: path.to_path_buf(),
                available: available(),
            });
        }
        match training_categories(context, path)? {
            None => own
                .into_iter()
                .for_each(|(id, name)| classes.push(name, id)),
            Some((file, of_training)) => {
                for (their_id, name) in of_training {
                    let id = match own.iter().find(|(_, own)| *own == name) {
                        Some((id, _)) => *id,
                        None => {
                            report.findings.push(
                                Finding::new(
                                    FindingKind::MissingCategory,
                                    report.source.clone(),
                                    format!("this category of {} is missing here", file.display()),
                                )
                                .value(name.clone()),
                            );
                            classes.free_id(their_id)
                        }
                    };
                    classes.push(name, id);
                }
            }
        }
        Ok(classes)
    }

    fn push(&mut self, name: String, id: u64) {
        self.class_of.insert(id, self.names.len());
        self.names.push(name);
        self.ids.push(id);
    }

    /// `wanted`, or the first id from there on that no category and no class has.
    fn free_id(&self, wanted: u64) -> u64 {
        (wanted..=u64::MAX)
            .chain(0..wanted)
            .find(|id| !self.category_names.contains_key(id) && !self.ids.contains(id))
            .unwrap_or(wanted)
    }
}

/// Ids and names by id; ids are unique, names present.
fn check_categories(
    path: &Path,
    categories: &[CocoCategory],
) -> Result<Vec<(u64, String)>, DataError> {
    let bad = |value: String, reason: &str| DataError::Category {
        path: path.to_path_buf(),
        value,
        reason: reason.to_owned(),
    };
    if categories.is_empty() {
        return Err(DataError::NotCoco {
            path: path.to_path_buf(),
            reason: "it has no `categories`".to_owned(),
        });
    }
    let mut checked: Vec<(u64, String)> = Vec::with_capacity(categories.len());
    for category in categories {
        let shown = format!("{} (id {})", category.name, category.id);
        let Some(id) = category.id.as_id() else {
            return Err(bad(shown, "its id is not a whole number from 0"));
        };
        let Some(name) = category.name.as_text().filter(|name| !name.is_empty()) else {
            return Err(bad(shown, "it has no name"));
        };
        if let Some((_, other)) = checked.iter().find(|(other, _)| *other == id) {
            let reason = format!("the category `{other}` has the same id");
            return Err(bad(shown, &reason));
        }
        checked.push((id, name));
    }
    checked.sort_by_key(|(id, _)| *id);
    Ok(checked)
}

/// The categories of the training split, where they are not those of `path` anyway.
#[allow(clippy::type_complexity)]
fn training_categories(
    context: &Context,
    path: &Path,
) -> Result<Option<(PathBuf, Vec<(u64, String)>)>, DataError> {
    if context.which == SplitName::Train || context.yaml.train.is_none() {
        return Ok(None);
    }
    // A training split that is not there (a run that only validates) leaves the file's own categories.
    match locate(context.yaml, SplitName::Train) {
        Ok(Located::Coco { annotations, .. }) if annotations != path => {
            let categories = coco::read_categories(&annotations)?;
            let checked = check_categories(&annotations, &categories)?;
            Ok(Some((annotations, checked)))
        }
        _ => Ok(None),
    }
}

/// An entry of `images` that can be used.
struct Entry {
    id: u64,
    file_name: String,
    /// As annotated; absent or zero in some files.
    size: Option<(u64, u64)>,
    url: Option<String>,
}

fn read_images(
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
struct Finder {
    folder: PathBuf,
    /// The file's names have folders of their own that do not exist here: only their last part counts.
    last_part: bool,
}

impl Finder {
    /// The first folder, in the order of [`folders`], that holds one of the first images; by its whole name
    /// first, then by the last part of its name.
    fn find(
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

    fn path(&self, file_name: &str) -> PathBuf {
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
/// `root/images`, `root`, `dir/../images`, and below `dir/..`, `dir/../images`, `root` and `root/images` the
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

/// An annotation of a known image, with the id that its truth gets.
struct Assigned<'a> {
    id: u64,
    annotation: &'a CocoAnnotation,
}

/// Annotations by image, in the file's order.
fn assign<'a>(
    context: &Context,
    shown: &str,
    entries: &[Entry],
    annotations: &'a [CocoAnnotation],
    report: &mut SplitReport,
) -> Vec<Vec<Assigned<'a>>> {
    let by_id: HashMap<u64, usize> = entries
        .iter()
        .enumerate()
        .map(|(index, entry)| (entry.id, index))
        .collect();
    let largest = annotations.iter().filter_map(|a| a.id.as_id()).max();
    let mut next_free = largest.map_or(1, |id| id.saturating_add(1));
    let mut seen: HashSet<u64> = HashSet::with_capacity(annotations.len());
    let mut by_image: Vec<Vec<Assigned>> = entries.iter().map(|_| Vec::new()).collect();
    for (index, annotation) in annotations.iter().enumerate() {
        let at_index = |kind, reason: &str| {
            let mut finding = Finding::new(kind, format!("{shown}, annotations"), reason);
            finding.index = Some(index);
            finding
        };
        let id = match (&annotation.id, annotation.id.as_id()) {
            (_, Some(id)) => id,
            (coco::Scalar::Missing, None) => {
                let id = next_free;
                next_free = next_free.saturating_add(1);
                report.findings.push(
                    at_index(
                        FindingKind::NoAnnotationId,
                        "the annotation has no id; it gets the next free one",
                    )
                    .value(id.to_string())
                    .done(Action::Kept),
                );
                id
            }
            (id, None) => {
                let finding = at_index(
                    FindingKind::MalformedAnnotation,
                    "the annotation's id is not a whole number from 0",
                );
                report
                    .findings
                    .push(context.bad_box(finding.value(format!("id: {id}"))));
                continue;
            }
        };
        if !seen.insert(id) {
            report.findings.push(
                with_id(
                    Finding::new(
                        FindingKind::DuplicateAnnotationId,
                        shown,
                        "another annotation has the same id",
                    ),
                    id,
                )
                .done(Action::Kept),
            );
        }
        let image = annotation
            .image_id
            .as_id()
            .and_then(|image| by_id.get(&image));
        let Some(&image) = image else {
            let reason = "no image has this id";
            let finding = Finding::new(FindingKind::UnknownImage, shown, reason)
                .value(format!("image_id: {}", annotation.image_id));
            report.findings.push(context.bad_box(with_id(finding, id)));
            continue;
        };
        by_image[image].push(Assigned { id, annotation });
    }
    by_image
}

fn with_id(mut finding: Finding, id: u64) -> Finding {
    finding.annotation_id = Some(id);
    finding
}

/// What one image came to.
struct Outcome {
    entry: Option<ImageEntry>,
    findings: Vec<Finding>,
    /// Categories of annotations that are not selected, once for each annotation.
    other_categories: Vec<u64>,
    is_oriented: bool,
}

fn read_image(
    context: &Context,
    shown: &str,
    entry: &Entry,
    finder: &Finder,
    classes: &Classes,
    boxes: &[Assigned],
) -> Outcome {
    let mut outcome = Outcome {
        entry: None,
        findings: Vec::new(),
        other_categories: Vec::new(),
        is_oriented: false,
    };
    let path = finder.path(&entry.file_name);
    let header = match context.check_image(&path) {
        Ok(header) => header,
        Err(error) => {
            outcome.findings.push(context.unreadable(&error));
            return outcome;
        }
    };
    if let Some(finding) = check_size(entry, header) {
        outcome.findings.push(context.bad_image(finding));
        return outcome;
    }
    let (width, height) = header.upright();
    let mut image = ImageEntry {
        id: entry.id,
        file_name: entry.file_name.clone(),
        path,
        width,
        height,
        labels: Vec::new(),
        truths: Vec::new(),
    };
    let mut seen = Seen::default();
    for &Assigned { id, annotation } in boxes {
        let category = annotation.category_id.as_id();
        let known = category.filter(|id| classes.category_names.contains_key(id));
        let Some(category) = known else {
            let reason = "no category has this id";
            let finding = Finding::new(FindingKind::UnknownCategory, shown, reason)
                .value(format!("category_id: {}", annotation.category_id));
            outcome.findings.push(context.bad_box(with_id(finding, id)));
            continue;
        };
        let Some(&class) = classes.class_of.get(&category) else {
            outcome.other_categories.push(category);
            continue;
        };
        match read_box(annotation) {
            Err((value, reason)) => {
                let finding =
                    Finding::new(FindingKind::MalformedAnnotation, shown, reason).value(value);
                outcome.findings.push(context.bad_box(with_id(finding, id)));
            }
            Ok(BoxOf { bbox, area, crowd }) => {
                let truth = Truth {
                    id,
                    class,
                    bbox,
                    area,
                    crowd,
                };
                let finding = |kind, reason| {
                    with_id(
                        Finding::new(kind, shown, reason).value(format!("bbox: {bbox:?}")),
                        id,
                    )
                };
                context.add_box(&mut image, &mut seen, truth, finding, &mut outcome.findings);
            }
        }
    }
    // Where the annotated size is that of the upright image and of no other, the frame is confirmed.
    let confirmed = header.swaps_sides() && entry.size.is_some() && width != height;
    outcome.is_oriented = header.orientation != 1 && !confirmed && !image.truths.is_empty();
    outcome.entry = Some(image);
    outcome
}

/// Compares the annotated size with the file's.
fn check_size(entry: &Entry, header: Header) -> Option<Finding> {
    let (width, height) = entry.size?;
    let wide = |(width, height): (u32, u32)| (u64::from(width), u64::from(height));
    let upright = wide(header.upright());
    let stored = wide(header.stored);
    if (width, height) == upright {
        return None;
    }
    let (kind, reason) = if header.swaps_sides() && (width, height) == stored {
        (
            FindingKind::StoredFrame,
            format!(
                "annotated as stored, before its EXIF orientation {}, which makes it {} x {}: the boxes would be wrong; \
                 remove the orientation from the file, or annotate the upright image",
                header.orientation, upright.0, upright.1
            ),
        )
    } else {
        let exchanged = if (height, width) == upright {
            " (width and height are exchanged)"
        } else {
            ""
        };
        (
            FindingKind::SizeMismatch,
            format!(
                "the image is {} x {}{exchanged}: the boxes would be wrong",
                upright.0, upright.1
            ),
        )
    };
    Some(Finding::new(kind, entry.file_name.clone(), reason).value(format!("{width} x {height}")))
}

struct BoxOf {
    bbox: [f64; 4],
    area: f64,
    crowd: bool,
}

/// The box of an annotation, from its segmentation where it has no bbox. The error is value and reason.
fn read_box(annotation: &CocoAnnotation) -> Result<BoxOf, (String, String)> {
    let bbox = match (&annotation.bbox, &annotation.segmentation) {
        (BoxField::Box(bbox), _) => *bbox,
        (BoxField::Bad(value), _) => {
            return Err((
                format!("bbox: {value}"),
                "a box is four numbers, [x, y, width, height]".to_owned(),
            ));
        }
        (BoxField::Missing, Extent::Box(bbox)) => *bbox,
        (BoxField::Missing, Extent::None) => {
            return Err((
                String::new(),
                "it has neither a bbox nor a segmentation".to_owned(),
            ));
        }
        (BoxField::Missing, Extent::Bad(reason)) => {
            return Err((String::new(), format!("it has no bbox, and {reason}")));
        }
    };
    let crowd = annotation.iscrowd.as_flag().ok_or_else(|| {
        (
            format!("iscrowd: {}", annotation.iscrowd),
            "iscrowd is 0 or 1".to_owned(),
        )
    })?;
    let area = match &annotation.area {
        coco::Scalar::Missing => bbox[2] * bbox[3],
        area => area.as_number().ok_or_else(|| {
            (
                format!("area: {area}"),
                "the area is not a number".to_owned(),
            )
        })?,
    };
    Ok(BoxOf { bbox, area, crowd })
}

#[cfg(test)]
#[path = "coco_index_tests.rs"]
mod tests;
