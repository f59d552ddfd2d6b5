//! Stub of the contract's decoder (owner: data-formats).
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    #[error("{file}: {reason}")]
    Unreadable { file: PathBuf, reason: String },
}

pub struct Rgb {
    pub width: usize,
    pub height: usize,
    pub pixels: Vec<u8>,
}

pub fn read_rgb(path: &Path) -> Result<Rgb, DecodeError> {
    let image = image::open(path)
        .map_err(|e| DecodeError::Unreadable {
            file: path.to_path_buf(),
            reason: e.to_string(),
        })?
        .into_rgb8();
    Ok(Rgb {
        width: image.width() as usize,
        height: image.height() as usize,
        pixels: image.into_raw(),
    })
}
