//! Zip archives, by their central directory.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use ::zip::ZipArchive;
use ::zip::result::ZipError;

use super::path::safe_path;
use super::{Entry, Halt, MOST_FILES, is_junk};
use crate::data::download::error::bytes;

/// The files inside.
pub(super) fn list(path: &Path, most: u64) -> Result<Vec<PathBuf>, Halt> {
    let mut archive = open(path)?;
    if archive.len() > MOST_FILES {
        return Err(Halt::Bad(format!("it has {} files", archive.len())));
    }
    let mut files = Vec::with_capacity(archive.len());
    let mut total = 0_u64;
    for index in 0..archive.len() {
        let entry = archive.by_index_raw(index).map_err(bad)?;
        let name = entry.name();
        let path = match safe_path(name) {
            Ok(path) => path,
            // `./` of some packers.
            Err(_) if entry.is_dir() && matches!(name, "./" | "/") => continue,
            Err(reason) => return Err(Halt::Bad(format!("`{name}` is refused: {reason}"))),
        };
        // What kind of file it is stands in the upper bits, where a Unix system packed it.
        let format = entry.unix_mode().map_or(0, |mode| mode & 0o170_000);
        if !matches!(format, 0 | 0o100_000 | 0o040_000) {
            return Err(Halt::Bad(format!(
                "`{name}` is a link or a device, which is not unpacked; unpack it yourself"
            )));
        }
        if entry.encrypted() {
            return Err(Halt::Bad(format!(
                "`{name}` is encrypted; unpack it yourself"
            )));
        }
        total = total.saturating_add(entry.size());
        if total > most {
            return Err(Halt::Bad(format!(
                "it would unpack to more than {}, which no data set of this size does",
                bytes(most)
            )));
        }
        if !entry.is_dir() && !is_junk(&path) {
            files.push(path);
        }
    }
    Ok(files)
}

/// Hands over the files, in the order of [`list`].
pub(super) fn read(
    path: &Path,
    one: &mut dyn FnMut(Entry<'_>) -> Result<(), Halt>,
) -> Result<(), Halt> {
    let mut archive = open(path)?;
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).map_err(bad)?;
        let Ok(path) = safe_path(entry.name()) else {
            continue;
        };
        if entry.is_dir() || is_junk(&path) {
            continue;
        }
        one(Entry {
            path,
            size: entry.size(),
            crc: Some(entry.crc32()),
            contents: &mut entry,
        })?;
    }
    Ok(())
}

fn open(path: &Path) -> Result<ZipArchive<BufReader<File>>, Halt> {
    let file = File::open(path)?;
    ZipArchive::new(BufReader::with_capacity(1 << 16, file)).map_err(bad)
}

fn bad(error: ZipError) -> Halt {
    match error {
        ZipError::UnsupportedArchive(what) => Halt::Bad(format!("{what}; unpack it yourself")),
        other => Halt::Bad(format!("damaged: {other}")),
    }
}
