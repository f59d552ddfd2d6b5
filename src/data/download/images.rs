//! The images of a COCO JSON that are not there yet, with the addresses that it names.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::archive::path::safe_path;
use super::client::{Accept, Job};
use super::error::DownloadError;
use super::part::Part;

/// Of a COCO JSON, what is needed to get its images. Entries that are not so are left to the reader of the format, which says what is
/// wrong with them.
#[derive(Deserialize)]
struct Coco {
    #[serde(default)]
    images: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct Image {
    file_name: String,
    coco_url: String,
    width: Option<u64>,
    height: Option<u64>,
}

/// Jobs for the images of `annotations` that are missing in `folder`. A file that is there was complete and decoded when it got its name.
///
/// # Errors
/// The file of annotations cannot be read. One that is no JSON has no images here: reading it as data says why.
pub(super) fn missing(annotations: &Path, folder: &Path) -> Result<Vec<Job>, DownloadError> {
    let text = fs::read(annotations)
        .map_err(|source| DownloadError::io(annotations, source, String::new))?;
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text);
    let Ok(coco) = serde_json::from_slice::<Coco>(text) else {
        return Ok(Vec::new());
    };
    let mut seen: HashSet<PathBuf> = HashSet::new();
    let mut jobs = Vec::new();
    for image in coco.images {
        let Ok(image) = serde_json::from_value::<Image>(image) else {
            continue;
        };
        let Ok(name) = safe_path(&image.file_name) else {
            continue;
        };
        let to = folder.join(name);
        let is_address =
            image.coco_url.starts_with("http://") || image.coco_url.starts_with("https://");
        if !is_address || to.exists() || !seen.insert(to.clone()) {
            continue;
        }
        jobs.push(Job {
            url: image.coco_url,
            part: Part::of(&to),
            accept: Accept::Image {
                to,
                size: image.width.zip(image.height),
            },
        });
    }
    Ok(jobs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_missing_images_inside_the_folder_with_an_address_are_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let json = folder.path().join("a.json");
        let images = folder.path().join("images");
        fs::create_dir(&images).unwrap();
        fs::write(images.join("there.jpg"), "x").unwrap();
        let image = |name: &str, url: &str| serde_json::json!({"file_name": name, "coco_url": url, "width": 3, "height": 2});
        let list = serde_json::json!({"images": [
            image("there.jpg", "http://a.org/there.jpg"),
            image("a.jpg", "http://a.org/a.jpg"),
            image("a.jpg", "http://a.org/again.jpg"),
            image("sub/b.jpg", "https://a.org/b.jpg"),
            image("../../out.jpg", "http://a.org/out.jpg"),
            image("/etc/out.jpg", "http://a.org/out.jpg"),
            image("file.jpg", "file:///etc/passwd"),
            {"file_name": 7, "coco_url": "http://a.org/c.jpg"},
            {"file_name": "no-url.jpg"},
        ]});
        fs::write(&json, list.to_string()).unwrap();
        let jobs = missing(&json, &images).unwrap();
        let urls: Vec<&str> = jobs.iter().map(|job| job.url.as_str()).collect();
        assert_eq!(urls, ["http://a.org/a.jpg", "https://a.org/b.jpg"]);
        fs::write(&json, "{").unwrap();
        assert!(missing(&json, &images).unwrap().is_empty());
    }
}
