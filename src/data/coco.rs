//! COCO JSON as it is found in the wild, read leniently: every field keeps what stands there, and what cannot
//! be used is judged later, with its annotation's id, instead of failing the whole file.

mod classes;
mod fields;
mod images;
mod index;
mod rle;
#[cfg(test)]
mod tests;

use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::DataError;
use fields::{BoxField, Extent, Scalar};
pub(crate) use index::index;

#[derive(Debug, Default, Deserialize)]
struct CocoFile {
    images: Option<Vec<CocoImage>>,
    annotations: Option<Vec<CocoAnnotation>>,
    categories: Option<Vec<CocoCategory>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CocoImage {
    id: Scalar,
    file_name: Scalar,
    width: Scalar,
    height: Scalar,
    coco_url: Scalar,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CocoAnnotation {
    id: Scalar,
    image_id: Scalar,
    category_id: Scalar,
    bbox: BoxField,
    area: Scalar,
    iscrowd: Scalar,
    segmentation: Extent,
    /// Only panoptic files have it.
    segments_info: Scalar,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CocoCategory {
    id: Scalar,
    name: Scalar,
}

/// A file of categories alone, the rest skipped.
#[derive(Debug, Default, Deserialize)]
struct CategoriesOnly {
    categories: Option<Vec<CocoCategory>>,
}

/// Reads a COCO file.
///
/// # Errors
/// The file cannot be read, is no JSON (with line and column), or is no set of detection annotations.
fn read(path: &Path) -> Result<CocoFile, DataError> {
    let file: CocoFile = read_json(path)?;
    let not_coco = |reason: &str| DataError::NotCoco {
        path: path.to_path_buf(),
        reason: reason.to_owned(),
    };
    if file.images.is_none() && file.annotations.is_none() && file.categories.is_none() {
        return Err(not_coco(
            "it has none of `images`, `annotations`, `categories`",
        ));
    }
    if file.images.is_none() {
        return Err(not_coco("it has no `images`"));
    }
    let panoptic = file
        .annotations
        .iter()
        .flatten()
        .any(|annotation| annotation.segments_info != Scalar::Missing);
    if panoptic {
        return Err(not_coco(
            "its annotations are panoptic segments; boxes are in the `instances` file",
        ));
    }
    Ok(file)
}

/// Whether a file is one of images and categories, without keeping what is in it.
///
/// # Errors
/// As [`read`], and a file without images or categories.
pub(crate) fn check_detection(path: &Path) -> Result<(), DataError> {
    #[derive(Default, Deserialize)]
    struct Shape {
        images: Option<Vec<IgnoredAny>>,
        categories: Option<Vec<IgnoredAny>>,
    }
    let shape: Shape = read_json(path)?;
    let reason = if shape.images.is_none_or(|images| images.is_empty()) {
        "it has no `images`"
    } else if shape.categories.is_none_or(|list| list.is_empty()) {
        "it has no `categories`"
    } else {
        return Ok(());
    };
    Err(DataError::NotCoco {
        path: path.to_path_buf(),
        reason: reason.to_owned(),
    })
}

/// The categories of a COCO file.
fn read_categories(path: &Path) -> Result<Vec<CocoCategory>, DataError> {
    let file: CategoriesOnly = read_json(path)?;
    Ok(file.categories.unwrap_or_default())
}

fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T, DataError> {
    let bytes = std::fs::read(path).map_err(|source| DataError::Io {
        path: path.to_path_buf(),
        source,
    })?;
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    if first == Some(&b'[') {
        return Err(DataError::NotCoco {
            path: path.to_path_buf(),
            reason: "it is a list, as results of detection are; expected an object with images, annotations and categories".to_owned(),
        });
    }
    serde_json::from_slice(bytes).map_err(|error| {
        let text = error.to_string();
        let place = format!(" at line {} column {}", error.line(), error.column());
        let mut reason = text.strip_suffix(&place).unwrap_or(&text).to_owned();
        let line = bytes
            .split(|b| *b == b'\n')
            .nth(error.line().saturating_sub(1));
        let before = line.and_then(|line| line.get(error.column().saturating_sub(8)..));
        let near = before
            .map(|rest| &rest[..rest.len().min(16)])
            .unwrap_or_default();
        let near = String::from_utf8_lossy(near);
        if near.contains("NaN") || near.contains("Infinity") {
            reason.push_str("; NaN and Infinity are not JSON");
        }
        DataError::Json {
            path: path.to_path_buf(),
            line: error.line(),
            column: error.column(),
            reason,
        }
    })
}
