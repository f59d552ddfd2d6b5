//! A split of folders and lists with YOLO txt labels.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::check::Seen;
use super::decode::READABLE_EXTENSIONS;
use super::index::{Context, Draft, Images};
use super::report::{Finding, FindingKind, SplitReport};
use super::source::{self, Listed};
use super::{DataError, ImageEntry, Split, Truth, yolo};

/// What one image came to.
struct Outcome {
    entry: Option<ImageEntry>,
    findings: Vec<Finding>,
    has_label_file: bool,
    is_oriented: bool,
}

pub(crate) fn index(context: &Context, entries: &[PathBuf]) -> Result<Draft, DataError> {
    let yaml = context.yaml;
    let names = yaml
        .class_names()
        .or_else(|| context.class_order.map(<[String]>::to_vec))
        .ok_or_else(|| DataError::NoNames {
            yaml: yaml.label.clone(),
        })?;
    let places: Vec<String> = entries.iter().map(|e| e.display().to_string()).collect();
    let places = places.join(", ");
    let listing = source::list(yaml, entries)?;
    if listing.images.is_empty() {
        let unread: Vec<String> = listing.findings.iter().map(Finding::text).collect();
        let looked_for = format!(
            "images (.{}) in {places}; {}",
            READABLE_EXTENSIONS.join(", ."),
            unread.join("; ")
        );
        return Err(DataError::NoImages {
            yaml: yaml.label.clone(),
            split: context.which.key(),
            looked_for: looked_for.trim_end_matches("; ").to_owned(),
        });
    }

    let all: Vec<&str> = listing.images.iter().map(|i| i.name.as_str()).collect();
    let (count, chosen) = context.choose(&all);
    let chosen: Vec<(usize, &Listed)> = chosen
        .into_iter()
        .map(|index| (index, &listing.images[index]))
        .collect();
    let outcomes: Vec<Outcome> = chosen
        .par_iter()
        .map(|(index, listed)| read_image(context, *index as u64 + 1, listed, names.len()))
        .collect();

    let mut report = SplitReport::new(context.which.key(), "YOLO txt", places);
    report.images_listed = count;
    report.findings = listing.findings;
    let mut images = Images::default();
    let mut label_files = 0;
    for outcome in outcomes {
        report.findings.extend(outcome.findings);
        label_files += usize::from(outcome.has_label_file);
        if let Some(entry) = outcome.entry {
            images.add_numbered(entry, outcome.is_oriented);
        }
    }
    let (images, oriented) = images.finish();
    report.findings.extend(oriented);

    let looked_for = looked_for(context, &chosen, entries, label_files);
    Ok(Draft {
        split: Split {
            category_ids: (0..names.len() as u64).collect(),
            names,
            images,
            image_id_in_file: false,
        },
        report,
        looked_for,
    })
}

fn read_image(context: &Context, id: u64, listed: &Listed, classes: usize) -> Outcome {
    let mut outcome = Outcome {
        entry: None,
        findings: Vec::new(),
        has_label_file: false,
        is_oriented: false,
    };
    let labels = read_labels(&listed.path);
    outcome.has_label_file = matches!(labels, Ok(Some(_)));
    let (header, mut entry) = match context.listed_image(id, listed) {
        Ok(found) => found,
        Err(finding) => {
            outcome.findings.push(*finding);
            return outcome;
        }
    };
    let (file, bytes) = match labels {
        Ok(Some(found)) => found,
        Ok(None) => {
            outcome.entry = Some(entry);
            return outcome;
        }
        Err((path, error)) => {
            outcome.findings.push(context.bad_image(Finding::new(
                FindingKind::UnreadableLabels,
                path.display().to_string(),
                format!("cannot be read: {error}"),
            )));
            return outcome;
        }
    };
    let (rows, bad) = yolo::parse(&bytes, classes);
    let name = source::relative_name(&context.yaml.root, &file);
    outcome.findings.extend(bad.into_iter().map(|row| {
        context.bad_box(
            Finding::new(FindingKind::MalformedRow, name.clone(), row.reason)
                .line(row.line)
                .value(row.value),
        )
    }));
    let mut seen = Seen::default();
    for (line, row) in rows {
        let bbox = row.to_pixels(entry.width, entry.height);
        let truth = Truth {
            id: 0, // numbered when all images are there
            class: row.class,
            bbox,
            area: bbox[2] * bbox[3],
            crowd: false,
        };
        let finding = |kind, reason| {
            Finding::new(kind, name.clone(), reason)
                .line(line)
                .value(row.to_string())
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
    outcome.is_oriented = header.orientation != 1 && !entry.truths.is_empty();
    outcome.entry = Some(entry);
    outcome
}

/// The first label file of an image that exists, and its content.
#[allow(clippy::type_complexity)]
fn read_labels(image: &Path) -> Result<Option<(PathBuf, Vec<u8>)>, (PathBuf, io::Error)> {
    let usual = yolo::label_paths(image).into_iter();
    let elsewhere = std::iter::once_with(|| yolo::labels_elsewhere(image));
    for path in usual.chain(elsewhere.flatten()) {
        match fs::read(&path) {
            Ok(bytes) => return Ok(Some((path, bytes))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // `labels` or a folder above it is a file.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {}
            Err(error) => return Err((path, error)),
        }
    }
    Ok(None)
}

/// What was looked for, for the message when there is nothing to train on: a label file by name, and a
/// COCO file that lies beside the images, if there is one.
fn looked_for(
    context: &Context,
    chosen: &[(usize, &Listed)],
    entries: &[PathBuf],
    label_files: usize,
) -> String {
    let mut text = match chosen.first() {
        Some((_, first)) => {
            let paths: Vec<String> = yolo::label_paths(&first.path)
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            format!(
                "rows in label files such as {} for {}; {label_files} of {} images have a label file",
                paths.join(" or "),
                first.name,
                chosen.len()
            )
        }
        None => "images".to_owned(),
    };
    let json = entries.iter().find_map(|entry| first_json(entry));
    if let Some(json) = json {
        text.push_str(&format!(
            ". There is {}: if it is a COCO file, give `{}: {}`",
            json.display(),
            context.which.key(),
            source::relative_name(&context.yaml.root, &json)
        ));
    }
    text
}

fn first_json(folder: &Path) -> Option<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "json")
        })
        .collect();
    found.sort();
    found.into_iter().next()
}
