//! What the results of each file are called.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Names of results without extension, one per file, relative to the folder of the run, all different (also where upper and
/// lower case are the same).
///
/// A file's own name without its extension, where these differ. Otherwise results lie in folders as their files do, below
/// the deepest folder that has all of them; and where `a.jpg` and `a.png` share a folder, they are `a.jpg` and `a.png`.
pub fn result_names(files: &[PathBuf]) -> Vec<PathBuf> {
    let flat: Vec<PathBuf> = files.iter().map(|f| stem(f)).collect();
    if distinct(&flat) {
        return flat;
    }
    let folders: Vec<PathBuf> = files.iter().map(|f| folder_of(f)).collect();
    let common = common_folder(&folders);
    let below = |i: usize, name: &Path| {
        let relative = folders[i].strip_prefix(&common).unwrap_or(&folders[i]);
        // a path of the run's folder, never out of it
        let parts = relative
            .components()
            .filter(|c| matches!(c, Component::Normal(_)));
        parts.collect::<PathBuf>().join(name)
    };
    let nested: Vec<PathBuf> = (0..files.len()).map(|i| below(i, &flat[i])).collect();
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for name in &nested {
        *times.entry(folded(name)).or_default() += 1;
    }
    let mut taken = HashSet::new();
    (0..files.len())
        .map(|i| {
            let whole = files[i].file_name().map_or(flat[i].clone(), PathBuf::from);
            let first = match times[&folded(&nested[i])] {
                1 => nested[i].clone(),
                _ => below(i, &whole),
            };
            let numbered = (2..).map(|n| {
                let mut name = first.clone().into_os_string();
                name.push(format!("-{n}"));
                PathBuf::from(name)
            });
            std::iter::once(first.clone())
                .chain(numbered)
                .find(|name| taken.insert(folded(name)))
                .expect("there is always another number")
        })
        .collect()
}

fn stem(file: &Path) -> PathBuf {
    file.file_stem().map(PathBuf::from).unwrap_or_default()
}

fn folded(name: &Path) -> String {
    name.to_string_lossy().to_lowercase()
}

fn distinct(names: &[PathBuf]) -> bool {
    let mut seen = HashSet::new();
    names.iter().all(|n| seen.insert(folded(n)))
}

/// Absolute and without `..` and links, where it exists.
fn folder_of(file: &Path) -> PathBuf {
    let folder = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    fs::canonicalize(folder)
        .or_else(|_| std::path::absolute(folder))
        .unwrap_or_else(|_| folder.to_owned())
}

fn common_folder(folders: &[PathBuf]) -> PathBuf {
    let mut common = folders.first().cloned().unwrap_or_default();
    for folder in folders {
        while !folder.starts_with(&common) {
            if !common.pop() {
                return PathBuf::new();
            }
        }
    }
    common
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(files: &[&str]) -> Vec<String> {
        let files: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
        let names = result_names(&files);
        names.iter().map(|n| n.display().to_string()).collect()
    }

    #[test]
    fn different_names_lie_side_by_side_wherever_their_files_lie() {
        assert_eq!(
            names(&["x/a.jpg", "y/b.c.png", "ü d.jpg"]),
            ["a", "b.c", "ü d"]
        );
    }

    #[test]
    fn equal_names_lie_in_folders_as_their_files_do() {
        assert_eq!(
            names(&["/nn/s/x/a.jpg", "/nn/s/y/a.jpg", "/nn/s/b.jpg"]),
            ["x/a", "y/a", "b"]
        );
    }

    #[test]
    fn equal_names_in_one_folder_keep_their_extension() {
        assert_eq!(
            names(&["/nn/a.jpg", "/nn/a.png", "/nn/A.bmp", "/nn/b.jpg"]),
            ["a.jpg", "a.png", "A.bmp", "b"]
        );
        assert_eq!(
            names(&["/nn/a.jpg", "/nn/a.png", "/nn/a.png.tif"]),
            ["a.jpg", "a.png", "a.png-2"]
        );
    }

    proptest! {
        #[test]
        fn names_are_always_different_and_inside(
            files in proptest::collection::vec("(/[abAB]{1,2}){0,3}/(\\.\\./)?[abAB](\\.[ab]){0,2}", 1..12)
        ) {
            let files: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
            let names = result_names(&files);
            prop_assert!(distinct(&names), "{:?}", names);
            for name in names {
                prop_assert!(name.components().all(|c| matches!(c, Component::Normal(_))), "{:?}", name);
            }
        }
    }
}
