use std::fs;
use std::path::PathBuf;

use image::{DynamicImage, ImageFormat};
use proptest::prelude::*;

use super::orientation::turn_upright;
use super::sniff::PNG_SIGNATURE;
use super::*;
use crate::data::test_support::{shared, write_jpeg};

fn nasty(file: &str) -> Option<PathBuf> {
    Some(shared("data/nasty/images")?.join(file))
}

/// A folder with `image` saved as `name`.
fn saved(name: &str, image: DynamicImage) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    image.save(&path).unwrap();
    (folder, path)
}

/// 3 x 2 pixels, all different.
fn small() -> image::RgbImage {
    image::RgbImage::from_fn(3, 2, |x, y| image::Rgb([x as u8 * 40, y as u8 * 90, 200]))
}

#[test]
fn every_png_sample_type_becomes_rgb_with_alpha_dropped_and_the_high_byte_kept() {
    let rgb16 = |v: u16| image::Rgb([v, v ^ 0x0f0f, 0xffff - v]);
    let cases: Vec<(&str, DynamicImage, [u8; 3])> = vec![
        (
            "rgb8",
            image::RgbImage::from_pixel(2, 2, image::Rgb([1, 2, 3])).into(),
            [1, 2, 3],
        ),
        (
            "rgba8",
            image::RgbaImage::from_pixel(2, 2, image::Rgba([1, 2, 3, 0])).into(),
            [1, 2, 3],
        ),
        (
            "l8",
            image::GrayImage::from_pixel(2, 2, image::Luma([7])).into(),
            [7; 3],
        ),
        (
            "la8",
            image::GrayAlphaImage::from_pixel(2, 2, image::LumaA([7, 9])).into(),
            [7; 3],
        ),
        (
            "l16",
            DynamicImage::ImageLuma16(image::ImageBuffer::from_pixel(2, 2, image::Luma([0x12ff]))),
            [0x12; 3],
        ),
        (
            "rgb16",
            DynamicImage::ImageRgb16(image::ImageBuffer::from_pixel(2, 2, rgb16(0x34f0))),
            [0x34, 0x3b, 0xcb],
        ),
        (
            "rgba16",
            DynamicImage::ImageRgba16(image::ImageBuffer::from_pixel(
                2,
                2,
                image::Rgba([0x0100, 0x02ff, 0xff00, 0]),
            )),
            [1, 2, 255],
        ),
    ];
    for (name, image, expected) in cases {
        let (_folder, path) = saved("a.png", image);
        let rgb = read_rgb(&path).unwrap();
        assert_eq!((rgb.width, rgb.height), (2, 2), "{name}");
        assert_eq!(rgb.pixels, expected.repeat(4), "{name}");
    }
}

#[test]
fn the_eight_orientations_turn_pixels_as_exif_defines_them() {
    // Stored rows: a b c / d e f.
    let stored: Vec<u8> = (0..6).flat_map(|v| [v, v, v]).collect();
    let turned = |orientation| {
        let rgb = turn_upright(3, 2, stored.clone(), orientation);
        let values: Vec<u8> = rgb.pixels.iter().step_by(3).copied().collect();
        (rgb.width, rgb.height, values)
    };
    assert_eq!(turned(1), (3, 2, vec![0, 1, 2, 3, 4, 5]));
    assert_eq!(turned(2), (3, 2, vec![2, 1, 0, 5, 4, 3]));
    assert_eq!(turned(3), (3, 2, vec![5, 4, 3, 2, 1, 0]));
    assert_eq!(turned(4), (3, 2, vec![3, 4, 5, 0, 1, 2]));
    assert_eq!(turned(5), (2, 3, vec![0, 3, 1, 4, 2, 5]));
    assert_eq!(turned(6), (2, 3, vec![3, 0, 4, 1, 5, 2]));
    assert_eq!(turned(7), (2, 3, vec![5, 2, 4, 1, 3, 0]));
    assert_eq!(turned(8), (2, 3, vec![2, 5, 1, 4, 0, 3]));
}

#[test]
fn our_orientations_equal_those_of_the_image_crate() {
    let image = small();
    for orientation in 1..=8 {
        let mut expected = DynamicImage::from(image.clone());
        expected.apply_orientation(image::metadata::Orientation::from_exif(orientation).unwrap());
        let ours = turn_upright(3, 2, image.clone().into_raw(), orientation);
        assert_eq!(ours.width as u32, expected.width());
        assert_eq!(
            ours.pixels,
            expected.into_rgb8().into_raw(),
            "{orientation}"
        );
    }
}

#[test]
fn an_exif_rotation_exchanges_the_sides_in_header_and_pixels() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jpg");
    write_jpeg(&path, 32, 16, 6);
    assert_eq!(
        probe(&path).unwrap(),
        Header {
            stored: (32, 16),
            orientation: 6
        }
    );
    assert_eq!(read_header(&path).unwrap(), (16, 32));
    let rgb = read_rgb(&path).unwrap();
    assert_eq!(
        (rgb.width, rgb.height, rgb.pixels.len()),
        (16, 32, 16 * 32 * 3)
    );
}

#[test]
fn the_content_tells_the_format_not_the_name() {
    let (_folder, path) = saved("a.png", small().into());
    let renamed = path.with_file_name("b.jpg");
    fs::copy(&path, &renamed).unwrap();
    assert_eq!(read_rgb(&renamed).unwrap(), read_rgb(&path).unwrap());
}

#[test]
fn files_that_are_no_usable_image_say_what_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let message = |bytes: &[u8]| {
        let path = folder.path().join("x.jpg");
        fs::write(&path, bytes).unwrap();
        let header = read_header(&path).unwrap_err().reason();
        let whole = read_rgb(&path).unwrap_err().reason();
        let kind = |text: &str| text.split(':').next().unwrap().to_owned();
        assert_eq!(kind(&whole), kind(&header));
        header
    };
    assert_eq!(message(b""), "the file is empty");
    assert_eq!(
        message(b"<html>"),
        "not an image file (it begins with 3c 68 74 6d 6c 3e)"
    );
    let refused = "files are not read; convert it to JPEG or PNG";
    for (start, name) in [
        (&b"\0\0\0\x1cftypavif"[..], "AVIF"),
        (b"\0\0\0\x1cftypheic", "HEIF"),
        (b"\0\0\0\x0cjP  \r\n", "JPEG 2000"),
        (b"\xff\x0a\xff", "JPEG XL"),
        (b"8BPS\0\x01", "PSD"),
        (b"II*\0\x10\0\0\0CR\x02\0", "Canon raw"),
    ] {
        assert_eq!(message(start), format!("{name} {refused}"));
    }
    assert!(message(b"RIFF\x04\0\0\0WEBP").starts_with("truncated WebP"));
    assert!(message(b"BM123456").starts_with("truncated BMP"));
    assert!(message(b"GIF89a").starts_with("truncated GIF"));
    assert!(message(b"II*\0").starts_with("truncated TIFF"));
    assert!(message(b"P6 4 4 255\n12").starts_with("truncated PNM"));
    assert!(message(b"\xff\xd8").starts_with("truncated JPEG"));
    assert!(message(b"\xff\xd8\xff\xd9").contains("JPEG"));
    assert!(message(&PNG_SIGNATURE).starts_with("truncated PNG"));
    let missing = read_header(&folder.path().join("none.jpg")).unwrap_err();
    assert!(
        missing
            .to_string()
            .contains("none.jpg: cannot be read: No such file")
    );
    assert!(matches!(
        read_rgb(folder.path()),
        Err(DecodeError::Io { .. })
    ));
}

#[test]
fn a_header_that_promises_too_many_pixels_is_refused_before_they_are_taken() {
    let (_folder, path) = saved("a.png", small().into());
    let mut bytes = fs::read(&path).unwrap();
    bytes[16..20].copy_from_slice(&60_000u32.to_be_bytes());
    bytes[20..24].copy_from_slice(&60_000u32.to_be_bytes());
    let crc = crc32(&bytes[12..29]);
    bytes[29..33].copy_from_slice(&crc.to_be_bytes());
    fs::write(&path, bytes).unwrap();
    for error in [
        read_header(&path).unwrap_err(),
        read_rgb(&path).unwrap_err(),
    ] {
        assert_eq!(
            error.reason(),
            "60000 x 60000 pixels is more than the 16384 a side that is decoded"
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jpg");
    write_jpeg(&path, 16, 16, 1);
    let mut bytes = fs::read(&path).unwrap();
    let sof = bytes.windows(2).position(|w| w == [0xff, 0xc0]).unwrap();
    bytes[sof + 5..sof + 9].copy_from_slice(&[0xff, 0xff, 0xff, 0xff]);
    fs::write(&path, bytes).unwrap();
    for error in [
        read_header(&path).unwrap_err(),
        read_rgb(&path).unwrap_err(),
    ] {
        assert!(matches!(error, DecodeError::TooLarge { .. }), "{error}");
    }
}

/// CRC-32 of PNG, for a header changed on purpose.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    })
}

#[test]
fn every_file_cut_short_is_an_error_already_in_its_header_check() {
    let folder = tempfile::tempdir().unwrap();
    let jpeg = folder.path().join("a.jpg");
    write_jpeg(&jpeg, 40, 24, 6);
    let (_png_folder, png) = saved("a.png", small().into());
    for path in [jpeg, png] {
        let bytes = fs::read(&path).unwrap();
        for length in 0..bytes.len() {
            fs::write(&path, &bytes[..length]).unwrap();
            assert!(read_header(&path).is_err(), "{length} of {}", bytes.len());
            assert!(read_rgb(&path).is_err(), "{length} of {}", bytes.len());
        }
        // Anything after the end is fine.
        let padded = [&bytes[..], &[0; 100]].concat();
        fs::write(&path, padded).unwrap();
        assert!(read_header(&path).is_ok());
        assert!(read_rgb(&path).is_ok());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn files_with_changed_bytes_decode_or_are_errors(
        which in 0usize..2, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        if which == 0 {
            write_jpeg(&path, 40, 24, 6);
        } else {
            DynamicImage::from(small()).save_with_format(&path, ImageFormat::Png).unwrap();
        }
        let mut bytes = fs::read(&path).unwrap();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        fs::write(&path, &bytes).unwrap();
        if let Ok(rgb) = read_rgb(&path) {
            let (width, height) = read_header(&path).unwrap();
            prop_assert_eq!((rgb.width, rgb.height), (width as usize, height as usize));
            prop_assert_eq!(rgb.pixels.len(), rgb.width * rgb.height * 3);
        }
    }
}

/// Mean absolute difference of samples.
pub(super) fn difference(a: &Rgb, b: &Rgb) -> f64 {
    assert_eq!((a.width, a.height), (b.width, b.height));
    let total: u64 = a
        .pixels
        .iter()
        .zip(&b.pixels)
        .map(|(a, b)| u64::from(a.abs_diff(*b)))
        .sum();
    total as f64 / a.pixels.len() as f64
}

#[test]
fn hopper_looks_the_same_in_all_orientations_shared() {
    let Some(upright) = nasty("hopper.jpg") else {
        return;
    };
    let upright = read_rgb(&upright).unwrap();
    for orientation in 2..=8 {
        let path = nasty(&format!("hopper_orientation_{orientation}.jpg")).unwrap();
        assert_eq!(probe(&path).unwrap().orientation, orientation);
        let turned = read_rgb(&path).unwrap();
        // The copies are compressed anew; a wrong turn differs by tens.
        let wrong = turn_upright(turned.width, turned.height, turned.pixels.clone(), 2);
        assert!(difference(&upright, &turned) < 8.0, "{orientation}");
        assert!(difference(&upright, &wrong) > 25.0, "{orientation}");
    }
}

#[test]
fn cmyk_and_grey_have_the_colours_that_other_readers_see_shared() {
    let Some(cmyk) = nasty("pil_sample_cmyk.jpg") else {
        return;
    };
    // Pillow's own test of this file: red in the first corner, black in the last.
    let rgb = read_rgb(&cmyk).unwrap();
    let first = &rgb.pixels[..3];
    let last = &rgb.pixels[rgb.pixels.len() - 3..];
    assert!(
        first[0] > 200 && first[1] < 60 && first[2] < 60,
        "{first:?}"
    );
    assert!(last.iter().all(|&v| v < 40), "{last:?}");
    let grey = read_rgb(&nasty("hopper_gray.jpg").unwrap()).unwrap();
    assert!(grey.pixels.chunks(3).all(|p| p[0] == p[1] && p[1] == p[2]));
    let png = read_rgb(&nasty("hopper.png").unwrap()).unwrap();
    let jpeg = read_rgb(&nasty("hopper.jpg").unwrap()).unwrap();
    assert!(difference(&png, &jpeg) < 4.0);
}
