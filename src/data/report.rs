//! What was found in a data set: counts and every problem, in `data-report.json` and in a few lines.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

/// How many problems a message shows before it gives the count alone.
pub const SHOWN: usize = 10;

/// Whether something stops a run (unless bad input is to be skipped) or is only told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    Malformed,
    Warning,
}

/// What kind of thing was found; lines for the user are grouped by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    MissingImage,
    UnreadableImage,
    MalformedImageEntry,
    SizeMismatch,
    StoredFrame,
    UnreadableLabels,
    MalformedRow,
    MalformedAnnotation,
    UnknownImage,
    UnknownCategory,
    OutsideImage,
    ZeroArea,
    Duplicate,
    Overhang,
    DuplicateAnnotationId,
    NoAnnotationId,
    DuplicateImage,
    SharedLabels,
    UnreadFormat,
    HiddenFile,
    UnusedCategory,
    MissingCategory,
    OrientedImages,
    NoLabels,
    SameName,
    NoAnnotationFile,
    ZeroBased,
    SingleImage,
}

impl FindingKind {
    /// What a group of findings is called in a line for the user, after their count.
    fn noun(self) -> &'static str {
        match self {
            Self::MissingImage => "missing images",
            Self::UnreadableImage => "unreadable images",
            Self::MalformedImageEntry => "malformed image entries",
            Self::SizeMismatch => "images of another size than annotated",
            Self::StoredFrame => "images annotated without their EXIF rotation",
            Self::UnreadableLabels => "unreadable label files",
            Self::MalformedRow => "malformed rows",
            Self::MalformedAnnotation => "malformed annotations",
            Self::UnknownImage => "annotations of images that are not listed",
            Self::UnknownCategory => "annotations of categories that are not listed",
            Self::OutsideImage => "boxes outside their image",
            Self::ZeroArea => "boxes without area",
            Self::Duplicate => "duplicate boxes",
            Self::Overhang => "boxes that stick out of their image",
            Self::DuplicateAnnotationId => "annotation ids given twice",
            Self::NoAnnotationId => "annotations without an id",
            Self::DuplicateImage => "images listed twice",
            Self::SharedLabels => "label files shared by images of the same name",
            Self::UnreadFormat => "image formats that are not read",
            Self::HiddenFile => "folders with hidden image files",
            Self::UnusedCategory => "categories without any annotation",
            Self::MissingCategory => "classes that this file does not have",
            Self::OrientedImages => "notes on EXIF orientation",
            Self::NoLabels => "splits without labels",
            Self::SameName => "categories of a name that another one has",
            Self::NoAnnotationFile => "notes on images without an annotation file",
            Self::ZeroBased => "notes on coordinates from 0",
            Self::SingleImage => "splits of a single image",
        }
    }
}

/// What was done about a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Action {
    #[serde(rename = "stops the run")]
    Stops,
    #[serde(rename = "box dropped")]
    BoxDropped,
    #[serde(rename = "image dropped")]
    ImageDropped,
    #[serde(rename = "left out of training, kept in evaluation")]
    NotTrainedOn,
    #[serde(rename = "clipped for training, unchanged in evaluation")]
    Clipped,
    #[serde(rename = "kept")]
    Kept,
    #[serde(rename = "left out")]
    LeftOut,
    #[serde(rename = "told")]
    Told,
}

impl Action {
    fn text(self) -> &'static str {
        match self {
            Self::Stops => "stops the run",
            Self::BoxDropped => "box dropped",
            Self::ImageDropped => "image dropped",
            Self::NotTrainedOn => "left out of training, kept in evaluation",
            Self::Clipped => "clipped for training, unchanged in evaluation",
            Self::Kept => "kept",
            Self::LeftOut => "left out",
            Self::Told => "told",
        }
    }
}

/// One thing that was found, with the place to look at.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    pub severity: Severity,
    pub kind: FindingKind,
    pub file: String,
    /// Line in a text file, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// Id of an annotation in a COCO file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub annotation_id: Option<u64>,
    /// Index in the file's list, from 0, where an entry has no usable id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    pub value: String,
    pub reason: String,
    pub action: Action,
}

impl Finding {
    pub(crate) fn new(
        kind: FindingKind,
        file: impl Into<String>,
        reason: impl Into<String>,
    ) -> Self {
        Self {
            severity: Severity::Warning,
            kind,
            file: file.into(),
            line: None,
            annotation_id: None,
            index: None,
            value: String::new(),
            reason: reason.into(),
            action: Action::Told,
        }
    }

    pub(crate) fn value(mut self, value: impl Into<String>) -> Self {
        self.value = value.into();
        self
    }

    pub(crate) fn line(mut self, line: usize) -> Self {
        self.line = Some(line);
        self
    }

    pub(crate) fn done(mut self, action: Action) -> Self {
        self.action = action;
        self
    }

    /// Stops the run, unless `skip_bad`: then `dropped` is what is done.
    pub(crate) fn malformed(mut self, skip_bad: bool, dropped: Action) -> Self {
        self.severity = Severity::Malformed;
        self.action = if skip_bad { dropped } else { Action::Stops };
        self
    }

    /// `file:line`, `file, annotation 7`, `file, entry 3`, or the file.
    pub fn place(&self) -> String {
        let mut place = self.file.clone();
        if let Some(line) = self.line {
            let _ = write!(place, ":{line}");
        }
        if let Some(id) = self.annotation_id {
            let _ = write!(place, ", annotation {id}");
        }
        if let Some(index) = self.index {
            let _ = write!(place, ", entry {index}");
        }
        place
    }

    /// One line: place, value, reason.
    pub fn text(&self) -> String {
        if self.value.is_empty() {
            format!("{}: {}", self.place(), self.reason)
        } else {
            format!("{}: `{}`: {}", self.place(), self.value, self.reason)
        }
    }
}

/// Boxes of one class in one split.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClassCount {
    pub class: usize,
    pub name: String,
    pub category_id: u64,
    /// Boxes that are trained on.
    pub boxes: usize,
    /// Boxes of the ground truth, with crowd regions.
    pub truths: usize,
    pub crowd: usize,
    /// Images with at least one box of the ground truth.
    pub images: usize,
}

/// What is in one split and what was found in it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SplitReport {
    pub split: String,
    /// "COCO JSON", "YOLO txt" or "Pascal VOC".
    pub format: String,
    /// Folder, list or file that the split was read from.
    pub source: String,
    pub images: usize,
    /// Images that the source lists, before `fraction` and what was dropped.
    pub images_listed: usize,
    pub images_dropped: usize,
    /// Images without any ground truth.
    pub backgrounds: usize,
    pub boxes: usize,
    pub truths: usize,
    /// Boxes that are neutral in evaluation: crowd regions of COCO, difficult objects of Pascal VOC.
    pub crowd: usize,
    /// Those of them that are trained on: difficult objects of Pascal VOC.
    pub difficult: usize,
    pub boxes_dropped: usize,
    pub malformed: usize,
    pub warnings: usize,
    pub classes: Vec<ClassCount>,
    /// Annotations of categories that `names` does not select, by category name.
    pub other_categories: BTreeMap<String, usize>,
    /// Annotations of classes that `classes` does not select, by class name.
    pub other_classes: BTreeMap<String, usize>,
    pub findings: Vec<Finding>,
}

impl SplitReport {
    pub(crate) fn new(split: &str, format: &str, source: String) -> Self {
        Self {
            split: split.to_owned(),
            format: format.to_owned(),
            source,
            images: 0,
            images_listed: 0,
            images_dropped: 0,
            backgrounds: 0,
            boxes: 0,
            truths: 0,
            crowd: 0,
            difficult: 0,
            boxes_dropped: 0,
            malformed: 0,
            warnings: 0,
            classes: Vec::new(),
            other_categories: BTreeMap::new(),
            other_classes: BTreeMap::new(),
            findings: Vec::new(),
        }
    }

    /// Counts what `findings` hold.
    pub(crate) fn count_findings(&mut self) {
        let count = |test: &dyn Fn(&Finding) -> bool| {
            self.findings.iter().filter(|finding| test(finding)).count()
        };
        let malformed = count(&|finding| finding.severity == Severity::Malformed);
        let warnings = self.findings.len() - malformed;
        let boxes_dropped = count(&|finding| finding.action == Action::BoxDropped);
        let images_dropped = count(&|finding| finding.action == Action::ImageDropped);
        self.malformed = malformed;
        self.warnings = warnings;
        self.boxes_dropped = boxes_dropped;
        self.images_dropped = images_dropped;
    }

    /// The split in a few lines: counts, then one line for each kind of finding with its first case.
    pub fn lines(&self) -> Vec<String> {
        let mut first = format!(
            "{}: {} images ({} without boxes), {} boxes, {} classes, {} {}",
            self.split,
            self.images,
            self.backgrounds,
            self.boxes,
            self.classes.len(),
            self.format,
            self.source
        );
        let crowd = self.crowd.saturating_sub(self.difficult);
        if crowd > 0 {
            let _ = write!(first, "; {crowd} crowd regions only in evaluation");
        }
        if self.difficult > 0 {
            let _ = write!(
                first,
                "; {} difficult objects are trained on and neutral in evaluation",
                self.difficult
            );
        }
        let mut lines = vec![first];
        let left_out = |what: &str, counts: &BTreeMap<String, usize>| {
            let total: usize = counts.values().sum();
            let names: Vec<&str> = counts.keys().take(5).map(String::as_str).collect();
            let more = if counts.len() > names.len() {
                ", …"
            } else {
                ""
            };
            format!(
                "{}: {total} annotations of {} {what} are left out ({}{more})",
                self.split,
                counts.len(),
                names.join(", ")
            )
        };
        if !self.other_categories.is_empty() {
            lines.push(left_out("categories not in names", &self.other_categories));
        }
        if !self.other_classes.is_empty() {
            lines.push(left_out("classes not in --classes", &self.other_classes));
        }
        let mut groups: BTreeMap<FindingKind, Vec<&Finding>> = BTreeMap::new();
        for finding in &self.findings {
            groups.entry(finding.kind).or_default().push(finding);
        }
        for (kind, findings) in groups {
            let (example, action) = (findings[0].text(), findings[0].action);
            lines.push(if let [only] = findings[..] {
                match only.action {
                    Action::Told => format!("{}: {example}", self.split),
                    action => format!("{}: {example} ({})", self.split, action.text()),
                }
            } else {
                format!(
                    "{}: {} {} ({}), the first: {example}",
                    self.split,
                    findings.len(),
                    kind.noun(),
                    action.text()
                )
            });
        }
        lines
    }

    /// The malformed findings as text: the first [`SHOWN`] and the count.
    pub fn malformed_text(&self) -> String {
        let malformed: Vec<&Finding> = self
            .findings
            .iter()
            .filter(|finding| finding.severity == Severity::Malformed)
            .collect();
        let mut text = String::new();
        for finding in malformed.iter().take(SHOWN) {
            let _ = write!(text, "\n  {}", finding.text());
        }
        if malformed.len() > SHOWN {
            let _ = write!(text, "\n  … and {} more", malformed.len() - SHOWN);
        }
        text
    }
}

/// The content of `data-report.json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct DataReport {
    pub dataset: String,
    pub splits: Vec<SplitReport>,
}

impl DataReport {
    pub fn new(dataset: impl Into<String>) -> Self {
        Self {
            dataset: dataset.into(),
            splits: Vec::new(),
        }
    }

    pub fn push(&mut self, split: SplitReport) {
        self.splits.push(split);
    }

    /// Indented JSON with a line feed at its end.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self)
            .expect("strings, numbers and string keys always serialise");
        text.push('\n');
        text
    }
}
