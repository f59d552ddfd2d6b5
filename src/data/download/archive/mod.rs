//! Archives of others, unpacked safely: everything is looked through before anything is written; no name leads out of the folder, links and
//! devices are refused, sizes are bounded, no file that is there is changed.
//!
//! Unpacking can be repeated: what is there with the archive's size and contents is passed over.

pub(crate) mod path;
mod tar;
mod zip;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::path::{Component, Path, PathBuf};

use super::error::{DownloadError, bytes};
use super::part::with_suffix;
use crate::data::prepare::{Step, Unit};

type Tell<'a> = &'a mut dyn FnMut(Step<'_>) -> ControlFlow<()>;

/// Contents may be this much larger than the archive, and [`FREE_BYTES`] more. Deflate reaches 1032, texts 20, photographs 1.
const MOST_RATIO: u64 = 100;
const FREE_BYTES: u64 = 1 << 30;
const MOST_FILES: usize = 20_000_000;

/// An archive on this machine, looked through.
#[derive(Debug)]
pub(super) struct Archive {
    path: PathBuf,
    /// The address or the name of the file, for messages.
    from: String,
    kind: Kind,
    files: Vec<PathBuf>,
    /// The folder that everything lies in and that is left out.
    left_out: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Zip,
    Tar,
    TarGz,
}

/// What a reader of a format hands over, entry by entry.
struct Entry<'a> {
    /// Below the archive's top.
    path: PathBuf,
    size: u64,
    crc: Option<u32>,
    contents: &'a mut dyn Read,
}

/// Why reading stopped.
enum Halt {
    Interrupted,
    /// Of the archive, in words.
    Bad(String),
    /// Of a file that is written.
    Write(PathBuf, io::Error),
}

impl From<io::Error> for Halt {
    fn from(error: io::Error) -> Self {
        Self::Bad(error.to_string())
    }
}

/// What unpacking came to.
#[derive(Debug, Default)]
pub(super) struct Unpacked {
    /// Files that were there already with other contents, and stayed as they are.
    pub kept: Vec<PathBuf>,
}

impl Archive {
    /// Looks through the archive at `path`. `entries` are the paths that the data set is made of: where only a folder at the archive's
    /// top leads to them, that folder is left out.
    ///
    /// # Errors
    /// [`DownloadError::Archive`]: no archive, damaged, or not safe to unpack.
    pub fn open(
        path: &Path,
        from: &str,
        entries: &[String],
        tell: Tell<'_>,
    ) -> Result<Self, DownloadError> {
        let mut archive = Self {
            path: path.to_path_buf(),
            from: from.to_owned(),
            kind: Kind::Zip,
            files: Vec::new(),
            left_out: None,
        };
        let file =
            File::open(path).map_err(|source| DownloadError::io(path, source, String::new))?;
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        let most = FREE_BYTES.saturating_add(length.saturating_mul(MOST_RATIO));
        let looked = sniff(file).map_err(Halt::Bad).and_then(|kind| {
            archive.kind = kind;
            match kind {
                Kind::Zip => zip::list(path, most),
                Kind::Tar | Kind::TarGz => {
                    tar::list(path, kind == Kind::TarGz, most, &mut |done| {
                        tell(Step::Progress {
                            what: &format!("reading {}", shown_name(path)),
                            done,
                            total: Some(length),
                            unit: Unit::Bytes,
                        })
                    })
                }
            }
        });
        archive.files = looked.map_err(|halt| archive.error(halt, 0))?;
        archive.left_out = left_out(&archive.files, entries);
        Ok(archive)
    }

    /// Whether something lies at `entry`, below the root.
    pub fn holds(&self, entry: &str) -> bool {
        let entry = plain(entry);
        self.files
            .iter()
            .any(|file| self.place(file).starts_with(&entry))
    }

    /// The names at its top, at most a few, for messages.
    pub fn tops(&self) -> Vec<String> {
        const SHOWN: usize = 8;
        let tops: BTreeSet<String> = self
            .files
            .iter()
            .filter_map(|file| self.place(file).components().next())
            .map(|top| top.as_os_str().to_string_lossy().into_owned())
            .collect();
        let more = tops.len() > SHOWN;
        let mut shown: Vec<String> = tops.into_iter().take(SHOWN).collect();
        if more {
            shown.push("…".to_owned());
        }
        shown
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn from(&self) -> &str {
        &self.from
    }

    /// Unpacks everything that is not there yet below `root`.
    ///
    /// # Errors
    /// [`DownloadError`]: damaged, no space, interrupted. What was unpacked stays, whole files only.
    pub fn unpack(&self, root: &Path, tell: Tell<'_>) -> Result<Unpacked, DownloadError> {
        let what = format!("unpacking {}", shown_name(&self.path));
        let mut unpacked = Unpacked::default();
        let mut done = 0;
        let mut written = 0;
        let mut one = |entry: Entry<'_>| -> Result<(), Halt> {
            let step = Step::Progress {
                what: &what,
                done,
                total: Some(self.files.len() as u64),
                unit: Unit::Files,
            };
            if tell(step).is_break() {
                return Err(Halt::Interrupted);
            }
            let to = root.join(self.place(&entry.path));
            written += entry.size;
            done += 1;
            if !write(entry, &to)? {
                unpacked.kept.push(to);
            }
            Ok(())
        };
        let result = match self.kind {
            Kind::Zip => zip::read(&self.path, &mut one),
            Kind::Tar => tar::read(&self.path, false, &mut one),
            Kind::TarGz => tar::read(&self.path, true, &mut one),
        };
        result.map_err(|halt| self.error(halt, written))?;
        let total = self.files.len() as u64;
        let end = Step::Progress {
            what: &what,
            done: total,
            total: Some(total),
            unit: Unit::Files,
        };
        if tell(end).is_break() {
            return Err(DownloadError::Interrupted);
        }
        Ok(unpacked)
    }

    fn place<'a>(&self, file: &'a Path) -> &'a Path {
        match &self.left_out {
            Some(folder) => file.strip_prefix(folder).unwrap_or(file),
            None => file,
        }
    }

    fn error(&self, halt: Halt, written: u64) -> DownloadError {
        match halt {
            Halt::Interrupted => DownloadError::Interrupted,
            Halt::Bad(reason) => DownloadError::Archive {
                path: self.path.clone(),
                from: self.from.clone(),
                reason,
            },
            Halt::Write(path, source) => DownloadError::io(&path, source, || {
                format!(
                    "{} of {} are unpacked, the rest is still to come",
                    bytes(written),
                    self.path.display()
                )
            }),
        }
    }
}

/// Writes an entry under its name, whole or not at all. False where a file with other contents is there, which stays.
fn write(entry: Entry<'_>, to: &Path) -> Result<bool, Halt> {
    let there = match fs::metadata(to) {
        Ok(metadata) => Some(metadata),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(Halt::Write(to.to_path_buf(), e)),
    };
    if let Some(metadata) = there {
        if !metadata.is_file() || metadata.len() != entry.size {
            return Ok(false);
        }
        return same(entry, to);
    }
    let at = |e| Halt::Write(to.to_path_buf(), e);
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).map_err(at)?;
    }
    let part = with_suffix(to, ".part");
    let written = File::create(&part)
        .map_err(at)
        .and_then(|mut file| copy_exactly(entry, &mut file, to))
        .and_then(|()| fs::rename(&part, to).map_err(at));
    if written.is_err() {
        // Half a file is of no use; the first error is the one that matters.
        let _ = fs::remove_file(&part);
    }
    written.map(|()| true)
}

fn copy_exactly(entry: Entry<'_>, file: &mut File, to: &Path) -> Result<(), Halt> {
    let mut buffer = vec![0; 1 << 16];
    let mut count = 0_u64;
    loop {
        let read = read_some(&mut *entry.contents, &mut buffer, &entry.path)?;
        if read == 0 {
            break;
        }
        count += read as u64;
        if count > entry.size {
            return Err(other_size(&entry));
        }
        file.write_all(&buffer[..read])
            .map_err(|e| Halt::Write(to.to_path_buf(), e))?;
    }
    if count == entry.size {
        Ok(())
    } else {
        Err(other_size(&entry))
    }
}

fn other_size(entry: &Entry<'_>) -> Halt {
    Halt::Bad(format!(
        "damaged: `{}` has not the {} that the archive's list gives it",
        entry.path.display(),
        bytes(entry.size)
    ))
}

fn read_some(contents: &mut dyn Read, buffer: &mut [u8], name: &Path) -> Result<usize, Halt> {
    loop {
        match contents.read(buffer) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Halt::Bad(format!("damaged at `{}`: {e}", name.display()))),
            Ok(count) => return Ok(count),
        }
    }
}

/// Whether the file has the entry's contents: by checksum where the archive has one, else byte by byte. Their sizes are equal.
fn same(entry: Entry<'_>, to: &Path) -> Result<bool, Halt> {
    let at = |e| Halt::Write(to.to_path_buf(), e);
    let mut file = File::open(to).map_err(at)?;
    let mut there = vec![0; 1 << 16];
    let mut crc = flate2::Crc::new();
    let mut archived = vec![0; 1 << 16];
    loop {
        let count = file.read(&mut there).map_err(at)?;
        if count == 0 {
            break;
        }
        match entry.crc {
            Some(_) => crc.update(&there[..count]),
            None => {
                let mut compared = 0;
                while compared < count {
                    let wanted = &mut archived[..count - compared];
                    let read = read_some(&mut *entry.contents, wanted, &entry.path)?;
                    if read == 0 || archived[..read] != there[compared..compared + read] {
                        return Ok(false);
                    }
                    compared += read;
                }
            }
        }
    }
    Ok(entry.crc.is_none_or(|expected| expected == crc.sum()))
}

/// Whether a file of this name is worth nothing: what one system's packer adds.
fn is_junk(path: &Path) -> bool {
    path.starts_with("__MACOSX") || path.file_name().is_some_and(|name| name == ".DS_Store")
}

/// The folder at the top that holds everything, where the data set's paths are found only without it.
fn left_out(files: &[PathBuf], entries: &[String]) -> Option<PathBuf> {
    let top = PathBuf::from(files.first()?.components().next()?.as_os_str());
    let inside = |file: &PathBuf| file.starts_with(&top) && file.components().nth(1).is_some();
    if !files.iter().all(inside) {
        return None;
    }
    let holds = |path: &Path| files.iter().any(|file| file.starts_with(path));
    let entries: Vec<PathBuf> = entries.iter().map(|entry| plain(entry)).collect();
    let with = entries.iter().any(|entry| holds(entry));
    let without = entries.iter().any(|entry| holds(&top.join(entry)));
    (without && !with).then_some(top)
}

/// An entry of a dataset file without `./` and leading `../`.
fn plain(entry: &str) -> PathBuf {
    Path::new(entry)
        .components()
        .filter(|part| matches!(part, Component::Normal(_)))
        .collect()
}

fn shown_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.strip_suffix(".part").unwrap_or(&name).to_owned()
}

/// Tells the format from the contents; addresses say little about it.
fn sniff(file: File) -> Result<Kind, String> {
    let mut start = Vec::new();
    file.take(262)
        .read_to_end(&mut start)
        .map_err(|e| e.to_string())?;
    if start.starts_with(b"PK\x03\x04") || start.starts_with(b"PK\x05\x06") {
        return Ok(Kind::Zip);
    }
    if start.starts_with(&[0x1f, 0x8b]) {
        return Ok(Kind::TarGz);
    }
    if start.get(257..262) == Some(b"ustar") {
        return Ok(Kind::Tar);
    }
    let text: String = String::from_utf8_lossy(&start[..start.len().min(24)])
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    Err(format!(
        "neither a zip nor a tar or tar.gz archive; it begins with {text:?}"
    ))
}
