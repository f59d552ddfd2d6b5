//! Fixtures of the tests: real data beside the checkout, and small images.

use std::fs;
use std::path::{Path, PathBuf};

/// `path` below the folder of shared real data; prints why and gives `None` where it is missing.
pub fn shared(path: &str) -> Option<PathBuf> {
    let root = std::env::var_os("YOLO_TRAIN_SHARED").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared")),
        PathBuf::from,
    );
    let path = root.join(path);
    if !path.exists() {
        println!("skipped: {} is not there", path.display());
        return None;
    }
    Some(path)
}

/// A drawn JPEG of `width` x `height` stored pixels; an `orientation` other than 1 goes into an EXIF segment.
pub fn write_jpeg(path: &Path, width: u32, height: u32, orientation: u8) {
    let image = image::RgbImage::from_fn(width, height, |x, y| {
        image::Rgb([(x * 7) as u8, (y * 5) as u8, ((x + y) * 3) as u8])
    });
    let mut bytes = Vec::new();
    image::codecs::jpeg::JpegEncoder::new_with_quality(&mut bytes, 90)
        .encode_image(&image)
        .unwrap();
    if orientation != 1 {
        let mut exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0".to_vec();
        exif.extend([orientation, 0, 0, 0, 0, 0, 0]);
        let length = u16::try_from(exif.len() + 2).unwrap().to_be_bytes();
        let segment = [&[0xff, 0xe1], &length[..], &exif].concat();
        bytes.splice(2..2, segment);
    }
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// Writes a text file and the folders above it.
pub fn write(path: &Path, text: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}
