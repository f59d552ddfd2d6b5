//! Files that are either the old or the new version, never half of one.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Writes `bytes` to `path` so that a reader, or a machine that loses power, sees the old file or the whole new one:
/// a temporary file in the same folder is written, synced and renamed, then the folder is synced.
///
/// # Errors
/// What the file system reports, with the path in front. The old file is then unchanged and no temporary file is left.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_atomic_with(path, |out| out.write_all(bytes))
}

/// As [`write_atomic`], for contents that are better streamed than held.
///
/// # Errors
/// As [`write_atomic`], and what `fill` returns.
pub fn write_atomic_with(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
    let temporary = temporary_name(path).map_err(named)?;
    let written =
        create_and_fill(&temporary, fill).and_then(|()| std::fs::rename(&temporary, path));
    if let Err(e) = written {
        // The first error is the one to tell; a temporary file that cannot be removed either changes nothing.
        let _ = std::fs::remove_file(&temporary);
        return Err(named(e));
    }
    sync_folder(path).map_err(named)
}

/// As [`write_atomic`] for readers, but not for machines that lose power: nothing is waited for. For what is written often
/// and soon out of date.
///
/// # Errors
/// As [`write_atomic`].
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
    let temporary = temporary_name(path).map_err(named)?;
    let written =
        std::fs::write(&temporary, bytes).and_then(|()| std::fs::rename(&temporary, path));
    written.map_err(|e| {
        // The first error is the one to tell.
        let _ = std::fs::remove_file(&temporary);
        named(e)
    })
}

/// A name in the folder of `path` that no other thread or process takes.
fn temporary_name(path: &Path) -> io::Result<PathBuf> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not the name of a file"))?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    temporary.push(format!(".{}-{count}.tmp", std::process::id()));
    Ok(path.with_file_name(temporary))
}

fn create_and_fill(
    temporary: &Path,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(temporary)?;
    let mut out = BufWriter::with_capacity(1 << 16, file);
    fill(&mut out)?;
    out.into_inner().map_err(|e| e.into_error())?.sync_all()
}

/// Makes the rename itself durable. Only Unix lets a folder be opened and synced.
fn sync_folder(path: &Path) -> io::Result<()> {
    if cfg!(unix) {
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let name = |e: io::Result<std::fs::DirEntry>| e.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<String> = std::fs::read_dir(folder).unwrap().map(name).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_created_and_replaced_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        write_atomic(&path, b"one").unwrap();
        write_atomic(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(names(folder.path()), ["a.csv"]);
    }

    #[test]
    fn a_file_that_is_written_often_is_replaced_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        for text in ["one", "two"] {
            replace(&path, text.as_bytes()).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), text.as_bytes());
        }
        assert_eq!(names(folder.path()), ["a.json"]);
        let taken = folder.path().join("taken");
        std::fs::create_dir(&taken).unwrap();
        assert!(replace(&taken, b"").is_err());
        assert_eq!(names(folder.path()), ["a.json", "taken"]);
    }

    #[test]
    fn contents_that_fail_halfway_leave_the_old_file_and_say_which() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        write_atomic(&path, b"old").unwrap();
        let e = write_atomic_with(&path, |out| {
            out.write_all(b"half")?;
            Err(io::Error::other("stopped"))
        });
        let e = e.unwrap_err();
        assert_eq!(e.to_string(), format!("{}: stopped", path.display()));
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(names(folder.path()), ["a.csv"]);
    }

    #[test]
    fn a_missing_folder_and_a_name_that_is_a_folder_are_errors_that_say_which_file() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("no").join("a.csv");
        let e = write_atomic(&missing, b"").unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::NotFound);
        assert!(e.to_string().starts_with(&missing.display().to_string()));

        let taken = folder.path().join("taken");
        std::fs::create_dir(&taken).unwrap();
        let e = write_atomic(&taken, b"").unwrap_err();
        assert!(e.to_string().starts_with(&taken.display().to_string()));
        assert_eq!(names(folder.path()), ["taken"]);
        assert!(write_atomic(Path::new("/"), b"").is_err());
    }

    #[test]
    fn threads_that_write_one_file_leave_one_whole_version() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bin");
        std::thread::scope(|scope| {
            for n in 0..8_u8 {
                let path = &path;
                scope.spawn(move || write_atomic(path, &vec![n; 10_000]).unwrap());
            }
        });
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes, vec![bytes[0]; 10_000]);
        assert_eq!(names(folder.path()), ["a.bin"]);
    }
}
