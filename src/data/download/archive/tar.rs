//! Tar archives, plain or compressed by gzip. They have no directory: each pass reads everything.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use ::tar::{EntryType, PaxExtensions};
use flate2::bufread::MultiGzDecoder;

use super::path::safe_path;
use super::{Entry, Halt, MOST_FILES, is_junk};
use crate::data::download::error::bytes;

/// The longest name and the largest block of extended attributes.
const MOST_ATTRIBUTES: u64 = 1 << 20;
/// Bytes between two calls of `tell`.
const LOOK: u64 = 1 << 22;

/// The files inside; `tell` is called with the bytes of the archive that were read.
pub(super) fn list(
    path: &Path,
    gzip: bool,
    most: u64,
    tell: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Vec<PathBuf>, Halt> {
    let mut interrupted = false;
    let mut read = 0;
    let mut told = 0;
    let counted = Counted {
        inner: File::open(path)?,
        count: &mut |bytes| {
            read += bytes;
            if read - told >= LOOK {
                told = read;
                interrupted |= tell(read).is_break();
            }
            if interrupted {
                return Err(io::Error::other("interrupted"));
            }
            Ok(())
        },
    };
    let counted = BufReader::with_capacity(1 << 16, counted);
    let mut files = Vec::new();
    let result = walk(counted, gzip, Some(most), &mut |entry| {
        files.push(entry.path);
        if files.len() > MOST_FILES {
            return Err(Halt::Bad(format!("it has more than {MOST_FILES} files")));
        }
        Ok(())
    });
    match result {
        Err(_) if interrupted => Err(Halt::Interrupted),
        other => other.map(|()| files),
    }
}

/// Hands over the files, in the order of [`list`], which has found the archive in order.
pub(super) fn read(
    path: &Path,
    gzip: bool,
    one: &mut dyn FnMut(Entry<'_>) -> Result<(), Halt>,
) -> Result<(), Halt> {
    let file = BufReader::with_capacity(1 << 16, File::open(path)?);
    walk(file, gzip, None, one)
}

fn walk(
    file: impl io::BufRead,
    gzip: bool,
    most: Option<u64>,
    one: &mut dyn FnMut(Entry<'_>) -> Result<(), Halt>,
) -> Result<(), Halt> {
    if gzip {
        let mut total = 0_u64;
        let bounded = Counted {
            inner: MultiGzDecoder::new(file),
            count: &mut |count| {
                total += count;
                match most {
                    Some(most) if total > most => Err(io::Error::other(format!(
                        "it would unpack to more than {}, which no data set of this size does",
                        bytes(most)
                    ))),
                    _ => Ok(()),
                }
            },
        };
        walk_tar(bounded, one)
    } else {
        walk_tar(file, one)
    }
}

fn walk_tar(
    mut reader: impl Read,
    one: &mut dyn FnMut(Entry<'_>) -> Result<(), Halt>,
) -> Result<(), Halt> {
    {
        let mut archive = ::tar::Archive::new(&mut reader);
        // The name for the next entry, from an entry before it that holds only that.
        let mut long_name: Option<String> = None;
        for entry in archive.entries()?.raw(true) {
            let mut entry = entry?;
            let kind = entry.header().entry_type();
            match kind {
                EntryType::GNULongName => {
                    let text = attributes(&mut entry)?;
                    let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
                    long_name = Some(String::from_utf8_lossy(text).into_owned());
                    continue;
                }
                EntryType::XHeader => {
                    let text = attributes(&mut entry)?;
                    if let Some(name) = pax_name(&text)? {
                        long_name = Some(name);
                    }
                    continue;
                }
                EntryType::XGlobalHeader => {
                    attributes(&mut entry)?;
                    continue;
                }
                _ => {}
            }
            let name = match long_name.take() {
                Some(name) => name,
                None => String::from_utf8_lossy(&entry.header().path_bytes()).into_owned(),
            };
            if kind.is_dir() {
                continue;
            }
            if !(kind.is_file() || kind.is_contiguous()) {
                return Err(Halt::Bad(format!(
                    "`{name}` is a link or a device, which is not unpacked; unpack it yourself"
                )));
            }
            let path = safe_path(&name)
                .map_err(|reason| Halt::Bad(format!("`{name}` is refused: {reason}")))?;
            if is_junk(&path) {
                continue;
            }
            let size = entry.header().size()?;
            one(Entry {
                path,
                size,
                crc: None,
                contents: &mut entry,
            })?;
        }
    }
    // What follows the end of the archive is read too, for the checksum of gzip.
    io::copy(&mut reader, &mut io::sink())?;
    Ok(())
}

/// The contents of an entry that describes others.
fn attributes(entry: &mut impl Read) -> Result<Vec<u8>, Halt> {
    let mut text = Vec::new();
    entry.take(MOST_ATTRIBUTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MOST_ATTRIBUTES {
        return Err(Halt::Bad(
            "damaged: a name of more than a million letters".to_owned(),
        ));
    }
    Ok(text)
}

/// The name in a block of extended attributes.
fn pax_name(text: &[u8]) -> Result<Option<String>, Halt> {
    let mut name = None;
    for attribute in PaxExtensions::new(text) {
        let attribute = attribute?;
        match attribute.key_bytes() {
            b"path" => name = Some(String::from_utf8_lossy(attribute.value_bytes()).into_owned()),
            key if key == b"size" || key.starts_with(b"GNU.sparse") => {
                return Err(Halt::Bad(
                    "it has files above 8 GB or with holes, which are not unpacked; unpack it yourself"
                        .to_owned(),
                ));
            }
            _ => {}
        }
    }
    Ok(name)
}

/// Tells `count` what is read; its error ends the reading.
struct Counted<'a, R> {
    inner: R,
    count: &'a mut dyn FnMut(u64) -> io::Result<()>,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        (self.count)(count as u64)?;
        Ok(count)
    }
}
