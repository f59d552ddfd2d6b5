//! What has to happen before a data set's files are looked at: a generated set is drawn once, what is to be downloaded is downloaded.

use std::ops::ControlFlow;

use super::download::{self, Client};
use super::{DataError, shapes};
use crate::config::dataset::{DatasetYaml, Generator, SplitName};

/// What [`prepare`] tells. The answer says whether to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step<'a> {
    /// A line for the user.
    Note(&'a str),
    /// A line that deserves attention.
    Warning(&'a str),
    /// How far `what` is. The total is not known before all servers have said theirs.
    Progress {
        what: &'a str,
        done: u64,
        total: Option<u64>,
        unit: Unit,
    },
    /// Nothing new: only asks whether to go on.
    Waiting,
}

/// What progress counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Images,
    Files,
    Bytes,
}

/// Draws the data set of `generate: shapes` into its folder if that is missing, and downloads what `download` names, the splits need and
/// is not there; otherwise does nothing.
///
/// `tell` is called some times a second as long as there is something to wait for. An interrupted run leaves no half of a file or of a
/// generated set under its name; downloads go on where they ended.
///
/// # Errors
/// [`DataError::Generate`] when files cannot be written, [`DataError::Download`], which is
/// [`Interrupted`](super::DownloadError::Interrupted) where `tell` said so.
pub fn prepare(
    yaml: &DatasetYaml,
    splits: &[SplitName],
    tell: &mut dyn FnMut(Step<'_>) -> ControlFlow<()>,
) -> Result<(), DataError> {
    if let Some(Generator::Shapes) = yaml.generate
        && !yaml.root.exists()
    {
        let what = format!("drawing {}", yaml.root.display());
        // Drawing takes seconds and is not interrupted.
        let mut progress = |done: usize, total: usize| {
            let _ = tell(Step::Progress {
                what: &what,
                done: done as u64,
                total: Some(total as u64),
                unit: Unit::Images,
            });
        };
        shapes::generate(&yaml.root, &mut progress).map_err(|source| DataError::Generate {
            path: yaml.root.clone(),
            source,
        })?;
    }
    if yaml.download.is_some() {
        download::fetch(yaml, splits, &Client::from_environment(), tell)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::data::test_support::write;
    use crate::data::{IndexOptions, load_split};

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn only_a_missing_generated_set_is_drawn_and_nothing_else_is_left_or_touched() {
        let folder = tempfile::tempdir().unwrap();
        let work = folder.path();
        write(
            &work.join("d.yaml"),
            "path: deep/set\ntrain: images/train\ngenerate: shapes\n",
        );
        write(&work.join("datasets/deep/set/mine.txt"), "kept");
        let yaml = DatasetYaml::load_in("d.yaml", work).unwrap();
        prepare(&yaml, &SplitName::ALL, &mut |_| {
            panic!("nothing is to be drawn")
        })
        .unwrap();
        assert_eq!(names(&yaml.root), ["mine.txt"]);

        write(&work.join("e.yaml"), "path: e\ntrain: images\nnames: [a]\n");
        let plain = DatasetYaml::load_in("e.yaml", work).unwrap();
        prepare(&plain, &SplitName::ALL, &mut |_| {
            panic!("nothing is to be drawn")
        })
        .unwrap();
        assert!(!plain.root.exists());
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let work = folder.path();
        write(&work.join("datasets"), "a file");
        let yaml = DatasetYaml::load_in("shapes", work).unwrap();
        let mut tell = |_: Step<'_>| ControlFlow::Continue(());
        let error = prepare(&yaml, &SplitName::ALL, &mut tell)
            .unwrap_err()
            .to_string();
        assert!(error.contains("datasets/shapes: "), "{error}");
        assert_eq!(names(work), ["datasets"]);
    }

    #[test]
    fn the_built_in_set_is_drawn_once_and_read_without_a_word() {
        let folder = tempfile::tempdir().unwrap();
        let yaml = DatasetYaml::load_in("shapes", folder.path()).unwrap();
        let mut told = Vec::new();
        let mut tell = |step: Step<'_>| {
            if let Step::Progress { done, total, .. } = step {
                told.push((done as usize, total.unwrap() as usize));
            }
            ControlFlow::Continue(())
        };
        prepare(&yaml, &SplitName::ALL, &mut tell).unwrap();
        let total = told[0].1;
        assert_eq!(told.last(), Some(&(total, total)));
        assert_eq!(names(&folder.path().join("datasets")), ["shapes"]);
        prepare(&yaml, &SplitName::ALL, &mut |_| panic!("it is there")).unwrap();
        let options = IndexOptions::default();
        let (train, report) = load_split(&yaml, SplitName::Train, &options).unwrap();
        assert!(report.findings.is_empty(), "{:?}", report.lines());
        assert!(report.backgrounds > 0);
        assert_eq!(train.names, shapes::CLASSES);
        let (val, report) = load_split(&yaml, SplitName::Val, &options).unwrap();
        assert!(report.findings.is_empty(), "{:?}", report.lines());
        assert_eq!(train.images.len() + val.images.len(), total);
    }
}
