//! What is read of every format, and the whole folder of nasty files.

use std::fs;

use image::{DynamicImage, ImageFormat};
use proptest::prelude::*;

use super::orientation::turn_upright;
use super::tests::difference;
use super::*;
use crate::data::test_support::{shared, write_jpeg};

/// A drawn picture in a format.
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
    tiff_of::<::tiff::encoder::colortype::RGB8>(width, height, |mut image| {
        let data: Vec<u8> = (0..width * height)
            .map(|i| (i % width, i / width))
            .flat_map(|(x, y)| [(x * 7) as u8, (y * 5) as u8, ((x * y) % 256) as u8])
            .collect();
        image.rows_per_strip(5).unwrap();
        image.write_data(&data).unwrap();
    })
}

type TiffPicture<'a, 'b, C> = ::tiff::encoder::ImageEncoder<
    'a,
    &'b mut std::io::Cursor<Vec<u8>>,
    C,
    ::tiff::encoder::TiffKindStandard,
>;

fn tiff_of<C: ::tiff::encoder::colortype::ColorType>(
    width: u32,
    height: u32,
    fill: impl FnOnce(TiffPicture<'_, '_, C>),
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
        // The header of a PNM file (60 bytes here) is not counted in what its pixels need.
        let late = if name == "Pnm" { 60 } else { 12 };
        assert!(
            by_header + late >= bytes.len(),
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
        ("broken_data_stream.png", Refused("truncated PNG")),
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
        // coarse tables: Pillow is 11.01 off, too
        ("hopper_16bit_qtables.jpg", Hopper(11.5)),
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
        ("truncated_app14.jpg", Refused("broken JPEG")),
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
