//! Pascal VOC annotations: one XML file an image, with the box of each object in pixels.
//!
//! Conventions, those of the VOC development kit: coordinates count from 1 and the last pixel belongs to the
//! box, so `xmin` 1 and `xmax` 3 are three pixels wide. Many tools write coordinates from 0 instead; a split
//! in which any `xmin` or `ymin` is below 1 is read as that, see [`Object::to_pixels`]. Only `object` elements
//! count, not their `part`s. Entities are not expanded, a file with a document type is refused.

use std::path::{Path, PathBuf};

use roxmltree::{Document, Node, ParsingOptions};

/// Largest annotation file that is read.
pub const MAX_FILE_BYTES: u64 = 64 << 20;
/// Most nodes of an annotation file.
const MAX_NODES: u32 = 4_000_000;

/// Folders of images and of annotations beside each other, lower case.
const IMAGE_FOLDERS: [&str; 4] = ["jpegimages", "images", "imgs", "img"];
const ANNOTATION_FOLDERS: [&str; 5] = [
    "Annotations",
    "annotations",
    "Annotation",
    "annotation",
    "xmls",
];

/// What an annotation file says.
#[derive(Debug, Default, PartialEq)]
pub struct Annotation {
    /// Width and height of the annotated image, where they are given and not zero.
    pub size: Option<(u64, u64)>,
    pub filename: Option<String>,
    pub objects: Vec<Object>,
    pub bad: Vec<BadObject>,
}

/// A box as annotated.
#[derive(Debug, Clone, PartialEq)]
pub struct Object {
    /// Line of the object in the file, from 1.
    pub line: usize,
    pub name: String,
    pub difficult: bool,
    /// `[xmin, ymin, xmax, ymax]`.
    pub corners: [f64; 4],
}

/// An object that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadObject {
    pub line: usize,
    pub value: String,
    pub reason: String,
}

impl Object {
    /// `[x, y, width, height]` in pixels, from 0. `zero_based`: the numbers are corners from 0, not pixels
    /// from 1.
    pub fn to_pixels(&self, zero_based: bool) -> [f64; 4] {
        let [xmin, ymin, xmax, ymax] = self.corners;
        let first = if zero_based { 0.0 } else { 1.0 };
        [
            xmin - first,
            ymin - first,
            xmax - xmin + first,
            ymax - ymin + first,
        ]
    }

    /// Whether its numbers cannot count from 1.
    pub fn is_from_zero(&self) -> bool {
        let [xmin, ymin, ..] = self.corners;
        (0.0..1.0).contains(&xmin) || (0.0..1.0).contains(&ymin)
    }

    /// The box as text, for messages.
    pub fn text(&self) -> String {
        let [xmin, ymin, xmax, ymax] = self.corners;
        format!("{} {xmin} {ymin} {xmax} {ymax}", self.name)
    }
}

/// Reads an annotation file.
///
/// # Errors
/// Why it is no annotation of VOC, in one line.
pub fn parse(bytes: &[u8]) -> Result<Annotation, String> {
    let text = text_of(bytes)?;
    let options = ParsingOptions {
        allow_dtd: false,
        nodes_limit: MAX_NODES,
        ..ParsingOptions::default()
    };
    let document = Document::parse_with_options(&text, options).map_err(|error| match error {
        roxmltree::Error::DtdDetected => {
            "it has a document type (<!DOCTYPE …>), which may hide anything; remove it".to_owned()
        }
        other => format!("not valid XML: {other}"),
    })?;
    let root = document.root_element();
    if root.tag_name().name() != "annotation" {
        return Err(format!(
            "its root is <{}>, not <annotation>: it is XML of another format; export it as Pascal VOC",
            root.tag_name().name()
        ));
    }
    let side = |name| {
        let text = text_in(child(root, "size")?, name)?;
        let side: f64 = text.parse().ok()?;
        (side >= 1.0 && side.fract() == 0.0 && side < 1e9).then_some(side as u64)
    };
    let mut annotation = Annotation {
        size: side("width").zip(side("height")),
        filename: text_in(root, "filename").map(str::to_owned),
        ..Annotation::default()
    };
    let (mut line, mut counted) = (1, 0);
    for object in root.children().filter(|node| node.has_tag_name("object")) {
        let start = object.range().start;
        line += text.as_bytes()[counted..start]
            .iter()
            .filter(|&&byte| byte == b'\n')
            .count();
        counted = start;
        match read_object(object, line) {
            Ok(object) => annotation.objects.push(object),
            Err((value, reason)) => annotation.bad.push(BadObject {
                line,
                value,
                reason,
            }),
        }
    }
    Ok(annotation)
}

/// UTF-8 with or without a byte-order mark, UTF-16 with one, or Latin-1 where the file declares it.
fn text_of(bytes: &[u8]) -> Result<String, String> {
    let wide = |bytes: &[u8], to_u16: fn([u8; 2]) -> u16| {
        let units: Vec<u16> = bytes
            .chunks_exact(2)
            .map(|pair| to_u16([pair[0], pair[1]]))
            .collect();
        String::from_utf16(&units).map_err(|_| "it is not valid UTF-16".to_owned())
    };
    match bytes {
        [0xff, 0xfe, rest @ ..] => return wide(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => return wide(rest, u16::from_be_bytes),
        _ => {}
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Ok(text.to_owned());
    }
    let declared = String::from_utf8_lossy(&bytes[..bytes.len().min(120)]).to_lowercase();
    if ["iso-8859-1", "latin-1", "latin1", "windows-1252"]
        .iter()
        .any(|name| declared.contains(name))
    {
        return Ok(bytes.iter().map(|&byte| char::from(byte)).collect());
    }
    Err("it is not valid UTF-8; save it as UTF-8".to_owned())
}

fn child<'a, 'i>(node: Node<'a, 'i>, name: &str) -> Option<Node<'a, 'i>> {
    node.children().find(|node| node.has_tag_name(name))
}

/// The trimmed text of a child element, if it has any.
fn text_in<'a>(node: Node<'a, '_>, name: &str) -> Option<&'a str> {
    let text = child(node, name)?.text()?.trim();
    (!text.is_empty()).then_some(text)
}

/// The error is value and reason.
fn read_object(object: Node, line: usize) -> Result<Object, (String, String)> {
    let name = text_in(object, "name").ok_or_else(|| {
        (
            String::new(),
            "the object has no name, so no class".to_owned(),
        )
    })?;
    let corners = match child(object, "bndbox") {
        Some(bndbox) => {
            let corner = |field: &str| {
                let text = text_in(bndbox, field)
                    .ok_or_else(|| (name.to_owned(), format!("its bndbox has no {field}")))?;
                number(text).ok_or_else(|| {
                    (
                        format!("{name}, {field}: {text}"),
                        "a corner is a finite number".to_owned(),
                    )
                })
            };
            [
                corner("xmin")?,
                corner("ymin")?,
                corner("xmax")?,
                corner("ymax")?,
            ]
        }
        None => extent(object).ok_or_else(|| {
            let reason = if child(object, "robndbox").is_some() {
                "it has a rotated box (robndbox); only upright boxes (bndbox) are trained on"
            } else {
                "it has no bndbox"
            };
            (name.to_owned(), reason.to_owned())
        })?,
    };
    let [xmin, ymin, xmax, ymax] = corners;
    if xmax < xmin || ymax < ymin {
        return Err((
            format!("{name} {xmin} {ymin} {xmax} {ymax}"),
            "xmax and ymax must not be below xmin and ymin".to_owned(),
        ));
    }
    let difficult = text_in(object, "difficult")
        .is_some_and(|text| text == "1" || text.eq_ignore_ascii_case("true"));
    Ok(Object {
        line,
        name: name.to_owned(),
        difficult,
        corners,
    })
}

fn number(text: &str) -> Option<f64> {
    let value: f64 = text.parse().ok()?;
    value.is_finite().then_some(value)
}

/// Corners of the extent of `polygon`: `x1 y1 x2 y2 …` or points `pt` of `x` and `y`.
fn extent(object: Node) -> Option<[f64; 4]> {
    let polygon = child(object, "polygon")?;
    let values = |axis: char| {
        polygon
            .descendants()
            .filter(|node| {
                let name = node.tag_name().name();
                let rest = name.strip_prefix(axis);
                rest.is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit()))
            })
            .map(|node| number(node.text()?.trim()))
            .collect::<Option<Vec<f64>>>()
    };
    let (xs, ys) = (values('x')?, values('y')?);
    if xs.len() < 2 || xs.len() != ys.len() {
        return None;
    }
    let low = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = |values: &[f64]| values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Some([low(&xs), low(&ys), high(&xs), high(&ys)])
}

/// The data set's folder that a list of image names belongs to, `ImageSets/Main/train.txt`: where
/// `ImageSets` lies, if `Annotations` lies there too.
pub fn folder_of_list(list: &Path) -> Option<PathBuf> {
    let sets = list.parent()?.parent()?;
    let name = sets.file_name()?.to_string_lossy();
    if !name.eq_ignore_ascii_case("ImageSets") {
        return None;
    }
    let folder = sets.parent()?;
    annotation_folder(folder).map(|_| folder.to_path_buf())
}

/// The folder of annotations below a data set's folder.
pub fn annotation_folder(folder: &Path) -> Option<PathBuf> {
    ANNOTATION_FOLDERS
        .iter()
        .map(|name| folder.join(name))
        .find(|path| path.is_dir())
}

/// Where an image's annotation may lie: in the tree beside the image's (`JPEGImages` or `images` replaced by
/// `Annotations`), there without the folders below it, and beside the image.
pub fn annotation_paths(image: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::with_capacity(3);
    if let Some((above, below)) = split_at_images(image)
        && let Some(folder) = annotation_folder(&above)
    {
        let parallel = folder.join(&below).with_extension("xml");
        let flat = folder.join(image.file_name().unwrap_or_default());
        let flat = flat.with_extension("xml");
        if flat != parallel {
            paths.push(parallel);
            paths.push(flat);
        } else {
            paths.push(parallel);
        }
    }
    paths.push(image.with_extension("xml"));
    paths
}

/// The folder that holds the last image folder of a path, and the path below that.
fn split_at_images(image: &Path) -> Option<(PathBuf, PathBuf)> {
    let parts: Vec<_> = image.iter().collect();
    let folders = &parts[..parts.len().saturating_sub(1)];
    let last = folders.iter().rposition(|part| {
        let name = part.to_string_lossy().to_lowercase();
        IMAGE_FOLDERS.contains(&name.as_str())
    })?;
    let above: PathBuf = parts[..last].iter().collect();
    Some((above, parts[last + 1..].iter().collect()))
}

#[cfg(test)]
#[path = "voc_tests.rs"]
mod tests;
