//! What has to happen before a data set's files are looked at: the generated set is drawn once.

use super::{DataError, shapes};
use crate::config::dataset::{DatasetYaml, Generator};

/// Draws the data set of `generate: shapes` into its folder if that is missing; otherwise does nothing.
///
/// `progress` is called with the images done and their total. An interrupted run leaves no half of the set:
/// it gets its name when it is complete.
///
/// # Errors
/// [`DataError::Generate`] when files cannot be written.
pub fn prepare(
    yaml: &DatasetYaml,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<(), DataError> {
    match yaml.generate {
        Some(Generator::Shapes) if !yaml.root.exists() => shapes::generate(&yaml.root, progress)
            .map_err(|source| DataError::Generate {
                path: yaml.root.clone(),
                source,
            }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::config::dataset::SplitName;
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
        prepare(&yaml, &mut |_, _| panic!("nothing is to be drawn")).unwrap();
        assert_eq!(names(&yaml.root), ["mine.txt"]);

        write(&work.join("e.yaml"), "path: e\ntrain: images\nnames: [a]\n");
        let plain = DatasetYaml::load_in("e.yaml", work).unwrap();
        prepare(&plain, &mut |_, _| panic!("nothing is to be drawn")).unwrap();
        assert!(!plain.root.exists());
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let work = folder.path();
        write(&work.join("datasets"), "a file");
        let yaml = DatasetYaml::load_in("shapes", work).unwrap();
        let error = prepare(&yaml, &mut |_, _| {}).unwrap_err().to_string();
        assert!(error.contains("datasets/shapes: "), "{error}");
        assert_eq!(names(work), ["datasets"]);
    }

    #[test]
    fn the_built_in_set_is_drawn_once_and_read_without_a_word() {
        let folder = tempfile::tempdir().unwrap();
        let yaml = DatasetYaml::load_in("shapes", folder.path()).unwrap();
        let mut told = Vec::new();
        prepare(&yaml, &mut |done, total| told.push((done, total))).unwrap();
        let total = told[0].1;
        assert_eq!(told.last(), Some(&(total, total)));
        assert_eq!(names(&folder.path().join("datasets")), ["shapes"]);
        prepare(&yaml, &mut |_, _| panic!("it is there")).unwrap();
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
