//! What kind of file it is, from its first bytes.

/// The formats that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Jpeg,
    Png,
}

pub(super) const PNG_SIGNATURE: [u8; 8] = *b"\x89PNG\r\n\x1a\n";

/// Tells the format. The error is the name of a format that is known and not read, if it is one.
pub(super) fn sniff(start: &[u8]) -> Result<Format, Option<&'static str>> {
    if start.starts_with(&[0xff, 0xd8]) {
        Ok(Format::Jpeg)
    } else if start.starts_with(&PNG_SIGNATURE) {
        Ok(Format::Png)
    } else {
        Err(other_format(start))
    }
}

/// The name of an image format that is known and not read.
fn other_format(start: &[u8]) -> Option<&'static str> {
    let at =
        |offset: usize, magic: &[u8]| start.get(offset..).is_some_and(|s| s.starts_with(magic));
    let known: [(usize, &[u8], &str); 15] = [
        (8, b"WEBP", "WebP"),
        (0, b"GIF8", "GIF"),
        (0, b"BM", "BMP"),
        (0, b"II*\0", "TIFF"),
        (0, b"MM\0*", "TIFF"),
        (0, b"qoif", "QOI"),
        (0, b"8BPS", "PSD"),
        (0, b"\x76\x2f\x31\x01", "OpenEXR"),
        (0, b"\0\0\x01\0", "ICO"),
        (4, b"ftypavif", "AVIF"),
        (4, b"ftyp", "HEIF"),
        (4, b"jP  ", "JPEG 2000"),
        (0, b"\xff\x4f\xff\x51", "JPEG 2000"),
        (0, b"\xff\x0a", "JPEG XL"),
        (4, b"JXL ", "JPEG XL"),
    ];
    let found = known.iter().find(|(offset, magic, _)| at(*offset, magic));
    match found {
        Some((_, _, name)) => Some(name),
        None if matches!(start, [b'P', b'1'..=b'7', b'\n' | b' ', ..]) => Some("PNM"),
        None => None,
    }
}
