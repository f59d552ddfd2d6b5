//! Why files could not be downloaded.

use std::io;
use std::path::{Path, PathBuf};

/// Every variant names the address or the file, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    #[error("cannot download {url}: {reason}; {advice}")]
    Failed {
        url: String,
        reason: String,
        advice: String,
    },
    /// Some of many images; the first one stands for them.
    #[error(
        "{failed} of {total} images could not be downloaded, among them {url}: {reason}; {advice}"
    )]
    ImagesFailed {
        failed: usize,
        total: usize,
        url: String,
        reason: String,
        advice: String,
    },
    #[error(
        "{yaml}: `download: coco_url` needs the folder that the images go into: give `{split}: {{images: FOLDER, annotations: FILE.json}}`"
    )]
    NoFolder { yaml: String, split: &'static str },
    #[error("{}: {source}", .path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("no space left in {}: {needed}; make room and start again, what is there already is kept", .folder.display())]
    NoSpace { folder: PathBuf, needed: String },
    #[error("{} (from {from}): {reason}", .path.display())]
    Archive {
        path: PathBuf,
        from: String,
        reason: String,
    },
    #[error("{wanted}, but {from} does not hold that; it holds {}. Correct the dataset file, or unpack {} as it should be", .holds.join(", "), .archive.display())]
    NotInArchive {
        /// Who names what.
        wanted: String,
        from: String,
        archive: PathBuf,
        holds: Vec<String>,
    },
    #[error("interrupted")]
    Interrupted,
}

impl DownloadError {
    /// What the file system says, with what is still `needed` where it is full.
    pub(super) fn io(path: &Path, source: io::Error, needed: impl FnOnce() -> String) -> Self {
        if matches!(
            source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        ) {
            return Self::NoSpace {
                folder: path.parent().unwrap_or(path).to_path_buf(),
                needed: needed(),
            };
        }
        Self::Io {
            path: path.to_path_buf(),
            source,
        }
    }
}

/// `18.5 GB`, in powers of ten as addresses and disks are labelled.
pub(super) fn bytes(count: u64) -> String {
    match count {
        0..1_000 => format!("{count} bytes"),
        1_000..1_000_000 => format!("{:.1} kB", count as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", count as f64 / 1e6),
        _ => format!("{:.1} GB", count as f64 / 1e9),
    }
}
