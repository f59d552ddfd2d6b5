//! What has to happen before a data set's files are looked at: the generated set is drawn once.

use std::fs;
use std::io;
use std::path::Path;

use super::{DataError, shapes};
use crate::config::dataset::{DatasetYaml, Generator};

/// Draws the data set of `generate: shapes` into its folder if that is missing; otherwise does nothing.
///
/// `progress` is called with the images done and their total. The set is drawn beside its place and moved
/// there when complete, so that an interrupted run leaves no half of it.
///
/// # Errors
/// [`DataError::Generate`] when files cannot be written.
pub fn prepare(
    yaml: &DatasetYaml,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<(), DataError> {
    match yaml.generate {
        Some(Generator::Shapes) if !yaml.root.exists() => generate(&yaml.root, |dir| {
            shapes::generate(dir, progress)
        })
        .map_err(|source| DataError::Generate {
            path: yaml.root.clone(),
            source,
        }),
        _ => Ok(()),
    }
}

/// Runs `draw` on a folder beside `root` and moves that there.
fn generate(root: &Path, draw: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let name = root
        .file_name()
        .ok_or_else(|| io::Error::other("`path` names no folder"))?;
    let parent = root.parent().unwrap_or(Path::new(""));
    if !parent.as_os_str().is_empty() {
        fs::create_dir_all(parent)?;
    }
    // The process id keeps two runs that start at once apart; the one that ends later finds the set there.
    let partial = parent.join(format!(
        ".{}.partial-{}",
        name.to_string_lossy(),
        std::process::id()
    ));
    let drawn = draw(&partial).and_then(|()| match fs::rename(&partial, root) {
        Err(_) if root.is_dir() => Ok(()),
        moved => moved,
    });
    // Our own folder, under a name that only this process uses: gone already when it was moved.
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::test_support::write;

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
    fn the_set_is_moved_to_its_place_when_complete() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("datasets/shapes");
        let draw = |dir: &Path| {
            assert!(!root.exists());
            write(&dir.join("images/train/a.txt"), "a");
            Ok(())
        };
        generate(&root, draw).unwrap();
        assert_eq!(names(root.parent().unwrap()), ["shapes"]);
        assert_eq!(names(&root), ["images"]);

        let other = folder.path().join("datasets/other");
        let fail = |dir: &Path| {
            write(&dir.join("half"), "");
            Err(io::Error::other("disk full"))
        };
        assert!(generate(&other, fail).is_err());
        assert_eq!(names(root.parent().unwrap()), ["shapes"]);

        // Another process was faster: its set is used.
        let late = folder.path().join("datasets/late");
        let raced = |dir: &Path| {
            write(&dir.join("ours"), "");
            write(&late.join("theirs"), "");
            Ok(())
        };
        generate(&late, raced).unwrap();
        assert_eq!(names(&late), ["theirs"]);
    }
}
