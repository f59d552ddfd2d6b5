//! Image files to upright RGB: JPEG, PNG, WebP, BMP, TIFF, GIF, QOI and PNM.
//!
//! Conventions: EXIF orientation 1…8 is applied (JPEG, PNG, WebP, TIFF); grey and palette become RGB; alpha is
//! dropped, not composited (what lies under transparent pixels is what was annotated); 16-bit samples keep
//! their high byte; CMYK and YCCK are converted. Of animations and files of many pages the first picture is
//! taken. The format is told by the content, never by the file's name.
//!
//! A file that ends early is an error, not a picture with a grey rest: files are never repaired, the user's
//! are never changed. Every header is checked against [`MAX_SIDE`] and [`MAX_PIXELS`] before memory for pixels
//! is taken, so that no file makes the program take more than these allow.

mod ends;
#[cfg(test)]
mod format_tests;
mod jpeg;
mod orientation;
mod png;
mod raster;
mod samples;
mod sniff;
#[cfg(test)]
mod tests;
mod tiff;

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use sniff::{Format, sniff};

/// Longest side that is decoded; larger headers are refused before any pixel memory is taken.
pub const MAX_SIDE: u32 = 16_384;
/// Most pixels that are decoded (16384 x 16384).
pub const MAX_PIXELS: u64 = 268_435_456;
/// Largest file that is read.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// Extensions of files that are read, lower case.
pub const READABLE_EXTENSIONS: [&str; 17] = [
    "jpg", "jpeg", "jpe", "jfif", "mpo", "png", "webp", "bmp", "dib", "gif", "tif", "tiff", "qoi",
    "pbm", "pgm", "pnm", "ppm",
];

/// Extensions of image files that are not read, lower case: named in a warning, never passed over.
pub const UNREADABLE_EXTENSIONS: [&str; 18] = [
    "arw", "avif", "cr2", "cr3", "dng", "exr", "heic", "heif", "hdr", "hif", "ico", "j2k", "jp2",
    "jpx", "jxl", "nef", "orf", "psd",
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
    #[error("{}: {format} files are not read; convert it to JPEG or PNG", .path.display())]
    Unsupported { path: PathBuf, format: &'static str },
    #[error("{}: a {format} of a kind that is not read ({detail}); convert it to JPEG or PNG", .path.display())]
    UnsupportedKind {
        path: PathBuf,
        format: &'static str,
        detail: String,
    },
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
            | Self::UnsupportedKind { path, .. }
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
    match place.format(&mut file)? {
        Format::Jpeg => jpeg::probe(&place, &mut file),
        Format::Png => png::probe(&place, &mut file),
        Format::Tiff => tiff::probe(&place, &mut file),
        other => raster::probe(&place, &mut file, other),
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
        Format::Jpeg => jpeg::read(&place, &mut file),
        Format::Png => png::read(&place, &mut file),
        Format::Tiff => tiff::read(&place, &mut file),
        other => raster::read(&place, &mut file, other),
    }
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

    fn unsupported_kind(&self, format: &'static str, detail: impl ToString) -> DecodeError {
        DecodeError::UnsupportedKind {
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
        // Looked at before it is opened: opening a pipe waits for its other end.
        let metadata = std::fs::metadata(self.path).map_err(|e| self.io(e))?;
        if !metadata.is_file() {
            let what = if metadata.is_dir() {
                "it is a folder"
            } else {
                "it is a device, a pipe or a socket, not a file"
            };
            return Err(self.io(io::Error::other(what)));
        }
        let file = File::open(self.path).map_err(|e| self.io(e))?;
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
        sniff(start).map_err(|unknown| match unknown {
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
}

fn size((width, height): (u32, u32)) -> (usize, usize) {
    (width as usize, height as usize)
}
