//! Image files to upright RGB: JPEG and PNG.
//!
//! Conventions: EXIF orientation 1…8 is applied; grey and palette become RGB; alpha is dropped, not
//! composited (what lies under transparent pixels is what was annotated); 16-bit samples keep their high
//! byte; CMYK and YCCK JPEGs are converted. The format is told by the content, never by the file's name.
//! A file that ends early is an error, not a picture with a grey rest.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use image::codecs::png::PngDecoder;
use image::metadata::Orientation;
use image::{ColorType, ImageDecoder, Limits};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// Longest side that is decoded; larger headers are refused before any pixel memory is taken.
pub const MAX_SIDE: u32 = 16_384;
/// Most pixels that are decoded (16384 x 16384).
pub const MAX_PIXELS: u64 = 268_435_456;
/// Largest file that is read.
const MAX_FILE_BYTES: u64 = 1 << 30;
/// Memory that a PNG's chunks other than pixels (text, colour profiles) may take.
const PNG_CHUNK_BYTES: u64 = 256 << 20;
const PNG_SIGNATURE: [u8; 8] = *b"\x89PNG\r\n\x1a\n";
const PNG_END: [u8; 12] = [0, 0, 0, 0, b'I', b'E', b'N', b'D', 0xae, 0x42, 0x60, 0x82];

/// Extensions of files that are read, lower case.
pub const READABLE_EXTENSIONS: [&str; 6] = ["jpg", "jpeg", "jpe", "jfif", "mpo", "png"];

/// Extensions of image files that are not read yet, lower case: named in a warning, never passed over.
pub const UNREADABLE_EXTENSIONS: [&str; 22] = [
    "avif", "bmp", "dib", "dng", "exr", "gif", "heic", "heif", "hdr", "ico", "j2k", "jp2", "jxl",
    "pbm", "pgm", "pnm", "ppm", "psd", "qoi", "tif", "tiff", "webp",
];

/// An upright image: `pixels` is `[height, width, 3]`, RGB, 8 bits a sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rgb {
    pub width: usize,
    pub height: usize,
    pub pixels: Vec<u8>,
}

/// Why an image file cannot be used; every variant names the file.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    #[error("{}: cannot be read: {source}", .path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{}: the file is empty", .path.display())]
    Empty { path: PathBuf },
    #[error("{}: {format} files are not read yet; convert it to JPEG or PNG", .path.display())]
    Unsupported { path: PathBuf, format: &'static str },
    #[error("{}: not an image file (it begins with {start})", .path.display())]
    NotAnImage { path: PathBuf, start: String },
    #[error("{}: {width} x {height} pixels is more than the {MAX_SIDE} a side that is decoded", .path.display())]
    TooLarge {
        path: PathBuf,
        width: u64,
        height: u64,
    },
    #[error("{}: the file has {bytes} bytes, more than the {MAX_FILE_BYTES} that are read", .path.display())]
    TooManyBytes { path: PathBuf, bytes: u64 },
    #[error("{}: truncated {format}: {detail}", .path.display())]
    Truncated {
        path: PathBuf,
        format: &'static str,
        detail: String,
    },
    #[error("{}: broken {format}: {detail}", .path.display())]
    Broken {
        path: PathBuf,
        format: &'static str,
        detail: String,
    },
}

impl DecodeError {
    pub fn path(&self) -> &Path {
        match self {
            Self::Io { path, .. }
            | Self::Empty { path }
            | Self::Unsupported { path, .. }
            | Self::NotAnImage { path, .. }
            | Self::TooLarge { path, .. }
            | Self::TooManyBytes { path, .. }
            | Self::Truncated { path, .. }
            | Self::Broken { path, .. } => path,
        }
    }

    /// The message without the file's name, for reports that have the name in a field of its own.
    pub fn reason(&self) -> String {
        let text = self.to_string();
        let prefix = format!("{}: ", self.path().display());
        match text.strip_prefix(&prefix) {
            Some(rest) => rest.to_owned(),
            None => text,
        }
    }
}

/// What a file's header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Width and height as stored, before EXIF orientation.
    pub stored: (u32, u32),
    /// EXIF orientation, 1…8; 1 when absent or invalid.
    pub orientation: u8,
}

impl Header {
    /// Whether orientation exchanges width and height.
    pub fn swaps_sides(&self) -> bool {
        self.orientation >= 5
    }

    /// Width and height of the upright image.
    pub fn upright(&self) -> (u32, u32) {
        let (width, height) = self.stored;
        if self.swaps_sides() {
            (height, width)
        } else {
            (width, height)
        }
    }
}

/// Width and height of the upright image, without decoding pixels.
///
/// # Errors
/// [`DecodeError`]; also when the file ends early, which costs one look at its last bytes.
pub fn read_header(path: &Path) -> Result<(u32, u32), DecodeError> {
    Ok(probe(path)?.upright())
}

/// [`read_header`] with the stored size and the orientation apart.
pub fn probe(path: &Path) -> Result<Header, DecodeError> {
    let place = Place { path };
    let mut file = place.open()?;
    let format = place.format(&mut file)?;
    match format {
        Format::Jpeg => {
            let header = place.guarded("JPEG", || {
                let mut decoder = JpegDecoder::new_with_options(&mut file, jpeg_options());
                place.jpeg_header(&mut decoder)
            })?;
            place.check_jpeg_end(&mut file)?;
            Ok(header)
        }
        Format::Png => {
            let header = place.guarded("PNG", || Ok(place.png_decoder(&mut file)?.1))?;
            place.check_png_end(&mut file)?;
            Ok(header)
        }
    }
}

/// The whole image, upright.
///
/// # Errors
/// [`DecodeError`], also for files whose pixels end early.
pub fn read_rgb(path: &Path) -> Result<Rgb, DecodeError> {
    let place = Place { path };
    let mut file = place.open()?;
    match place.format(&mut file)? {
        Format::Jpeg => {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).map_err(|e| place.io(e))?;
            if !jpeg_is_complete(&bytes) {
                return Err(place.jpeg_truncated());
            }
            place.guarded("JPEG", || place.decode_jpeg(&bytes))
        }
        Format::Png => {
            place.check_png_end(&mut file)?;
            file.rewind().map_err(|e| place.io(e))?;
            place.guarded("PNG", || place.decode_png(&mut file))
        }
    }
}

#[derive(Clone, Copy)]
enum Format {
    Jpeg,
    Png,
}

/// The file at hand: gives every error its name.
struct Place<'a> {
    path: &'a Path,
}

impl Place<'_> {
    fn io(&self, source: io::Error) -> DecodeError {
        DecodeError::Io {
            path: self.path.to_path_buf(),
            source,
        }
    }

    fn broken(&self, format: &'static str, detail: impl ToString) -> DecodeError {
        DecodeError::Broken {
            path: self.path.to_path_buf(),
            format,
            detail: detail.to_string(),
        }
    }

    fn truncated(&self, format: &'static str, detail: impl ToString) -> DecodeError {
        DecodeError::Truncated {
            path: self.path.to_path_buf(),
            format,
            detail: detail.to_string(),
        }
    }

    fn jpeg_truncated(&self) -> DecodeError {
        self.truncated("JPEG", "it ends without an end-of-image marker")
    }

    /// Runs a decoder of another crate; a panic in it becomes an error with the file's name.
    fn guarded<T>(
        &self,
        format: &'static str,
        decode: impl FnOnce() -> Result<T, DecodeError>,
    ) -> Result<T, DecodeError> {
        // Nothing that the closure borrows is used after a panic.
        catch_unwind(AssertUnwindSafe(decode))
            .unwrap_or_else(|_| Err(self.broken(format, "the decoder gave up on it")))
    }

    fn open(&self) -> Result<BufReader<File>, DecodeError> {
        let file = File::open(self.path).map_err(|e| self.io(e))?;
        let metadata = file.metadata().map_err(|e| self.io(e))?;
        if metadata.is_dir() {
            return Err(self.io(io::Error::other("it is a folder")));
        }
        if metadata.len() > MAX_FILE_BYTES {
            return Err(DecodeError::TooManyBytes {
                path: self.path.to_path_buf(),
                bytes: metadata.len(),
            });
        }
        Ok(BufReader::with_capacity(16 << 10, file))
    }

    /// Tells the format from the first bytes and leaves the reader at the start.
    fn format(&self, file: &mut BufReader<File>) -> Result<Format, DecodeError> {
        let start = file.fill_buf().map_err(|e| self.io(e))?;
        if start.is_empty() {
            return Err(DecodeError::Empty {
                path: self.path.to_path_buf(),
            });
        }
        if start.starts_with(&[0xff, 0xd8]) {
            return Ok(Format::Jpeg);
        }
        if start.starts_with(&PNG_SIGNATURE) {
            return Ok(Format::Png);
        }
        Err(match other_format(start) {
            Some(format) => DecodeError::Unsupported {
                path: self.path.to_path_buf(),
                format,
            },
            None => DecodeError::NotAnImage {
                path: self.path.to_path_buf(),
                start: start[..start.len().min(8)]
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect::<Vec<_>>()
                    .join(" "),
            },
        })
    }

    fn checked_size(&self, width: u64, height: u64) -> Result<(u32, u32), DecodeError> {
        if width == 0 || height == 0 {
            return Err(self.broken("image", format!("its size is {width} x {height}")));
        }
        let side = u64::from(MAX_SIDE);
        if width > side || height > side || width * height > MAX_PIXELS {
            return Err(DecodeError::TooLarge {
                path: self.path.to_path_buf(),
                width,
                height,
            });
        }
        Ok((width as u32, height as u32)) // both are at most MAX_SIDE
    }

    fn jpeg_header<T: zune_jpeg::zune_core::bytestream::ZByteReaderTrait>(
        &self,
        decoder: &mut JpegDecoder<T>,
    ) -> Result<Header, DecodeError> {
        use zune_jpeg::errors::DecodeErrors;
        decoder.decode_headers().map_err(|error| match error {
            DecodeErrors::ExhaustedData | DecodeErrors::IoErrors(_) => {
                self.truncated("JPEG", "it ends within its header")
            }
            other => self.broken("JPEG", zune_reason(&other)),
        })?;
        let (width, height) = decoder
            .dimensions()
            .ok_or_else(|| self.broken("JPEG", "it has no frame header"))?;
        let orientation = decoder
            .exif()
            .and_then(|exif| Orientation::from_exif_chunk(exif))
            .unwrap_or(Orientation::NoTransforms);
        Ok(Header {
            stored: self.checked_size(width as u64, height as u64)?,
            orientation: orientation.to_exif(),
        })
    }

    fn decode_jpeg(&self, bytes: &[u8]) -> Result<Rgb, DecodeError> {
        let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), jpeg_options());
        let header = self.jpeg_header(&mut decoder)?;
        let (width, height) = size(header.stored);
        let mut pixels = vec![0; width * height * 3];
        decoder
            .decode_into(&mut pixels)
            .map_err(|error| self.broken("JPEG", zune_reason(&error)))?;
        Ok(turn_upright(width, height, pixels, header.orientation))
    }

    /// The end-of-image marker is looked for at the file's end, and only if it is not there, by a walk
    /// through the whole file (padding and further images may follow the first one).
    fn check_jpeg_end(&self, file: &mut BufReader<File>) -> Result<(), DecodeError> {
        let mut last = [0; 2];
        if file.seek(SeekFrom::End(-2)).is_ok()
            && file.read_exact(&mut last).is_ok()
            && last == [0xff, 0xd9]
        {
            return Ok(());
        }
        let mut bytes = Vec::new();
        file.rewind().map_err(|e| self.io(e))?;
        file.read_to_end(&mut bytes).map_err(|e| self.io(e))?;
        if jpeg_is_complete(&bytes) {
            Ok(())
        } else {
            Err(self.jpeg_truncated())
        }
    }

    fn png_decoder<R: BufRead + Seek>(
        &self,
        reader: R,
    ) -> Result<(PngDecoder<R>, Header), DecodeError> {
        let mut limits = Limits::no_limits();
        limits.max_alloc = Some(PNG_CHUNK_BYTES);
        let mut decoder =
            PngDecoder::with_limits(reader, limits).map_err(|error| self.png_error(&error))?;
        let (width, height) = decoder.dimensions();
        let orientation = decoder
            .orientation()
            .map_err(|error| self.png_error(&error))?;
        let header = Header {
            stored: self.checked_size(width.into(), height.into())?,
            orientation: orientation.to_exif(),
        };
        Ok((decoder, header))
    }

    fn decode_png<R: BufRead + Seek>(&self, reader: R) -> Result<Rgb, DecodeError> {
        let (decoder, header) = self.png_decoder(reader)?;
        let (width, height) = size(header.stored);
        let color = decoder.color_type();
        let mut samples = vec![0; width * height * usize::from(color.bytes_per_pixel())];
        decoder
            .read_image(&mut samples)
            .map_err(|error| self.png_error(&error))?;
        let pixels = match color {
            ColorType::Rgb8 => samples,
            ColorType::L8 => spread(&samples, 1, |p| [p[0]; 3]),
            ColorType::La8 => spread(&samples, 2, |p| [p[0]; 3]),
            ColorType::Rgba8 => spread(&samples, 4, |p| [p[0], p[1], p[2]]),
            // 16-bit samples are in the machine's byte order.
            ColorType::L16 => spread(&samples, 2, |p| [high(p, 0); 3]),
            ColorType::La16 => spread(&samples, 4, |p| [high(p, 0); 3]),
            ColorType::Rgb16 => spread(&samples, 6, |p| [high(p, 0), high(p, 1), high(p, 2)]),
            ColorType::Rgba16 => spread(&samples, 8, |p| [high(p, 0), high(p, 1), high(p, 2)]),
            other => return Err(self.broken("PNG", format!("pixels of the type {other:?}"))),
        };
        Ok(turn_upright(width, height, pixels, header.orientation))
    }

    fn png_error(&self, error: &image::ImageError) -> DecodeError {
        if let image::ImageError::IoError(source) = error {
            return if source.kind() == io::ErrorKind::UnexpectedEof {
                self.truncated("PNG", "it ends within its chunks")
            } else {
                self.broken("PNG", source)
            };
        }
        let text = error.to_string();
        // The decoder's text prints a damaged chunk's name byte by byte.
        if text.contains("ChunkType {") {
            return self.broken("PNG", "its chunks are damaged or out of order");
        }
        self.broken(
            "PNG",
            text.trim_start_matches("Format error decoding Png: "),
        )
    }

    /// Looks for the end chunk at the file's end, and only if it is not there, along the chunks.
    fn check_png_end(&self, file: &mut BufReader<File>) -> Result<(), DecodeError> {
        let mut last = [0; 12];
        if file.seek(SeekFrom::End(-12)).is_ok()
            && file.read_exact(&mut last).is_ok()
            && last == PNG_END
        {
            return Ok(());
        }
        let length = file.get_ref().metadata().map_err(|e| self.io(e))?.len();
        let mut at = PNG_SIGNATURE.len() as u64;
        let mut head = [0; 8];
        loop {
            let read = file
                .seek(SeekFrom::Start(at))
                .and_then(|_| file.read_exact(&mut head));
            let [a, b, c, d, ref name @ ..] = head;
            let next = at + 12 + u64::from(u32::from_be_bytes([a, b, c, d]));
            if read.is_err() || next > length {
                return Err(self.truncated("PNG", "it ends without its end chunk"));
            }
            if name == b"IEND" {
                return Ok(());
            }
            at = next;
        }
    }
}

/// The JPEG decoder's message; some variants print it in quotes.
fn zune_reason(error: &zune_jpeg::errors::DecodeErrors) -> String {
    error.to_string().trim_matches('"').to_owned()
}

fn size((width, height): (u32, u32)) -> (usize, usize) {
    (width as usize, height as usize)
}

fn jpeg_options() -> DecoderOptions {
    // Not strict: harmless oddities such as bytes between segments are common. Sizes are checked here.
    DecoderOptions::default()
        .set_strict_mode(false)
        .set_max_width(usize::MAX)
        .set_max_height(usize::MAX)
        .jpeg_set_out_colorspace(ColorSpace::RGB)
}

fn spread(samples: &[u8], width: usize, rgb: impl Fn(&[u8]) -> [u8; 3]) -> Vec<u8> {
    samples.chunks_exact(width).flat_map(rgb).collect()
}

fn high(samples: &[u8], index: usize) -> u8 {
    (u16::from_ne_bytes([samples[2 * index], samples[2 * index + 1]]) >> 8) as u8
}

/// Whether the first image of a JPEG file has its end-of-image marker: segments are stepped over by their
/// length (an EXIF thumbnail has markers of its own), entropy-coded data up to the next marker.
fn jpeg_is_complete(bytes: &[u8]) -> bool {
    let mut at = 2; // after start-of-image
    loop {
        // To the next marker: 0xff and a byte that is neither stuffing (0x00), fill (0xff) nor a restart.
        let Some(&code) = bytes.get(at + 1) else {
            return false;
        };
        let is_marker = bytes[at] == 0xff && !matches!(code, 0x00 | 0x01 | 0xff | 0xd0..=0xd8);
        if !is_marker {
            at += 1;
            continue;
        }
        if code == 0xd9 {
            return true;
        }
        let Some(&[high, low]) = bytes.get(at + 2..at + 4) else {
            return false;
        };
        at += 2 + usize::from(u16::from_be_bytes([high, low])).max(2);
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

/// Applies an EXIF orientation to packed RGB pixels.
fn turn_upright(width: usize, height: usize, pixels: Vec<u8>, orientation: u8) -> Rgb {
    if orientation <= 1 {
        return Rgb {
            width,
            height,
            pixels,
        };
    }
    let (out_width, out_height) = if orientation >= 5 {
        (height, width)
    } else {
        (width, height)
    };
    let (right, bottom) = (width - 1, height - 1);
    let mut turned = Vec::with_capacity(pixels.len());
    for y in 0..out_height {
        for x in 0..out_width {
            // Where the upright pixel (x, y) is stored; EXIF 2.3, tag 0x0112.
            let (from_x, from_y) = match orientation {
                2 => (right - x, y),
                3 => (right - x, bottom - y),
                4 => (x, bottom - y),
                5 => (y, x),
                6 => (y, bottom - x),
                7 => (right - y, bottom - x),
                _ => (right - y, x),
            };
            let from = (from_y * width + from_x) * 3;
            turned.extend_from_slice(&pixels[from..from + 3]);
        }
    }
    Rgb {
        width: out_width,
        height: out_height,
        pixels: turned,
    }
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
