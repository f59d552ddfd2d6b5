//! `--resume`: which run, and which of its options may have changed.

use super::checkpoint::{Checkpoint, Header};
use super::checkpoints;
use super::error::TrainError;
use super::together::{agree, from_first, leads, same_path};
use crate::config::{OPTIONS, Settings};
use crate::dist::ProcessGroup;
use crate::report::Console;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

/// Options that do not change what is computed, and `epochs`, for which there is a rule.
const MAY_CHANGE: [&str; 22] = [
    "epochs",
    "workers",
    "threads",
    "device",
    "nnodes",
    "node-rank",
    "master",
    "ports",
    "token-file",
    "join-timeout",
    "bucket-mb",
    "elastic",
    "patience",
    "save-period",
    "save-steps",
    "keep-checkpoints",
    "time",
    "plots",
    "timeout",
    "max-restarts",
    "json-log",
    "resume",
];
/// Options that say where the run is.
const PLACE: [&str; 3] = ["project", "name", "cfg"];

/// A run that goes on.
pub struct Resumed {
    pub folder: PathBuf,
    pub checkpoint: Checkpoint,
    /// Options of the run with what was given now.
    pub settings: Settings,
    /// Epochs from now on.
    pub epochs: usize,
    /// Of the rank that writes.
    pub lock: Option<RunLock>,
}

/// Finds the run of `--resume`, its newest whole checkpoint, and its options. Rank 0 reads, the others get what it read.
///
/// # Errors
/// [`TrainError::NoRun`], [`TrainError::NoCheckpoint`], [`TrainError::Checkpoint`], [`TrainError::InUse`],
/// [`TrainError::CannotChange`].
pub fn find(
    given: &Settings,
    word: &str,
    group: &dyn ProcessGroup,
    console: &Console,
) -> Result<Resumed, TrainError> {
    let first = leads(group).then(|| -> Result<_, TrainError> {
        let folder = locate(Path::new(&given.project), word)?;
        let lock = RunLock::take(&folder)?;
        let checkpoint = checkpoints::newest(&folder, &mut |e| {
            console.warn(format!("{e}; the one before it is used"));
        })?;
        Ok((checkpoint, folder, lock))
    });
    let first = agree(group, "run to go on with", first.transpose())?;
    let (own, folder, lock) = match first {
        Some((c, folder, lock)) => (Some(c), folder, Some(lock)),
        None => (None, PathBuf::new(), None),
    };
    let folder = same_path(group, "folder of a run", folder)?;
    let checkpoint = match own {
        Some(c) if group.size() == 1 => c,
        own => {
            let (path, bytes) = own.map_or_else(Default::default, |c| {
                (c.path().to_owned(), c.bytes().to_vec())
            });
            let path = same_path(group, "name of a checkpoint", path)?;
            Checkpoint::parse(&path, from_first(group, "checkpoint", bytes)?)?
        }
    };
    let Header { settings, .. } = &checkpoint.header;
    let stored = Settings::from_yaml(settings, &folder.join("args.yaml").display().to_string())?;
    let (settings, changes) = merge(stored, given)?;
    for line in changes {
        console.note(line);
    }
    let epochs = if given.is_given("epochs") {
        given.epochs
    } else {
        checkpoint.header.epochs
    };
    Ok(Resumed {
        folder,
        checkpoint,
        settings,
        epochs,
        lock,
    })
}

/// The folder that a word means: itself, a file in it, a run of the project, or (`true`) the project's newest run.
fn locate(project: &Path, word: &str) -> Result<PathBuf, TrainError> {
    let has_run = |p: &Path| checkpoints::folder_of(p).is_dir();
    if word == "true" {
        return newest_run(project).ok_or_else(|| TrainError::NoRun {
            word: "the newest run".into(),
            looked: vec![project.to_owned()],
        });
    }
    let path = Path::new(word);
    let mut looked = vec![path.to_owned(), project.join(word)];
    looked.extend(path.ancestors().skip(1).take(2).map(Path::to_owned));
    looked.retain(|p| !p.as_os_str().is_empty());
    match looked.iter().find(|p| has_run(p)) {
        Some(p) => Ok(p.clone()),
        None => Err(TrainError::NoRun {
            word: word.into(),
            looked,
        }),
    }
}

fn newest_run(project: &Path) -> Option<PathBuf> {
    let runs = std::fs::read_dir(project).ok()?;
    let dated = runs.filter_map(|entry| {
        let run = entry.ok()?.path();
        let written = |p: &PathBuf| std::fs::metadata(p).and_then(|m| m.modified()).ok();
        let newest = checkpoints::list(&run)
            .ok()?
            .iter()
            .filter_map(written)
            .max();
        Some((newest?, run))
    });
    dated.max().map(|(_, run)| run)
}

/// The stored options with those given now; lines that say what changes.
fn merge(mut stored: Settings, given: &Settings) -> Result<(Settings, Vec<String>), TrainError> {
    let (mut lines, mut refused) = (vec![], vec![]);
    for spec in OPTIONS {
        if !given.is_given(spec.name) || PLACE.contains(&spec.name) {
            continue;
        }
        let (old, new) = (stored.text_of(spec), given.text_of(spec));
        if old == new || spec.name == "resume" {
            continue;
        }
        let show = |t: &Option<String>| t.clone().unwrap_or_else(|| "not set".into());
        if !MAY_CHANGE.contains(&spec.name) {
            refused.push(format!(
                "--{} is {}, not {}",
                spec.name,
                show(&old),
                show(&new)
            ));
            continue;
        }
        if spec.name != "epochs" {
            lines.push(format!(
                "{}: {} instead of {}",
                spec.name,
                show(&new),
                show(&old)
            ));
            stored.take_from(spec, given);
        }
    }
    if refused.is_empty() {
        Ok((stored, lines))
    } else {
        Err(TrainError::CannotChange {
            refused,
            may: MAY_CHANGE[..MAY_CHANGE.len() - 1].to_vec(),
        })
    }
}

/// A run's folder belongs to one process at a time. The lock goes with the process, however that ends.
#[derive(Debug)]
pub struct RunLock(#[expect(dead_code, reason = "held, not read")] File);

impl RunLock {
    /// # Errors
    /// [`TrainError::InUse`], [`TrainError::Write`].
    pub fn take(run: &Path) -> Result<Self, TrainError> {
        let path = run.join(".lock");
        let failed = |source| TrainError::Write {
            path: path.clone(),
            source,
        };
        let file = File::create(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(TryLockError::WouldBlock) => Err(TrainError::InUse {
                run: run.to_owned(),
            }),
            // a file system without locks
            Err(TryLockError::Error(_)) => Ok(Self(file)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::settings;

    #[test]
    fn what_does_not_change_the_result_may_change_and_is_said() {
        let stored = settings(&[("batch", "4"), ("workers", "1"), ("lr0", "0.02")]);
        let given = settings(&[("workers", "3"), ("batch", "4"), ("epochs", "200")]);
        let (s, lines) = merge(stored, &given).unwrap();
        assert_eq!((s.workers, s.batch, s.epochs), (Some(3), 4, 100));
        assert!(s.is_given("lr0") && s.is_given("workers"));
        assert_eq!(lines, ["workers: 3 instead of 1"]);
    }

    #[test]
    fn what_changes_the_result_is_refused_with_both_values() {
        let e = merge(
            settings(&[]),
            &settings(&[("imgsz", "320"), ("lr0", "0.5"), ("threads", "1")]),
        )
        .unwrap_err()
        .to_string();
        for part in [
            "--imgsz is 640, not 320",
            "--lr0 is 0.01, not 0.5",
            "patience",
        ] {
            assert!(e.contains(part), "{e}");
        }
    }

    #[test]
    fn every_name_in_the_rules_is_an_option() {
        for name in MAY_CHANGE.into_iter().chain(PLACE) {
            assert!(OPTIONS.iter().any(|s| s.name == name), "{name}");
        }
    }

    #[test]
    fn a_run_is_found_by_folder_by_name_by_a_file_in_it_or_as_the_newest() {
        let t = tempfile::tempdir().unwrap();
        let run = |name: &str| {
            let folder = checkpoints::folder_of(&t.path().join(name));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("epoch-00000-batch-0000001.ckpt"), name).unwrap();
            t.path().join(name)
        };
        let (a, b) = (run("a"), run("b"));
        let old = std::time::SystemTime::UNIX_EPOCH;
        File::options()
            .write(true)
            .open(checkpoints::list(&b).unwrap()[0].clone())
            .unwrap()
            .set_modified(old)
            .unwrap();
        std::fs::create_dir(t.path().join("no run")).unwrap();
        assert_eq!(locate(t.path(), "true").unwrap(), a);
        assert_eq!(locate(t.path(), "b").unwrap(), b);
        assert_eq!(
            locate(Path::new("elsewhere"), b.to_str().unwrap()).unwrap(),
            b
        );
        let file = b.join("weights/last.safetensors");
        assert_eq!(locate(t.path(), file.to_str().unwrap()).unwrap(), b);
        let e = locate(t.path(), "c").unwrap_err().to_string();
        assert!(e.contains(&t.path().join("c").display().to_string()), "{e}");
        assert!(locate(&t.path().join("empty"), "true").is_err());
    }

    #[test]
    fn a_run_in_use_is_refused_until_its_process_is_gone() {
        let t = tempfile::tempdir().unwrap();
        let first = RunLock::take(t.path()).unwrap();
        let e = RunLock::take(t.path()).unwrap_err();
        assert!(matches!(e, TrainError::InUse { .. }), "{e}");
        drop(first);
        RunLock::take(t.path()).unwrap();
    }
}
