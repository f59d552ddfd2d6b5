//! One process at a time prepares a data set.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::DownloadError;
use crate::data::prepare::Step;

const NAME: &str = ".yolo-train.lock";

/// Held as long as it lives. The operating system lets it go when the process ends, however it ends.
#[derive(Debug)]
pub(super) struct Lock {
    path: PathBuf,
    /// `None` on file systems that have no locks.
    file: Option<File>,
}

impl Lock {
    /// Waits until no other process works in `folder`, which exists.
    pub fn take(
        folder: &Path,
        tell: &mut dyn FnMut(Step<'_>) -> ControlFlow<()>,
    ) -> Result<Self, DownloadError> {
        let path = folder.join(NAME);
        let io = |source| DownloadError::io(&path, source, || "a lock file".to_owned());
        let mut waited = false;
        loop {
            let file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .open(&path)
                .map_err(io)?;
            match file.try_lock() {
                // Its holder removes the file: what was locked may not be the file of that name any more.
                Ok(()) if is_at(&file, &path) => {
                    return Ok(Self {
                        path,
                        file: Some(file),
                    });
                }
                Ok(()) => continue,
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(e)) if e.kind() == io::ErrorKind::Unsupported => {
                    return Ok(Self { path, file: None });
                }
                Err(TryLockError::Error(e)) => return Err(io(e)),
            }
            let line = format!(
                "waiting for another process that prepares {}",
                folder.display()
            );
            let step = if waited {
                Step::Waiting
            } else {
                Step::Note(&line)
            };
            if tell(step).is_break() {
                return Err(DownloadError::Interrupted);
            }
            waited = true;
            thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Removed while it is held, so that nobody else's is. Where a locked file cannot be removed it stays, which harms nobody.
        let _ = fs::remove_file(&self.path);
        if let Some(file) = &self.file {
            let _ = file.unlock();
        }
    }
}

#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (file.metadata(), fs::metadata(path)) {
        (Ok(held), Ok(named)) => held.dev() == named.dev() && held.ino() == named.ino(),
        _ => false,
    }
}

#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> bool {
    // An open file keeps its name there.
    true
}
