//! Files beside the checkout that only some machines have.

use std::path::PathBuf;

/// A folder of the shared material, or a line that says why the test is skipped.
pub fn shared(folder: &str) -> Option<PathBuf> {
    let root = std::env::var_os("YOLO_TRAIN_SHARED").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared")),
        PathBuf::from,
    );
    let path = root.join(folder);
    if path.is_dir() {
        return Some(path);
    }
    eprintln!("skipped: {} is not here", path.display());
    None
}
