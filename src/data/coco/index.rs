//! A split of a COCO JSON file: its categories become classes, its images are found on disk, its annotations
//! become boxes.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use rayon::prelude::*;

use super::super::check::Seen;
use super::super::frame;
use super::super::index::{Context, Draft, Images};
use super::super::report::{Action, Finding, FindingKind, SplitReport};
use super::super::{DataError, ImageEntry, Split, Truth};
use super::classes::Classes;
use super::images::{Entry, Finder, read_images};
use super::{BoxField, CocoAnnotation, Extent, Scalar};

pub(crate) fn index(
    context: &Context,
    path: &Path,
    folder: Option<&Path>,
) -> Result<Draft, DataError> {
    let file = super::read(path)?;
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
    let names: Vec<&str> = entries.iter().map(|e| e.file_name.as_str()).collect();
    let (listed, chosen) = context.choose(&names);
    report.images_listed = listed;
    let outcomes: Vec<Outcome> = chosen
        .par_iter()
        .map(|&index| {
            let boxes = &by_image[index];
            read_image(context, &shown, &entries[index], &finder, &classes, boxes)
        })
        .collect();

    let mut images = Images::default();
    for outcome in outcomes {
        report.findings.extend(outcome.findings);
        for category in outcome.other_categories {
            let name = classes.category_names[&category].clone();
            *report.other_categories.entry(name).or_default() += 1;
        }
        if let Some(entry) = outcome.entry {
            images.add(entry, outcome.is_oriented);
        }
    }
    let (images, oriented) = images.finish();
    report.findings.extend(oriented);
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
            (Scalar::Missing, None) => {
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
    if let Some(finding) = frame::check_size(&entry.file_name, entry.size, header) {
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
                context.add_box(
                    &mut image,
                    &mut seen,
                    truth,
                    !crowd,
                    finding,
                    &mut outcome.findings,
                );
            }
        }
    }
    outcome.is_oriented = header.orientation != 1
        && !frame::is_confirmed(entry.size, header)
        && !image.truths.is_empty();
    outcome.entry = Some(image);
    outcome
}

pub(super) struct BoxOf {
    pub bbox: [f64; 4],
    pub area: f64,
    pub crowd: bool,
}

/// The box of an annotation, from its segmentation where it has no bbox. The error is value and reason.
pub(super) fn read_box(annotation: &CocoAnnotation) -> Result<BoxOf, (String, String)> {
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
        Scalar::Missing => bbox[2] * bbox[3],
        area => area.as_number().ok_or_else(|| {
            (
                format!("area: {area}"),
                "the area is not a number".to_owned(),
            )
        })?,
    };
    Ok(BoxOf { bbox, area, crowd })
}
