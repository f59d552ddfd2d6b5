//! The checkpoints of a run: written beside training, the last few kept, the newest whole one found again.

use super::checkpoint::{Checkpoint, CheckpointError, Position, seal};
use super::error::TrainError;
use crate::pulse::Pulse;
use crate::report::files::write_atomic_with;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes that are written between two beats.
const PART: usize = 4 << 20;
/// Between two looks at how far that is.
const GLANCE: Duration = Duration::from_millis(2);
/// Their folder in a run's folder.
const FOLDER: &str = "checkpoints";

/// Where a run's checkpoints lie.
#[must_use]
pub fn folder_of(run: &Path) -> PathBuf {
    run.join(FOLDER)
}

fn file_name(p: Position) -> String {
    format!("epoch-{:05}-batch-{:07}.ckpt", p.epoch, p.batch)
}

fn position_of(path: &Path) -> Option<Position> {
    let name = path.file_name()?.to_str()?;
    let (epoch, batch) = name
        .strip_prefix("epoch-")?
        .strip_suffix(".ckpt")?
        .split_once("-batch-")?;
    Some(Position {
        epoch: epoch.parse().ok()?,
        batch: batch.parse().ok()?,
    })
}

/// The checkpoints of a run, oldest first. Empty where there is no such folder.
///
/// # Errors
/// What the file system reports of a folder that is there.
pub fn list(run: &Path) -> std::io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder_of(run)) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        Err(e) => return Err(e),
    };
    let mut found = vec![];
    for entry in entries {
        let path = entry?.path();
        if let Some(p) = position_of(&path) {
            found.push(((p.epoch, p.batch), path));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// The newest checkpoint of a run, whole or not.
#[must_use]
pub fn newest_path(run: &Path) -> Option<PathBuf> {
    list(run).ok()?.pop()
}

/// The newest checkpoint of a run that is whole; `damaged` is told of each newer one that is not.
///
/// # Errors
/// [`TrainError::NoCheckpoint`], [`TrainError::Checkpoint`] with the newest one's damage where none is whole.
pub fn newest(
    run: &Path,
    damaged: &mut dyn FnMut(&CheckpointError),
) -> Result<Checkpoint, TrainError> {
    let none = || TrainError::NoCheckpoint {
        run: run.to_owned(),
        folder: folder_of(run),
    };
    let paths = list(run).map_err(|source| CheckpointError::Read {
        path: folder_of(run),
        source,
    })?;
    let mut first = None;
    for path in paths.iter().rev() {
        match Checkpoint::open(path) {
            Ok(c) => return Ok(c),
            Err(e) => {
                damaged(&e);
                first.get_or_insert(e);
            }
        }
    }
    Err(first.map_or_else(none, TrainError::Checkpoint))
}

/// Writes checkpoints on a thread of its own, so that training waits for the copy of its state alone.
#[derive(Debug)]
pub struct Saver {
    folder: PathBuf,
    /// How many are kept.
    keep: usize,
    writing: Option<JoinHandle<Result<(), TrainError>>>,
    /// Parts that are on their way to the disk.
    parts: Arc<AtomicU64>,
    /// Beaten as they go, while somebody waits for that.
    pulse: Pulse,
}

impl Saver {
    /// For the run in folder `run`; the last `keep` checkpoints are kept.
    ///
    /// # Errors
    /// [`TrainError::Write`].
    pub fn new(run: &Path, keep: usize, pulse: Pulse) -> Result<Self, TrainError> {
        let folder = folder_of(run);
        std::fs::create_dir_all(&folder).map_err(|source| TrainError::Write {
            path: folder.clone(),
            source,
        })?;
        Ok(Self {
            folder,
            keep: keep.max(1),
            writing: None,
            parts: Arc::default(),
            pulse,
        })
    }

    /// Starts to write a checkpoint without its checksum. Waits for the one before, whose error it returns.
    ///
    /// # Errors
    /// [`TrainError::Write`], [`TrainError::Threads`].
    pub fn save(&mut self, position: Position, mut bytes: Vec<u8>) -> Result<(), TrainError> {
        self.wait()?;
        let path = self.folder.join(file_name(position));
        let (run, keep, parts) = (self.folder.clone(), self.keep, self.parts.clone());
        let write = move || {
            seal(&mut bytes);
            let in_parts = |out: &mut dyn Write| {
                bytes.chunks(PART).try_for_each(|part| {
                    parts.fetch_add(1, Ordering::Relaxed);
                    out.write_all(part)
                })
            };
            write_atomic_with(&path, in_parts).map_err(|source| TrainError::Write {
                path: path.clone(),
                source,
            })?;
            prune(&run, keep);
            Ok(())
        };
        let thread = std::thread::Builder::new()
            .name("checkpoint".into())
            .spawn(write)
            .map_err(|e| TrainError::Threads {
                threads: 1,
                reason: e.to_string(),
            })?;
        self.writing = Some(thread);
        Ok(())
    }

    /// Waits until everything is on disk.
    ///
    /// # Errors
    /// [`TrainError::Write`] of the checkpoint that was being written.
    pub fn wait(&mut self) -> Result<(), TrainError> {
        let mut seen = None;
        while self.writing.as_ref().is_some_and(|t| !t.is_finished()) {
            let parts = Some(self.parts.load(Ordering::Relaxed));
            if std::mem::replace(&mut seen, parts) != parts {
                self.pulse.beat("writing a checkpoint");
            }
            std::thread::sleep(GLANCE);
        }
        match self.writing.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        // whoever wanted to know has called `wait`
        if let Some(thread) = self.writing.take() {
            let _ = thread.join();
        }
    }
}

/// Removes the oldest checkpoints beyond `keep`. One that cannot be removed takes space and does no harm.
fn prune(folder: &Path, keep: usize) {
    let Some(run) = folder.parent() else { return };
    let paths = list(run).unwrap_or_default();
    for path in &paths[..paths.len().saturating_sub(keep)] {
        let _ = std::fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(epoch: usize, batch: usize) -> Position {
        Position { epoch, batch }
    }

    fn names(run: &Path) -> Vec<Position> {
        list(run)
            .unwrap()
            .iter()
            .map(|p| position_of(p).unwrap())
            .collect()
    }

    #[test]
    fn names_sort_as_positions_and_other_files_are_left_alone() {
        let t = tempfile::tempdir().unwrap();
        let mut saver = Saver::new(t.path(), 2, Pulse::new()).unwrap();
        let other = folder_of(t.path()).join("notes.txt");
        std::fs::write(&other, "mine").unwrap();
        for p in [at(0, 9), at(2, 3), at(2, 11), at(100_000, 0)] {
            saver.save(p, vec![1]).unwrap();
        }
        saver.wait().unwrap();
        assert_eq!(names(t.path()), [at(2, 11), at(100_000, 0)]);
        assert!(other.exists());
        assert_eq!(position_of(Path::new("epoch-1-batch-x.ckpt")), None);
    }

    #[test]
    fn a_checkpoint_that_cannot_be_written_is_an_error_of_the_next_call() {
        let t = tempfile::tempdir().unwrap();
        let mut saver = Saver::new(t.path(), 2, Pulse::new()).unwrap();
        std::fs::remove_dir(folder_of(t.path())).unwrap();
        saver.save(at(0, 1), vec![1]).unwrap();
        let e = saver.save(at(0, 2), vec![1]).unwrap_err();
        assert!(e.to_string().contains("epoch-00000-batch-0000001"), "{e}");
    }

    #[test]
    fn without_a_whole_checkpoint_the_error_says_where_was_looked_and_what_is_wrong() {
        let t = tempfile::tempdir().unwrap();
        let e = newest(t.path(), &mut |_| {}).unwrap_err();
        assert!(e.to_string().contains("checkpoints"), "{e}");
        let mut saver = Saver::new(t.path(), 5, Pulse::new()).unwrap();
        saver.save(at(0, 1), vec![1]).unwrap();
        saver.save(at(0, 2), vec![2]).unwrap();
        saver.wait().unwrap();
        let mut damaged = vec![];
        let e = newest(t.path(), &mut |e| damaged.push(e.to_string())).unwrap_err();
        assert_eq!(damaged.len(), 2);
        assert!(damaged[0].contains("batch-0000002"), "{damaged:?}");
        assert!(e.to_string().contains("batch-0000002"), "{e}");
    }
}
