//! From a dataset file and the name of a split to a [`Split`]: finds the files, tells the format, checks
//! everything, and says what it found.

use std::collections::BTreeMap;
use std::path::Path;

use super::check::{BoxCheck, Seen, check_box};
use super::decode::{DecodeError, Header, probe, read_rgb};
use super::holdout::{self, Part};
use super::locate::{Located, locate};
use super::report::{Action, ClassCount, Finding, FindingKind, SplitReport};
use super::source::Listed;
use super::{DataError, ImageEntry, LabelBox, Split, Truth, coco, voc_index, yolo_index};
use crate::config::dataset::{DatasetYaml, SplitName};
use crate::pulse::Pulse;

/// How a split is read.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexOptions {
    /// Leave malformed boxes and unreadable images out instead of stopping. Every image is then decoded once
    /// while indexing, so that none that is broken inside is met later.
    pub skip_bad: bool,
    /// All classes become class 0, `item`, in training and in the ground truth.
    pub single_cls: bool,
    /// Only these classes keep their boxes and truths; class numbers stay as they are.
    pub classes: Option<Vec<usize>>,
    /// Part of the training images, evenly spread over their order; other splits are always whole.
    pub fraction: f64,
    /// Threads that check files; `None`: one a core.
    pub threads: Option<usize>,
    /// Beaten with every image that was looked at.
    pub pulse: Pulse,
}

impl Default for IndexOptions {
    fn default() -> Self {
        Self {
            skip_bad: false,
            single_cls: false,
            classes: None,
            fraction: 1.0,
            threads: None,
            pulse: Pulse::new(),
        }
    }
}

/// What the readers of both formats need to know.
pub(crate) struct Context<'a> {
    pub yaml: &'a DatasetYaml,
    pub which: SplitName,
    pub skip_bad: bool,
    /// 1 unless training.
    pub fraction: f64,
    /// The side of a split that is held out of the training images.
    pub part: Option<Part>,
    /// [`DatasetYaml::class_order`], unless classes are merged anyway.
    pub class_order: Option<&'a [String]>,
    pub pulse: &'a Pulse,
}

/// A split as a reader of a format leaves it: complete but for the selection of classes and the counts.
pub(crate) struct Draft {
    pub split: Split,
    pub report: SplitReport,
    /// For the message when there is nothing to train on.
    pub looked_for: String,
}

/// Reads one split and checks it: labels, headers of all images, sizes.
///
/// The order of images is that of the COCO file, or by name. The result does not depend on the number of
/// threads.
///
/// # Errors
/// [`DataError`]: missing files (with every place that was tried), malformed data (all of it, in the error's
/// report), a split without images, a training split without a box.
pub fn load_split(
    yaml: &DatasetYaml,
    which: SplitName,
    options: &IndexOptions,
) -> Result<(Split, SplitReport), DataError> {
    let source = locate(yaml, which)?;
    let context = Context {
        yaml,
        which,
        skip_bad: options.skip_bad,
        fraction: if which == SplitName::Train {
            options.fraction
        } else {
            1.0
        },
        part: match (yaml.holdout, which) {
            (Some(share), SplitName::Train) if yaml.val.is_none() => Some(Part::Training(share)),
            (Some(share), SplitName::Val) if yaml.val.is_none() => Some(Part::HeldOut(share)),
            _ => None,
        },
        class_order: yaml.class_order.as_deref().filter(|_| !options.single_cls),
        pulse: &options.pulse,
    };
    let threads = options.threads.unwrap_or(0);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|index| format!("index-{index}"))
        .build()
        .map_err(|error| DataError::Threads {
            threads,
            reason: error.to_string(),
        })?;
    let draft = pool.install(|| match &source {
        Located::Coco {
            annotations,
            images,
        } => coco::index(&context, annotations, images.as_deref()),
        Located::Yolo(entries) => yolo_index::index(&context, entries),
        Located::Voc(entries) => voc_index::index(&context, entries),
    })?;
    finish(&context, draft, options)
}

impl Context<'_> {
    /// Images of this split by their names, and which of them are read: of the images that `part` gives, those
    /// of the fraction, `round(fraction x count)`, at least one, evenly spread. The first is the count of all.
    pub fn choose(&self, names: &[&str]) -> (usize, Vec<usize>) {
        let mut chosen = match self.part {
            Some(part) => holdout::choose(names, part),
            None => (0..names.len()).collect(),
        };
        let count = chosen.len();
        if self.fraction < 1.0 {
            let kept = ((self.fraction * count as f64).round() as usize).clamp(1, count.max(1));
            let before = |index: usize| (index as u128 * kept as u128) / count.max(1) as u128;
            let mut index = 0;
            chosen.retain(|_| {
                index += 1;
                before(index) > before(index - 1)
            });
        }
        (count, chosen)
    }

    /// The header of an image, and with `skip_bad` a proof that its pixels can be read.
    pub fn check_image(&self, path: &Path) -> Result<Header, DecodeError> {
        self.pulse.beat("scanning labels");
        let header = probe(path)?;
        if self.skip_bad {
            read_rgb(path)?;
        }
        Ok(header)
    }

    /// A listed image without its boxes, and its header; or why it cannot be read, with the list that names it.
    pub fn listed_image(
        &self,
        id: u64,
        listed: &Listed,
    ) -> Result<(Header, ImageEntry), Box<Finding>> {
        let header = self.check_image(&listed.path).map_err(|error| {
            let mut finding = self.unreadable(&error);
            if let Some((list, line)) = &listed.by {
                finding.reason =
                    format!("{} (listed in {}:{line})", finding.reason, list.display());
            }
            Box::new(finding)
        })?;
        let (width, height) = header.upright();
        let entry = ImageEntry {
            id,
            file_name: listed.name.clone(),
            path: listed.path.clone(),
            width,
            height,
            labels: Vec::new(),
            truths: Vec::new(),
        };
        Ok((header, entry))
    }

    /// A malformed finding that drops a box where bad input is skipped.
    pub fn bad_box(&self, finding: Finding) -> Finding {
        finding.malformed(self.skip_bad, Action::BoxDropped)
    }

    /// A malformed finding that drops an image where bad input is skipped.
    pub fn bad_image(&self, finding: Finding) -> Finding {
        finding.malformed(self.skip_bad, Action::ImageDropped)
    }

    /// The finding for an image that cannot be read.
    pub fn unreadable(&self, error: &DecodeError) -> Finding {
        let missing = matches!(error, DecodeError::Io { source, .. }
            if source.kind() == std::io::ErrorKind::NotFound);
        let file = error.path().display().to_string();
        self.bad_image(if missing {
            Finding::new(
                FindingKind::MissingImage,
                file,
                "the image file is not there",
            )
        } else {
            Finding::new(FindingKind::UnreadableImage, file, error.reason())
        })
    }

    /// Adds one annotated box to an image: to its truths, and to its labels if it is `for_training` and fit for
    /// it. `finding` makes a finding that names the box's place and value.
    pub fn add_box(
        &self,
        image: &mut ImageEntry,
        seen: &mut Seen,
        truth: Truth,
        for_training: bool,
        finding: impl Fn(FindingKind, String) -> Finding,
        findings: &mut Vec<Finding>,
    ) {
        let (width, height) = (image.width, image.height);
        let check = check_box(truth.bbox, width, height);
        let malformed = match check {
            BoxCheck::Outside => Some((
                FindingKind::OutsideImage,
                format!("the box lies outside of its image of {width} x {height}"),
            )),
            BoxCheck::Negative => Some((
                FindingKind::MalformedAnnotation,
                "width and height of a box must not be negative".to_owned(),
            )),
            BoxCheck::NotFinite => Some((
                FindingKind::MalformedAnnotation,
                "the box is not finite".to_owned(),
            )),
            _ => None,
        };
        if let Some((kind, reason)) = malformed {
            findings.push(self.bad_box(finding(kind, reason)));
            return;
        }
        let trained_on = if !for_training {
            None
        } else if seen.again(truth.class, truth.bbox) {
            findings.push(
                finding(
                    FindingKind::Duplicate,
                    "the same box of the same class is there twice".to_owned(),
                )
                .done(Action::NotTrainedOn),
            );
            None
        } else {
            match check {
                BoxCheck::Fine(xyxy) => Some(xyxy),
                BoxCheck::Overhang(xyxy, pixels) => {
                    findings.push(
                        finding(
                            FindingKind::Overhang,
                            format!("the box sticks out of its image of {width} x {height} by {pixels:.2} px"),
                        )
                        .done(Action::Clipped),
                    );
                    Some(xyxy)
                }
                _ => {
                    findings.push(
                        finding(FindingKind::ZeroArea, "the box has no area".to_owned())
                            .done(Action::NotTrainedOn),
                    );
                    None
                }
            }
        };
        image.labels.extend(trained_on.map(|xyxy| LabelBox {
            class: truth.class,
            xyxy,
        }));
        image.truths.push(truth);
    }
}

/// The images of a split as they come, and how many of them carry an EXIF orientation that nothing confirms.
#[derive(Default)]
pub(super) struct Images {
    list: Vec<ImageEntry>,
    boxes: u64,
    /// Their count and the first one's name.
    oriented: Option<(usize, String)>,
}

impl Images {
    /// Adds an image. `is_oriented`: an orientation is applied while nothing confirms that its boxes were drawn in the
    /// upright frame.
    pub fn add(&mut self, entry: ImageEntry, is_oriented: bool) {
        if is_oriented {
            let oriented = &mut self.oriented;
            oriented.get_or_insert((0, entry.file_name.clone())).0 += 1;
        }
        self.list.push(entry);
    }

    /// As [`add`](Self::add), for formats whose boxes have no ids: they are numbered from 1 through the split.
    pub fn add_numbered(&mut self, mut entry: ImageEntry, is_oriented: bool) {
        for truth in &mut entry.truths {
            self.boxes += 1;
            truth.id = self.boxes;
        }
        self.add(entry, is_oriented);
    }

    /// The images, and a note where some are oriented.
    pub fn finish(self) -> (Vec<ImageEntry>, Option<Finding>) {
        let note = self.oriented.map(|(count, first)| {
            Finding::new(
                FindingKind::OrientedImages,
                first,
                "images carry an EXIF orientation, which is applied: boxes are taken to be in the upright frame",
            )
            .value(count.to_string())
        });
        (self.list, note)
    }
}

fn finish(
    context: &Context,
    draft: Draft,
    options: &IndexOptions,
) -> Result<(Split, SplitReport), DataError> {
    let Draft {
        mut split,
        mut report,
        looked_for,
    } = draft;
    let yaml = context.yaml.label.clone();
    let key = context.which.key();

    if let Some(classes) = &options.classes {
        select_classes(&mut split, &mut report, classes)?;
    }
    if options.single_cls {
        merge_classes(&mut split);
    }
    count(&split, &mut report);

    let is_training = context.which == SplitName::Train;
    if context.part.is_some() && report.images_listed == 1 {
        report.findings.push(Finding::new(
            FindingKind::SingleImage,
            report.source.clone(),
            "there is one image, so it is both trained on and validated with",
        ));
    }
    if is_training {
        report.findings.extend(unused_classes(&report, options));
    } else if report.truths == 0 && report.images > 0 {
        report.findings.push(Finding::new(
            FindingKind::NoLabels,
            report.source.clone(),
            format!(
                "not one box in this split: figures will be undefined; looked for {looked_for}"
            ),
        ));
    }
    report.count_findings();

    if report.malformed > 0 && !options.skip_bad {
        return Err(DataError::Malformed {
            report: Box::new(report),
        });
    }
    if split.images.is_empty() {
        return Err(DataError::NoImages {
            yaml,
            split: key,
            looked_for,
        });
    }
    if is_training && report.boxes == 0 {
        return Err(DataError::NoLabels {
            yaml,
            split: key,
            images: report.images,
            looked_for,
            report: Box::new(report),
        });
    }
    Ok((split, report))
}

fn select_classes(
    split: &mut Split,
    report: &mut SplitReport,
    classes: &[usize],
) -> Result<(), DataError> {
    if classes.is_empty() {
        return Err(DataError::NoClasses);
    }
    if let Some(&class) = classes.iter().find(|&&class| class >= split.names.len()) {
        return Err(DataError::NoSuchClass {
            class,
            names: split.names.clone(),
        });
    }
    for image in &mut split.images {
        for truth in &image.truths {
            if !classes.contains(&truth.class) {
                let name = split.names[truth.class].clone();
                *report.other_classes.entry(name).or_default() += 1;
            }
        }
        image.labels.retain(|label| classes.contains(&label.class));
        image.truths.retain(|truth| classes.contains(&truth.class));
    }
    Ok(())
}

/// `single_cls`. A file of one category keeps its id; of several, the id is 0 (YOLO txt) or 1 (COCO).
fn merge_classes(split: &mut Split) {
    for image in &mut split.images {
        image.labels.iter_mut().for_each(|label| label.class = 0);
        image.truths.iter_mut().for_each(|truth| truth.class = 0);
    }
    if split.names.len() > 1 {
        split.category_ids = vec![u64::from(split.image_id_in_file)];
    }
    split.names = vec!["item".to_owned()];
}

fn count(split: &Split, report: &mut SplitReport) {
    report.classes = split
        .names
        .iter()
        .zip(&split.category_ids)
        .enumerate()
        .map(|(class, (name, &category_id))| ClassCount {
            class,
            name: name.clone(),
            category_id,
            boxes: 0,
            truths: 0,
            crowd: 0,
            images: 0,
        })
        .collect();
    report.images = split.images.len();
    for image in &split.images {
        let mut in_image: BTreeMap<usize, ()> = BTreeMap::new();
        for label in &image.labels {
            report.classes[label.class].boxes += 1;
        }
        for truth in &image.truths {
            let class = &mut report.classes[truth.class];
            class.truths += 1;
            class.crowd += usize::from(truth.crowd);
            in_image.insert(truth.class, ());
        }
        for class in in_image.into_keys() {
            report.classes[class].images += 1;
        }
        report.backgrounds += usize::from(image.truths.is_empty());
    }
    let sum = |field: fn(&ClassCount) -> usize| report.classes.iter().map(field).sum();
    report.boxes = sum(|class| class.boxes);
    report.truths = sum(|class| class.truths);
    report.crowd = sum(|class| class.crowd);
    if report.format == voc_index::FORMAT {
        report.difficult = report.crowd;
    }
}

fn unused_classes(report: &SplitReport, options: &IndexOptions) -> Option<Finding> {
    let is_selected = |class: usize| match &options.classes {
        Some(classes) => classes.contains(&class),
        None => true,
    };
    let unused: Vec<&str> = report
        .classes
        .iter()
        .filter(|class| class.truths == 0 && is_selected(class.class))
        .map(|class| class.name.as_str())
        .collect();
    if unused.is_empty() || report.truths == 0 {
        return None;
    }
    Some(
        Finding::new(
            FindingKind::UnusedCategory,
            report.source.clone(),
            "no box of these classes to train on; they stay classes of the network",
        )
        .value(unused.join(", "))
        .done(Action::Kept),
    )
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
