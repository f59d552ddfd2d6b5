//! Damaged image files take no more memory than what their headers promise, and headers are limited.

#![cfg(target_os = "linux")]

use image::ImageFormat;
use std::fs;
use std::io::Cursor;
use yolo_train::data::{read_header, read_rgb};

/// The most address space that this process has had, in bytes: memory counts when it is asked for, not when it
/// is written to.
fn most_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmPeak:")).unwrap();
    let kib = line.split_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() << 10
}

/// A fixed sequence of numbers (xorshift64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

fn written(format: ImageFormat) -> Vec<u8> {
    let image = image::RgbImage::from_fn(24, 18, |x, y| {
        image::Rgb([(x * 7) as u8, (y * 9) as u8, (x * y) as u8])
    });
    let mut bytes = Cursor::new(Vec::new());
    image.write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

fn tiff_file() -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    let mut encoder = tiff::encoder::TiffEncoder::new(&mut bytes).unwrap();
    encoder
        .write_image::<tiff::encoder::colortype::RGB8>(24, 18, &[77; 24 * 18 * 3])
        .unwrap();
    bytes.into_inner()
}

#[test]
fn damaged_files_take_no_more_memory_than_their_headers_promise() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let formats = [
        ImageFormat::Jpeg,
        ImageFormat::Png,
        ImageFormat::WebP,
        ImageFormat::Bmp,
        ImageFormat::Gif,
        ImageFormat::Qoi,
        ImageFormat::Pnm,
    ];
    let mut files: Vec<Vec<u8>> = formats.into_iter().map(written).collect();
    files.push(tiff_file());
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let before = most_memory();
    let mut largest = 0;
    for round in 0..6000 {
        let mut bytes = files[round % files.len()].clone();
        // Most of what goes wrong is in the first bytes: sizes, types, lengths.
        for _ in 0..=numbers.below(3) {
            let end = if numbers.below(2) == 0 {
                bytes.len()
            } else {
                bytes.len().min(64)
            };
            let at = numbers.below(end);
            bytes[at] ^= 1 << numbers.below(8);
        }
        if numbers.below(4) == 0 {
            bytes.truncate(numbers.below(bytes.len()) + 1);
        }
        fs::write(&path, &bytes).unwrap();
        if let Ok((width, height)) = read_header(&path) {
            largest = largest.max(u64::from(width) * u64::from(height));
        }
        let _ = read_rgb(&path);
    }
    let taken = most_memory() - before;
    // A picture of four 16-bit channels, its RGB, a turned copy and what a decoder keeps beside them.
    let allowed = 24 * largest + (128 << 20);
    assert!(
        taken <= allowed,
        "{taken} bytes taken; the largest header promised {largest} pixels"
    );
}
