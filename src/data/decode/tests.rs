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
fn difference(a: &Rgb, b: &Rgb) -> f64 {
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

/// Every format that is written here, as `small` or a larger picture.
fn written(format: ImageFormat, width: u32, height: u32) -> Vec<u8> {
    let image = image::RgbImage::from_fn(width, height, |x, y| {
        image::Rgb([(x * 7) as u8, (y * 5) as u8, ((x * y) % 256) as u8])
    });
    let mut bytes = std::io::Cursor::new(Vec::new());
    DynamicImage::from(image)
        .write_to(&mut bytes, format)
        .unwrap();
    bytes.into_inner()
}

const LOSSLESS: [ImageFormat; 5] = [
    ImageFormat::Png,
    ImageFormat::WebP,
    ImageFormat::Bmp,
    ImageFormat::Qoi,
    ImageFormat::Pnm,
];

#[test]
fn formats_without_loss_give_the_pixels_that_were_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let mut expected = None;
    for format in LOSSLESS {
        fs::write(&path, written(format, 37, 23)).unwrap();
        assert_eq!(read_header(&path).unwrap(), (37, 23), "{format:?}");
        let rgb = read_rgb(&path).unwrap();
        let first = expected.get_or_insert(rgb.clone());
        assert_eq!(rgb, *first, "{format:?}");
    }
    fs::write(&path, tiff_file(37, 23)).unwrap();
    assert_eq!(read_rgb(&path).unwrap(), expected.unwrap());
    fs::write(&path, written(ImageFormat::Gif, 37, 23)).unwrap();
    assert_eq!(read_header(&path).unwrap(), (37, 23));
    assert_eq!(read_rgb(&path).unwrap().pixels.len(), 37 * 23 * 3);
}

/// The picture of [`written`] as TIFF, LZW, strips of five rows.
fn tiff_file(width: u32, height: u32) -> Vec<u8> {
    tiff_of::<::tiff::encoder::colortype::RGB8>(width, height, |image| {
        let data: Vec<u8> = (0..width * height)
            .map(|i| (i % width, i / width))
            .flat_map(|(x, y)| [(x * 7) as u8, (y * 5) as u8, ((x * y) % 256) as u8])
            .collect();
        image.rows_per_strip(5).unwrap();
        image.write_data(&data).unwrap();
    })
}

type TiffPicture<'a, C> = ::tiff::encoder::ImageEncoder<
    'a,
    &'a mut std::io::Cursor<Vec<u8>>,
    C,
    ::tiff::encoder::TiffKindStandard,
>;

fn tiff_of<C: ::tiff::encoder::colortype::ColorType>(
    width: u32,
    height: u32,
    fill: impl FnOnce(TiffPicture<C>),
) -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    {
        let mut encoder = ::tiff::encoder::TiffEncoder::new(&mut bytes)
            .unwrap()
            .with_compression(::tiff::encoder::Compression::Lzw);
        fill(encoder.new_image::<C>(width, height).unwrap());
    }
    bytes.into_inner()
}

/// A TIFF of two rows from its tags (number, type 3 or 4, values) and its pixels, little-endian or big-endian.
fn handmade_tiff(little: bool, tags: &[(u16, u16, &[u32])], pixels: &[u8]) -> Vec<u8> {
    let short = |v: u16| {
        if little {
            v.to_le_bytes()
        } else {
            v.to_be_bytes()
        }
    };
    let long = |v: u32| {
        if little {
            v.to_le_bytes()
        } else {
            v.to_be_bytes()
        }
    };
    let mut tags: Vec<(u16, u16, Vec<u32>)> =
        tags.iter().map(|(t, k, v)| (*t, *k, v.to_vec())).collect();
    if tags.iter().all(|(tag, ..)| *tag != 273) {
        tags.push((273, 4, vec![8]));
        tags.push((279, 4, vec![pixels.len() as u32]));
    }
    tags.sort();
    let directory = 8 + pixels.len();
    let mut extra_at = directory + 2 + 12 * tags.len() + 4;
    let mut bytes = if little {
        b"II".to_vec()
    } else {
        b"MM".to_vec()
    };
    bytes.extend(short(42));
    bytes.extend(long(directory as u32));
    bytes.extend(pixels);
    bytes.extend(short(tags.len() as u16));
    let mut extra = Vec::new();
    for (tag, kind, values) in tags {
        bytes.extend(short(tag));
        bytes.extend(short(kind));
        bytes.extend(long(values.len() as u32));
        let mut data: Vec<u8> = Vec::new();
        for value in values {
            if kind == 3 {
                data.extend(short(value as u16));
            } else {
                data.extend(long(value));
            }
        }
        if data.len() <= 4 {
            data.resize(4, 0);
            bytes.extend(data);
        } else {
            bytes.extend(long(extra_at as u32));
            extra_at += data.len();
            extra.extend(data);
        }
    }
    bytes.extend(long(0));
    bytes.extend(extra);
    bytes
}

#[test]
fn tiff_of_every_kind_is_read_and_what_is_not_says_its_kind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tif");
    let read = |bytes: Vec<u8>| {
        fs::write(&path, bytes).unwrap();
        let rgb = read_rgb(&path);
        if let Ok(rgb) = &rgb {
            assert_eq!(
                read_header(&path).unwrap(),
                (rgb.width as u32, rgb.height as u32)
            );
        }
        rgb
    };
    let base = |photometric: &'static [u32], bits: &'static [u32], samples: &'static [u32]| {
        vec![
            (256u16, 3u16, &[3u32][..]),
            (257, 3, &[2]),
            (258, 3, bits),
            (259, 3, &[1]),
            (262, 3, photometric),
            (277, 3, samples),
        ]
    };
    for little in [true, false] {
        // Two colours of 1 bit, rows of one byte; 16-bit values of the palette keep their high byte.
        let mut palette = base(&[3], &[1], &[1]);
        palette.push((320, 3, &[0x0aff, 0x0bff, 0x1400, 0x1500, 0x1e00, 0x1f00]));
        let rgb = read(handmade_tiff(little, &palette, &[0b0100_0000, 0b1010_0000])).unwrap();
        let (a, b) = ([10, 20, 30], [11, 21, 31]);
        assert_eq!(rgb.pixels, [a, b, a, b, a, b].concat());
        // Grey of 4 bits, white is 0, stored turned (orientation 3).
        let mut grey = base(&[0], &[4], &[1]);
        grey.push((274, 3, &[3]));
        let rgb = read(handmade_tiff(little, &grey, &[0x0f, 0xa0, 0xff, 0xf0])).unwrap();
        let reds: Vec<u8> = rgb.pixels.iter().step_by(3).copied().collect();
        assert_eq!(reds, [0, 0, 0, 85, 0, 255]);
        // CMYK, no ink and all black.
        let cmyk = base(&[5], &[8, 8, 8, 8], &[4]);
        let mut inks = [0u8; 24];
        inks[3] = 255;
        inks[4] = 255;
        let rgb = read(handmade_tiff(little, &cmyk, &inks)).unwrap();
        assert_eq!(rgb.pixels[..9], [0, 0, 0, 0, 255, 255, 255, 255, 255]);
        let deep = base(&[1], &[12], &[1]);
        let error = read(handmade_tiff(little, &deep, &[0; 10]))
            .unwrap_err()
            .reason();
        assert!(
            error.starts_with("a TIFF of a kind that is not read (12 bits a sample"),
            "{error}"
        );
        let mut raw = base(&[2], &[8, 8, 8], &[3]);
        raw.push((50706, 4, &[0x0000_0401]));
        let error = read(handmade_tiff(little, &raw, &[0; 18]))
            .unwrap_err()
            .reason();
        assert_eq!(error, "DNG files are not read; convert it to JPEG or PNG");
        let mut planes = base(&[2], &[8, 8, 8], &[3]);
        planes.push((284, 3, &[2]));
        planes.push((278, 3, &[2]));
        planes.push((273, 4, &[8, 14, 20]));
        planes.push((279, 4, &[6, 6, 6]));
        let rgb = read(handmade_tiff(
            little,
            &planes,
            &(0..18).collect::<Vec<u8>>(),
        ))
        .unwrap();
        assert_eq!(rgb.pixels[..9], [0, 6, 12, 1, 7, 13, 2, 8, 14]);
    }
    let rgb16 = tiff_of::<::tiff::encoder::colortype::RGB16>(3, 2, |image| {
        let data: Vec<u16> = (0..18).map(|v| v << 8 | 0xff).collect();
        image.write_data(&data).unwrap();
    });
    assert_eq!(read(rgb16).unwrap().pixels, (0..18).collect::<Vec<u8>>());
    let float = tiff_of::<::tiff::encoder::colortype::Gray32Float>(3, 2, |image| {
        image.write_data(&[0.0; 6]).unwrap();
    });
    let error = read(float).unwrap_err().reason();
    assert!(
        error.contains("of a kind that is not read (32 bits"),
        "{error}"
    );
}

#[test]
fn a_webp_with_exif_is_turned_upright() {
    // VP8X (EXIF flag), the lossless picture, EXIF with orientation 6.
    let simple = written(ImageFormat::WebP, 5, 3);
    let picture = &simple[12..];
    let mut body = b"WEBPVP8X\x0a\0\0\0\x08\0\0\0\x04\0\0\x02\0\0".to_vec();
    body.extend(picture);
    let exif = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0";
    body.extend(b"EXIF");
    body.extend((exif.len() as u32).to_le_bytes());
    body.extend(exif);
    let mut bytes = b"RIFF".to_vec();
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(&body);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.webp");
    fs::write(&path, &bytes).unwrap();
    assert_eq!(probe(&path).unwrap().orientation, 6);
    let turned = read_rgb(&path).unwrap();
    fs::write(&path, &simple).unwrap();
    let plain = read_rgb(&path).unwrap();
    assert_eq!(turned, turn_upright(5, 3, plain.pixels, 6));
    // A picture of another size than its canvas is refused before it is decoded.
    bytes[24] = 9;
    fs::write(&path, &bytes).unwrap();
    let error = read_header(&path).unwrap_err().reason();
    assert_eq!(
        error,
        "broken WebP: its picture is 5 x 3, its canvas 10 x 3"
    );
}

#[test]
fn the_first_frame_of_a_gif_lies_in_its_place_on_the_screen() {
    // Screen 4 x 3; a frame of 2 x 1 at (1, 1) of colours 1 and 2, cut off codes follow.
    let mut bytes = b"GIF89a\x04\0\x03\0\xf1\0\0".to_vec();
    bytes.extend([0, 0, 0, 200, 10, 20, 30, 210, 40, 9, 9, 9]);
    bytes.extend([0x2c, 1, 0, 1, 0, 2, 0, 1, 0, 0, 2]);
    // Codes of 3 bits: clear (4), 1, 2, end (5).
    let codes: u16 = 4 | 1 << 3 | 2 << 6 | 5 << 9;
    bytes.extend([2]);
    bytes.extend(codes.to_le_bytes());
    bytes.extend([0, 0x3b]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.gif");
    fs::write(&path, &bytes).unwrap();
    let rgb = read_rgb(&path).unwrap();
    assert_eq!((rgb.width, rgb.height), (4, 3));
    let at = |x: usize, y: usize| &rgb.pixels[(y * 4 + x) * 3..][..3];
    assert_eq!(at(1, 1), [200, 10, 20]);
    assert_eq!(at(2, 1), [30, 210, 40]);
    assert_eq!(at(3, 1), [0, 0, 0]);
}

#[test]
fn every_header_that_promises_too_much_is_refused_by_its_size() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let big = 60_000u32;
    let mut bmp = written(ImageFormat::Bmp, 4, 4);
    bmp[18..22].copy_from_slice(&big.to_le_bytes());
    let mut qoi = written(ImageFormat::Qoi, 4, 4);
    qoi[4..8].copy_from_slice(&big.to_be_bytes());
    let mut gif = written(ImageFormat::Gif, 4, 4);
    gif[6..8].copy_from_slice(&(big as u16).to_le_bytes());
    let tiff = handmade_tiff(
        true,
        &[
            (256, 4, &[big]),
            (257, 4, &[2]),
            (258, 3, &[8]),
            (259, 3, &[1]),
            (262, 3, &[1]),
            (277, 3, &[1]),
        ],
        &[0; 64],
    );
    let pnm = b"P5 60000 4 255\n".to_vec();
    let pnm = [pnm, vec![0; 240_000]].concat();
    for (name, bytes) in [
        ("BMP", bmp),
        ("QOI", qoi),
        ("GIF", gif),
        ("TIFF", tiff),
        ("PNM", pnm),
    ] {
        fs::write(&path, bytes).unwrap();
        for error in [
            read_header(&path).unwrap_err(),
            read_rgb(&path).unwrap_err(),
        ] {
            let reason = error.reason();
            assert!(
                reason.starts_with("60000 x ")
                    && reason.ends_with("pixels is more than the 16384 a side that is decoded"),
                "{name}: {reason}"
            );
        }
    }
    // A few bytes that promise more than the file holds.
    fs::write(&path, b"P6 16000 16000 255\nabc").unwrap();
    let reason = read_header(&path).unwrap_err().reason();
    assert_eq!(reason, "truncated PNM: it ends before its last pixel");
}

#[test]
fn whatever_is_cut_off_is_found_by_the_pixels_and_mostly_by_the_header() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let formats = LOSSLESS.iter().chain(&[ImageFormat::Gif]);
    let mut files: Vec<(String, Vec<u8>)> = formats
        .map(|format| (format!("{format:?}"), written(*format, 16, 9)))
        .collect();
    files.push(("Tiff".to_owned(), tiff_file(16, 9)));
    for (name, bytes) in files {
        let (mut by_header, mut by_pixels) = (0, 0);
        for length in 0..bytes.len() {
            fs::write(&path, &bytes[..length]).unwrap();
            by_header += usize::from(read_header(&path).is_err());
            by_pixels += usize::from(read_rgb(&path).is_err());
        }
        // The trailer of a GIF and the last padding of a row do not matter.
        assert!(
            by_pixels + 12 >= bytes.len(),
            "{name}: {by_pixels} of {}",
            bytes.len()
        );
        assert!(
            by_header + 12 >= bytes.len(),
            "{name}: {by_header} of {}",
            bytes.len()
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    #[test]
    fn files_of_every_format_with_flipped_bits_or_cut_short_decode_or_are_errors(
        which in 0usize..7, cut in prop::option::of(any::<prop::sample::Index>()),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 0..5),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let formats = [ImageFormat::WebP, ImageFormat::Bmp, ImageFormat::Gif, ImageFormat::Qoi, ImageFormat::Pnm, ImageFormat::Png];
        let mut bytes = match formats.get(which) {
            Some(format) => written(*format, 16, 9),
            None => tiff_file(16, 9),
        };
        for (at, bit) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        fs::write(&path, &bytes).unwrap();
        match (read_header(&path), read_rgb(&path)) {
            (Ok((width, height)), Ok(rgb)) => {
                prop_assert_eq!((rgb.width, rgb.height), (width as usize, height as usize));
                prop_assert_eq!(rgb.pixels.len(), rgb.width * rgb.height * 3);
            }
            (_, Err(error)) => {
                prop_assert!(!error.to_string().contains('\n'), "{}", error);
                prop_assert!(!error.to_string().contains("gave up"), "{}", error);
            }
            (Err(error), Ok(_)) => prop_assert!(false, "only the header: {error}"),
        }
    }
}

#[cfg(unix)]
#[test]
fn what_is_not_a_file_is_named_and_links_are_followed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path("x.jpg")).unwrap();
    let error = read_header(&path("x.jpg")).unwrap_err().reason();
    assert_eq!(error, "cannot be read: it is a folder");
    // A socket stands for everything that cannot be opened like a file.
    let _socket = std::os::unix::net::UnixListener::bind(path("s.jpg")).unwrap();
    let error = read_rgb(&path("s.jpg")).unwrap_err().reason();
    assert_eq!(
        error,
        "cannot be read: it is a device, a pipe or a socket, not a file"
    );
    write_jpeg(&path("a.jpg"), 32, 16, 1);
    std::os::unix::fs::symlink(path("a.jpg"), path("link.jpg")).unwrap();
    assert_eq!(read_header(&path("link.jpg")).unwrap(), (32, 16));
    std::os::unix::fs::symlink(path("gone.jpg"), path("dangling.jpg")).unwrap();
    let error = read_header(&path("dangling.jpg")).unwrap_err().reason();
    assert!(error.starts_with("cannot be read: No such file"), "{error}");
    // The superuser of a container may read everything: then there is nothing to see.
    let mut rights = fs::metadata(path("a.jpg")).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut rights, 0);
    fs::set_permissions(path("a.jpg"), rights).unwrap();
    if let Err(error) = read_rgb(&path("a.jpg")) {
        assert!(
            error
                .reason()
                .starts_with("cannot be read: Permission denied"),
            "{error}"
        );
    }
}

/// What is expected of a file.
enum Expected {
    /// The picture of `hopper.png`, within this mean difference of samples.
    Hopper(f64),
    /// Size, and the mean of its samples by channel, as Pillow 12 gives them.
    Mean(usize, usize, [f64; 3]),
    /// Size alone: 16-bit samples, of which Pillow keeps the low byte and we the high one.
    Size(usize, usize),
    /// Refused, by words of the reason.
    Refused(&'static str),
}

/// What is expected of every file of the folder; the truncated ones are refused, see the module's first lines.
#[rustfmt::skip]
const NASTY: [(&str, Expected); 49] = {
    use Expected::*;
    [
        ("12bit.cropped.tif", Refused("a TIFF of a kind that is not read (12 bits a sample")),
        ("16_bit_noise.tif", Size(32, 32)),
        ("16bit.cropped.tif", Size(64, 64)),
        ("1_trns.png", Mean(64, 64, [124.1; 3])),
        ("broken.png", Refused("PNG")),
        ("broken_data_stream.png", Refused("broken PNG")),
        ("broken_exif_dpi.jpg", Mean(100, 100, [0.0, 128.0, 1.0])),
        ("decompression_bomb.gif", Refused("pixels is more than the 16384 a side that is decoded")),
        ("exif_typeerror.jpg", Mean(800, 531, [160.5, 159.6, 141.7])),
        ("flower2.webp", Mean(300, 225, [115.5, 78.9, 76.3])),
        ("hopper.bmp", Hopper(0.0)),
        ("hopper.gif", Hopper(12.0)),
        ("hopper.jpg", Hopper(4.0)),
        ("hopper.png", Hopper(0.0)),
        ("hopper.qoi", Hopper(0.0)),
        ("hopper.tif", Hopper(0.0)),
        ("hopper.webp", Hopper(6.0)),
        ("hopper_16bit.pgm", Size(128, 128)),
        ("hopper_16bit_qtables.jpg", Hopper(8.0)),
        ("hopper_bad_exif.jpg", Mean(500, 500, [125.5; 3])),
        ("hopper_gray.jpg", Mean(128, 128, [84.7; 3])),
        ("hopper_idat_after_image_end.png", Hopper(0.0)),
        ("hopper_jpg.tif", Hopper(8.0)),
        ("hopper_lzw.tif", Hopper(0.0)),
        ("hopper_merged.psd", Refused("PSD files are not read; convert it to JPEG or PNG")),
        ("hopper_orientation_2.jpg", Hopper(8.0)),
        ("hopper_orientation_3.jpg", Hopper(8.0)),
        ("hopper_orientation_4.jpg", Hopper(8.0)),
        ("hopper_orientation_5.jpg", Hopper(8.0)),
        ("hopper_orientation_6.jpg", Hopper(8.0)),
        ("hopper_orientation_6.webp", Hopper(8.0)),
        ("hopper_orientation_7.jpg", Hopper(8.0)),
        ("hopper_orientation_8.jpg", Hopper(8.0)),
        ("hopper_rle8.bmp", Hopper(12.0)),
        ("hopper_rle8_row_overflow.bmp", Hopper(12.0)),
        ("hopper_webp.tif", Hopper(8.0)),
        ("icc-after-SOF.jpg", Mean(10, 10, [0.0; 3])),
        ("pil168.png", Mean(256, 256, [140.8, 60.5, 144.6])),
        ("pil_sample_cmyk.jpg", Mean(100, 100, [30.2, 5.4, 7.4])),
        ("rgb_trns.png", Mean(64, 64, [73.4, 176.3, 119.3])),
        ("sugarshack_bad_mpo_header.jpg", Mean(640, 480, [120.5, 108.9, 99.1])),
        ("tiff_strip_cmyk_jpeg.tif", Mean(100, 100, [30.2, 5.4, 7.4])),
        ("tiny.png", Mean(4, 4, [86.8, 113.6, 81.8])),
        ("transparent.png", Mean(200, 150, [33.4, 25.7, 26.4])),
        ("truncated_app14.jpg", Refused("truncated JPEG")),
        ("truncated_end_chunk.png", Refused("truncated PNG")),
        ("truncated_image.png", Refused("truncated PNG")),
        ("truncated_jpeg.jpg", Refused("truncated JPEG")),
        ("uncompressed_la.png", Mean(128, 128, [46.7; 3])),
    ]
};

#[test]
fn the_whole_nasty_folder_is_read_as_it_should_be_or_refused_by_its_name_shared() {
    let Some(folder) = shared("data/nasty/images") else {
        return;
    };
    let hopper = read_rgb(&folder.join("hopper.png")).unwrap();
    let mut wrong = Vec::new();
    for (file, expected) in &NASTY {
        let path = folder.join(file);
        let (header, rgb) = (read_header(&path), read_rgb(&path));
        let (ok, seen) = match (&rgb, expected) {
            (Ok(rgb), Expected::Refused(_)) => (false, format!("{} x {}", rgb.width, rgb.height)),
            (Ok(rgb), Expected::Hopper(tolerance)) => {
                let difference = difference(&hopper, rgb);
                (difference <= *tolerance, format!("off by {difference:.2}"))
            }
            (Ok(rgb), Expected::Size(width, height)) => (
                (rgb.width, rgb.height) == (*width, *height),
                format!("{:?}", mean(rgb)),
            ),
            (Ok(rgb), Expected::Mean(width, height, expected)) => {
                let mean = mean(rgb);
                let near = mean.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1.5);
                let same_size = (rgb.width, rgb.height) == (*width, *height);
                (
                    near && same_size,
                    format!("{} x {} {mean:.1?}", rgb.width, rgb.height),
                )
            }
            (Err(error), Expected::Refused(words)) => {
                let text = error.to_string();
                let is_clear = text.contains(words) && text.contains(file) && !text.contains('\n');
                (is_clear, error.reason())
            }
            (Err(error), _) => (false, error.reason()),
        };
        println!("{file}: {seen}");
        if !ok {
            wrong.push(format!("{file}: {seen}"));
        }
        if let (Ok(rgb), header) = (&rgb, header) {
            let header = header.unwrap_or_else(|error| panic!("only the header: {error}"));
            assert_eq!((rgb.width as u32, rgb.height as u32), header, "{file}");
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // No file of the folder is left out of the table.
    for entry in fs::read_dir(&folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let is_known = NASTY.iter().any(|(file, _)| *file == name);
        assert!(is_known || name.starts_with("LICENSE"), "{name}");
    }
}

fn mean(rgb: &Rgb) -> [f64; 3] {
    let pixels = (rgb.width * rgb.height) as f64;
    [0, 1, 2].map(|channel| {
        let samples = rgb.pixels.iter().skip(channel).step_by(3);
        samples.map(|&v| f64::from(v)).sum::<f64>() / pixels
    })
}
