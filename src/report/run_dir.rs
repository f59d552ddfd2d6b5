//! The folder of a run.

use std::io;
use std::path::{Component, Path, PathBuf};

/// Why a run has no folder.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    #[error(
        "{name:?} cannot name a run: it must be one folder's name; put parent folders into --project"
    )]
    Name { name: String },

    #[error("cannot create {path}: {source}")]
    Create { path: PathBuf, source: io::Error },
}

/// Creates `project/name`, or the first of `name-2`, `name-3`, … that does not exist, and returns its path.
///
/// Creating a folder is atomic, so runs that start at the same moment, in any process, get different folders. Whatever
/// exists, folder or not, is left alone.
///
/// # Errors
/// A name that is not a single folder's name, and what the file system reports.
pub fn create_run_dir(project: &Path, name: &str) -> Result<PathBuf, RunDirError> {
    let mut parts = Path::new(name).components();
    let single = matches!(
        (parts.next(), parts.next()),
        (Some(Component::Normal(part)), None) if part == name
    );
    if !single {
        return Err(RunDirError::Name { name: name.into() });
    }
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| RunDirError::Create { path, source }
    };
    std::fs::create_dir_all(project).map_err(failed(project))?;
    for n in 1_u64.. {
        let path = match n {
            1 => project.join(name),
            n => project.join(format!("{name}-{n}")),
        };
        match std::fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(failed(&path)(e)),
        }
    }
    unreachable!("a folder of 2^64 runs")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_of(path: &Path) -> &str {
        path.file_name().unwrap().to_str().unwrap()
    }

    #[test]
    fn runs_are_numbered_and_nothing_that_exists_is_touched() {
        let folder = tempfile::tempdir().unwrap();
        let project = folder.path().join("runs").join("detect");
        let first = create_run_dir(&project, "train").unwrap();
        std::fs::write(first.join("results.csv"), "kept").unwrap();
        std::fs::write(project.join("train-2"), "a file").unwrap();
        assert_eq!(name_of(&first), "train");
        assert_eq!(
            name_of(&create_run_dir(&project, "train").unwrap()),
            "train-3"
        );
        assert_eq!(name_of(&create_run_dir(&project, "exp").unwrap()), "exp");
        assert_eq!(name_of(&create_run_dir(&project, "exp").unwrap()), "exp-2");
        assert_eq!(
            std::fs::read_to_string(first.join("results.csv")).unwrap(),
            "kept"
        );
        assert_eq!(
            std::fs::read_to_string(project.join("train-2")).unwrap(),
            "a file"
        );
    }

    #[test]
    fn runs_that_start_together_get_different_folders() {
        let folder = tempfile::tempdir().unwrap();
        let start = std::sync::Barrier::new(16);
        let mut names: Vec<PathBuf> = std::thread::scope(|scope| {
            let run = || {
                start.wait();
                create_run_dir(folder.path(), "train").unwrap()
            };
            let threads: Vec<_> = (0..16).map(|_| scope.spawn(run)).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 16);
        assert!(folder.path().join("train-16").is_dir());
    }

    #[test]
    fn a_name_that_leads_elsewhere_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["", ".", "..", "a/b", "/tmp", "a/", "../a"] {
            let e = create_run_dir(folder.path(), name).unwrap_err();
            assert!(matches!(e, RunDirError::Name { .. }), "{name}: {e}");
        }
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let e = create_run_dir(&file, "train").unwrap_err();
        assert!(e.to_string().contains(&file.display().to_string()));
    }
}
