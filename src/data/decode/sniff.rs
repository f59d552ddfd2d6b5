//! Telling the format of an image file from its first bytes.

/// The formats that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Jpeg,
    Png,
    WebP,
    Bmp,
    Gif,
    Tiff,
    Qoi,
    Pnm,
}

impl Format {
    pub fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::WebP => "WebP",
            Self::Bmp => "BMP",
            Self::Gif => "GIF",
            Self::Tiff => "TIFF",
            Self::Qoi => "QOI",
            Self::Pnm => "PNM",
        }
    }
}

pub(super) const PNG_SIGNATURE: [u8; 8] = *b"\x89PNG\r\n\x1a\n";

/// Tells the format. The error is the name of a format that is known and not read, if it is one.
pub(super) fn sniff(start: &[u8]) -> Result<Format, Option<&'static str>> {
    if let Some(name) = other_format(start) {
        return Err(Some(name));
    }
    let begins = |magic: &[u8]| start.starts_with(magic);
    if begins(&[0xff, 0xd8]) {
        Ok(Format::Jpeg)
    } else if begins(&PNG_SIGNATURE) {
        Ok(Format::Png)
    } else if begins(b"RIFF") && start.get(8..12) == Some(b"WEBP") {
        Ok(Format::WebP)
    } else if begins(b"GIF8") {
        Ok(Format::Gif)
    } else if begins(b"BM") {
        Ok(Format::Bmp)
    } else if [b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"]
        .iter()
        .any(|magic| begins(*magic))
    {
        Ok(Format::Tiff)
    } else if begins(b"qoif") {
        Ok(Format::Qoi)
    } else if matches!(
        start,
        [b'P', b'1'..=b'7', b'\n' | b'\r' | b'\t' | b' ' | b'#', ..]
    ) {
        Ok(Format::Pnm)
    } else {
        Err(None)
    }
}

/// The name of an image format that is known and not read.
fn other_format(start: &[u8]) -> Option<&'static str> {
    let at =
        |offset: usize, magic: &[u8]| start.get(offset..).is_some_and(|s| s.starts_with(magic));
    // Raw photographs of Canon are TIFF files whose first picture is a thumbnail.
    let known: [(usize, &[u8], &str); 16] = [
        (8, b"CR\x02", "Canon raw"),
        (0, b"8BPS", "PSD"),
        (0, b"\x76\x2f\x31\x01", "OpenEXR"),
        (0, b"#?RADIANCE", "Radiance HDR"),
        (0, b"\0\0\x01\0", "ICO"),
        (0, b"DDS ", "DDS"),
        (4, b"ftypavif", "AVIF"),
        (4, b"ftypavis", "AVIF"),
        (4, b"ftypcrx", "Canon raw"),
        (4, b"ftyp", "HEIF"),
        (4, b"jP  ", "JPEG 2000"),
        (0, b"\xff\x4f\xff\x51", "JPEG 2000"),
        (0, b"\xff\x0a", "JPEG XL"),
        (4, b"JXL ", "JPEG XL"),
        (0, b"%PDF", "PDF"),
        (0, b"II\xbc\x01", "JPEG XR"),
    ];
    let found = known.iter().find(|(offset, magic, _)| at(*offset, magic));
    found.map(|(_, _, name)| *name)
}
