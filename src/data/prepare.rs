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
        Some(Generator::Shapes) if !yaml.root.exists() => {
            generate(&yaml.root, progress).map_err(|source| DataError::Generate {
                path: yaml.root.clone(),
                source,
            })
        }
        _ => Ok(()),
    }
}

fn generate(root: &Path, progress: &mut dyn FnMut(usize, usize)) -> io::Result<()> {
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
    let drawn =
        shapes::generate(&partial, progress).and_then(|()| match fs::rename(&partial, root) {
            Err(_) if root.is_dir() => Ok(()),
            moved => moved,
        });
    // Our own folder, under a name that only this process uses: gone already when it was moved.
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    drawn
}
