//! A split of Pascal VOC: folders of images with an XML file each, and the lists of `ImageSets/Main`.
//!
//! Objects marked `difficult` are trained on, as most trainers do, and are neutral in evaluation, as VOC's own
//! protocol has it: missing one is no mistake, and a detection of one is neither right nor wrong. The COCO
//! figures have one kind of neutral ground truth, the crowd region, so that is what they become there; any
//! number of detections may fall on one, and a detection is measured by its own area.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::check::Seen;
use super::frame;
use super::index::{Context, Draft, Images};
use super::locate::{Located, locate};
use super::report::{Finding, FindingKind, SplitReport};
use super::source;
use super::voc::{self, Annotation};
use super::voc_list::{Item, list};
use super::{DataError, ImageEntry, Split, Truth};
use crate::config::dataset::SplitName;

pub(crate) const FORMAT: &str = "Pascal VOC";

/// What the annotation file of an item came to.
enum Read {
    None,
    Annotation(Annotation),
    Bad(String),
}

/// What one image came to.
#[derive(Default)]
struct Outcome {
    entry: Option<ImageEntry>,
    findings: Vec<Finding>,
    /// Objects of names that are no class.
    others: Vec<String>,
    is_oriented: bool,
}

pub(crate) fn index(context: &Context, entries: &[PathBuf]) -> Result<Draft, DataError> {
    let yaml = context.yaml;
    let places: Vec<String> = entries.iter().map(|e| e.display().to_string()).collect();
    let places = places.join(", ");
    let mut report = SplitReport::new(context.which.key(), FORMAT, places.clone());
    let items = list(context, entries, &mut report.findings)?;
    if items.is_empty() {
        return Err(DataError::NoImages {
            yaml: yaml.label.clone(),
            split: context.which.key(),
            looked_for: format!("images and XML annotations in {places}"),
        });
    }
    if !items.iter().any(|item| item.listed.path.exists()) {
        return Err(DataError::ImagesMissing {
            annotations: entries[0].clone(),
            first: items[0].listed.name.clone(),
            tried: vec![items[0].listed.path.clone()],
            hint: yaml.missing_hint(),
        });
    }
    let read: Vec<Read> = items.par_iter().map(read_annotation).collect();
    let names = class_names(context, entries, &read)?;
    let class_of: BTreeMap<&str, usize> = names
        .iter()
        .enumerate()
        .map(|(class, name)| (name.as_str(), class))
        .collect();
    let zero_based = is_zero_based(&items, &read, &mut report.findings);

    let all: Vec<&str> = items.iter().map(|item| item.listed.name.as_str()).collect();
    let (listed, chosen) = context.choose(&all);
    report.images_listed = listed;
    let outcomes: Vec<Outcome> = chosen
        .par_iter()
        .map(|&index| {
            let id = index as u64 + 1;
            read_image(
                context,
                id,
                &items[index],
                &read[index],
                &class_of,
                zero_based,
            )
        })
        .collect();

    let mut images = Images::default();
    for outcome in outcomes {
        report.findings.extend(outcome.findings);
        for name in outcome.others {
            *report.other_categories.entry(name).or_default() += 1;
        }
        if let Some(entry) = outcome.entry {
            images.add_numbered(entry, outcome.is_oriented);
        }
    }
    let (images, oriented) = images.finish();
    report.findings.extend(oriented);
    report
        .findings
        .extend(without_annotation(&items, &chosen, &read));
    Ok(Draft {
        split: Split {
            category_ids: (0..names.len() as u64).collect(),
            names,
            images,
            image_id_in_file: false,
        },
        report,
        looked_for: format!("objects in the XML annotations of {places}"),
    })
}

fn read_annotation(item: &Item) -> Read {
    let Some(path) = &item.xml else {
        return Read::None;
    };
    let read = || {
        let bytes = fs::metadata(path).map_err(|e| e.to_string())?.len();
        if bytes > voc::MAX_FILE_BYTES {
            return Err(format!(
                "the file has {bytes} bytes, more than the {} that are read",
                voc::MAX_FILE_BYTES
            ));
        }
        let bytes = fs::read(path).map_err(|e| format!("cannot be read: {e}"))?;
        voc::parse(&bytes)
    };
    match read() {
        Ok(annotation) => Read::Annotation(annotation),
        Err(reason) => Read::Bad(reason),
    }
}

/// `names` of the dataset file, else those of the network, else all names in the annotations of the training
/// split, sorted.
fn class_names(
    context: &Context,
    entries: &[PathBuf],
    read: &[Read],
) -> Result<Vec<String>, DataError> {
    let yaml = context.yaml;
    if let Some(names) = &yaml.names {
        return Ok(names.clone());
    }
    if let Some(names) = context.class_order {
        return Ok(names.to_vec());
    }
    let training = match locate(yaml, SplitName::Train) {
        Ok(Located::Voc(training)) if training != entries => Some(training),
        _ => None,
    };
    let names: BTreeSet<String> = match training {
        Some(training) => {
            let items = list(context, &training, &mut Vec::new())?;
            let read: Vec<Read> = items.par_iter().map(read_annotation).collect();
            annotated(&read)
        }
        None => annotated(read),
    };
    let names: Vec<String> = names.into_iter().collect();
    if let Some(nc) = yaml.nc
        && nc != names.len()
    {
        return Err(DataError::CategoryCount {
            yaml: yaml.label.clone(),
            nc,
            found: names.len(),
            path: entries[0].clone(),
            available: names,
        });
    }
    Ok(names)
}

fn annotated(read: &[Read]) -> BTreeSet<String> {
    read.iter()
        .filter_map(|read| match read {
            Read::Annotation(annotation) => Some(&annotation.objects),
            _ => None,
        })
        .flatten()
        .map(|object| object.name.clone())
        .collect()
}

/// Whether the split's coordinates count from 0, which is told.
fn is_zero_based(items: &[Item], read: &[Read], findings: &mut Vec<Finding>) -> bool {
    let mut count = 0;
    let mut first = None;
    for (item, read) in items.iter().zip(read) {
        let Read::Annotation(annotation) = read else {
            continue;
        };
        for object in annotation.objects.iter().filter(|o| o.is_from_zero()) {
            count += 1;
            first.get_or_insert((item, object));
        }
    }
    if let Some((item, object)) = first {
        let file = item
            .xml
            .as_ref()
            .map_or(String::new(), |xml| xml.display().to_string());
        findings.push(
            Finding::new(
                FindingKind::ZeroBased,
                file,
                format!(
                    "{count} boxes have a corner below 1, which VOC counts from: all boxes of the split are taken as corners counted from 0"
                ),
            )
            .line(object.line)
            .value(object.text()),
        );
    }
    first.is_some()
}

fn without_annotation(items: &[Item], chosen: &[usize], read: &[Read]) -> Option<Finding> {
    let mut without = chosen
        .iter()
        .filter(|&&index| matches!(read[index], Read::None) && items[index].listed.path.exists());
    let first = *without.next()?;
    let count = 1 + without.count();
    Some(
        Finding::new(
            FindingKind::NoAnnotationFile,
            items[first].listed.name.clone(),
            "images without an XML file are taken as images without objects",
        )
        .value(count.to_string()),
    )
}

fn read_image(
    context: &Context,
    id: u64,
    item: &Item,
    read: &Read,
    class_of: &BTreeMap<&str, usize>,
    zero_based: bool,
) -> Outcome {
    let mut outcome = Outcome::default();
    let listed = &item.listed;
    let (header, mut entry) = match context.listed_image(id, listed) {
        Ok(found) => found,
        Err(finding) => {
            outcome.findings.push(*finding);
            return outcome;
        }
    };
    let xml = item.xml.as_deref().unwrap_or(Path::new(""));
    let xml = source::relative_name(&context.yaml.root, xml);
    let annotation = match read {
        Read::None => {
            outcome.entry = Some(entry);
            return outcome;
        }
        Read::Bad(reason) => {
            outcome.findings.push(context.bad_image(Finding::new(
                FindingKind::UnreadableLabels,
                xml,
                reason.clone(),
            )));
            return outcome;
        }
        Read::Annotation(annotation) => annotation,
    };
    if let Some(finding) = frame::check_size(&listed.name, annotation.size, header) {
        outcome.findings.push(context.bad_image(finding));
        return outcome;
    }
    outcome.findings.extend(annotation.bad.iter().map(|object| {
        context.bad_box(
            Finding::new(
                FindingKind::MalformedAnnotation,
                xml.clone(),
                object.reason.clone(),
            )
            .line(object.line)
            .value(object.value.clone()),
        )
    }));
    let mut seen = Seen::default();
    for object in &annotation.objects {
        let Some(&class) = class_of.get(object.name.as_str()) else {
            outcome.others.push(object.name.clone());
            continue;
        };
        let bbox = object.to_pixels(zero_based);
        let truth = Truth {
            id: 0, // numbered when all images are there
            class,
            bbox,
            area: bbox[2] * bbox[3],
            crowd: object.difficult,
        };
        let finding = |kind, reason| {
            Finding::new(kind, xml.clone(), reason)
                .line(object.line)
                .value(object.text())
        };
        context.add_box(
            &mut entry,
            &mut seen,
            truth,
            true,
            finding,
            &mut outcome.findings,
        );
    }
    outcome.is_oriented = header.orientation != 1
        && !frame::is_confirmed(annotation.size, header)
        && !entry.truths.is_empty();
    outcome.entry = Some(entry);
    outcome
}
