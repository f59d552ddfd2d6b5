//! Pictures of a run: losses and figures over epochs, labels, curves, confusion matrix.
//!
//! Each module takes plain numbers and returns a [`Picture`], an SVG; [`Picture::save`] draws it with
//! [`raster`]. Units are pixels of the finished file, so that 12 is the height of small print everywhere.
//!
//! Lines have the colours of Okabe and Ito, which people with any colour vision tell apart, and dashes where there are
//! more lines than colours; heat maps have one hue whose lightness falls evenly.

mod axes;
pub mod colour;
pub mod confusion;
pub mod curves;
pub mod heat;
pub mod labels;
pub mod results;
pub mod smooth;
pub mod svg;
#[cfg(test)]
mod testing;
pub mod ticks;

use super::files::write_atomic;
use super::raster::{self, RasterError};
use std::io;
use std::path::{Path, PathBuf};

/// Why a picture is not there.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    #[error("cannot draw {}: {source}", path.display())]
    Raster { path: PathBuf, source: RasterError },
    #[error("cannot write {source}")]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A table of results that is none.
    #[error("cannot draw {}: line {line}: {reason}", path.display())]
    Table {
        path: PathBuf,
        line: usize,
        reason: String,
    },
}

/// How a class is named in pictures: by its name; with its number where the name alone would not tell it from others,
/// because it is blank or has characters that the font draws as boxes.
#[must_use]
pub fn class_label(class: usize, name: &str) -> String {
    if name.trim().is_empty() {
        format!("class {class}")
    } else if raster::has_glyphs(name) {
        name.to_string()
    } else {
        format!("{class}: {name}")
    }
}

/// A finished drawing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    pub svg: String,
    /// Pixels.
    pub width: u32,
    pub height: u32,
}

/// JPEG quality: text stays sharp.
const QUALITY: u8 = 92;

impl Picture {
    /// Writes the picture, as JPEG where the name ends in `.jpg`, else as PNG.
    ///
    /// # Errors
    /// [`PlotError::Raster`], [`PlotError::Write`].
    pub fn save(&self, path: &Path) -> Result<(), PlotError> {
        let jpeg = path.extension().is_some_and(|e| e == "jpg");
        let bytes = raster::render(&self.svg, self.width, self.height)
            .and_then(|p| if jpeg { p.to_jpeg(QUALITY) } else { p.to_png() })
            .map_err(|source| PlotError::Raster {
                path: path.into(),
                source,
            })?;
        write_atomic(path, &bytes).map_err(|source| PlotError::Write {
            path: path.into(),
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_can_be_told_from_one_another_whatever_their_names() {
        assert_eq!(class_label(3, "red <cell>"), "red <cell>");
        assert_eq!(class_label(3, "خلايا"), "خلايا");
        assert_eq!(class_label(3, "红细胞"), "3: 红细胞");
        assert_eq!(class_label(3, " "), "class 3");
    }

    #[test]
    fn the_file_name_decides_the_format_and_errors_name_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let picture = svg::Svg::new(20, 10).finish();
        for (name, format) in [
            ("a.png", image::ImageFormat::Png),
            ("a.jpg", image::ImageFormat::Jpeg),
        ] {
            let path = folder.path().join(name);
            picture.save(&path).unwrap();
            let bytes = std::fs::read(&path).unwrap();
            assert_eq!(image::guess_format(&bytes).unwrap(), format);
        }
        let e = picture.save(&folder.path().join("no/a.png")).unwrap_err();
        assert!(
            matches!(e, PlotError::Write { .. }) && e.to_string().contains("no/a.png"),
            "{e}"
        );
        let huge = svg::Svg::new(20_000, 10).finish();
        let e = huge.save(&folder.path().join("b.png")).unwrap_err();
        assert!(
            e.to_string()
                .contains("b.png: a picture of 20000x10 pixels"),
            "{e}"
        );
    }
}
