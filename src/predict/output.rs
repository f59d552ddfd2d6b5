//! What is written about an image: the annotated image, its labels, its crops.

use super::PredictError;
use crate::config::Settings;
use crate::data::decode::Rgb;
use crate::eval::Detection;
use crate::report::draw::{Canvas, Lettering, Mark, Pen};
use crate::report::files::write_atomic;
use crate::report::six_digits;
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Writes into the folder of a run; may be used from many threads, as every image has names of its own.
pub struct Output<'a> {
    pub settings: &'a Settings,
    pub folder: PathBuf,
    /// By class.
    pub classes: &'a [String],
    lettering: Lettering,
    crop_folders: Vec<String>,
}

impl<'a> Output<'a> {
    pub fn new(settings: &'a Settings, folder: PathBuf, classes: &'a [String]) -> Self {
        Self {
            settings,
            folder,
            classes,
            lettering: Lettering::new(),
            crop_folders: folder_names(classes),
        }
    }

    /// Whether anything is written at all.
    pub fn is_asked(s: &Settings) -> bool {
        s.save || s.save_txt || s.save_json || s.save_crop
    }

    /// Whether the image's own pixels are needed.
    pub fn needs_pixels(s: &Settings) -> bool {
        s.save || s.save_crop
    }

    /// Writes what the settings ask for. `name` is that of the results, `image` the decoded image where it was needed.
    pub fn image(
        &self,
        name: &Path,
        image: Option<Rgb>,
        size: (u32, u32),
        found: &[Detection],
    ) -> Result<(), PredictError> {
        let s = self.settings;
        if s.save_txt && !found.is_empty() {
            let text = label_rows(found, size, s.save_conf);
            let path = with_extension(&self.folder.join("labels").join(name), "txt");
            self.write(&path, text.as_bytes())?;
        }
        let Some(image) = image else { return Ok(()) };
        let mut canvas = Canvas {
            width: image.width,
            height: image.height,
            pixels: image.pixels,
        };
        if s.save_crop {
            self.crops(name, &canvas, found)?;
        }
        if s.save {
            let pen = match s.line_width {
                Some(line) => Pen::with_line(line),
                None => Pen::for_image(canvas.width, canvas.height),
            };
            canvas.mark(&self.marks(found), pen, &self.lettering);
            let path = with_extension(&self.folder.join(name), "jpg");
            self.jpeg(&path, &canvas)?;
        }
        Ok(())
    }

    fn marks(&self, found: &[Detection]) -> Vec<Mark> {
        let s = self.settings;
        let name = |class: usize| match s.show_labels {
            true => self.classes[class].clone(),
            false => String::new(),
        };
        found
            .iter()
            .map(|d| Mark {
                xyxy: d.xyxy,
                class: d.class,
                name: name(d.class),
                score: s.show_conf.then_some(d.score),
            })
            .collect()
    }

    fn crops(&self, name: &Path, canvas: &Canvas, found: &[Detection]) -> Result<(), PredictError> {
        let mut of_class: HashMap<usize, usize> = HashMap::new();
        for d in found {
            let Some(crop) = canvas.cut(d.xyxy) else {
                continue;
            };
            let n = of_class.entry(d.class).or_default();
            *n += 1;
            let mut numbered = name.as_os_str().to_owned();
            if *n > 1 {
                numbered.push(format!("_{n}"));
            }
            let folder = self.folder.join("crops").join(&self.crop_folders[d.class]);
            self.jpeg(&with_extension(&folder.join(numbered), "jpg"), &crop)?;
        }
        Ok(())
    }

    fn jpeg(&self, path: &Path, canvas: &Canvas) -> Result<(), PredictError> {
        let bytes = canvas.to_jpeg().map_err(failed(path))?;
        self.write(path, &bytes)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), PredictError> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(failed(folder))?;
        }
        write_atomic(path, bytes).map_err(failed(path))
    }
}

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> PredictError + use<> {
    let path = path.to_owned();
    |source| PredictError::Write { path, source }
}

/// `a.b` becomes `a.b.txt`: names of results have no extension that could be replaced.
fn with_extension(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}

/// Rows `class x y width height [score]`: centre and sides of each box as parts of the image's sides.
fn label_rows(found: &[Detection], (width, height): (u32, u32), with_score: bool) -> String {
    let mut text = String::new();
    let (w, h) = (f64::from(width), f64::from(height));
    for d in found {
        let [x1, y1, x2, y2] = d.xyxy.map(f64::from);
        let numbers = [
            (x1 + x2) / 2.0 / w,
            (y1 + y2) / 2.0 / h,
            (x2 - x1) / w,
            (y2 - y1) / h,
            f64::from(d.score),
        ];
        let shown = &numbers[..if with_score { 5 } else { 4 }];
        // Writing to a String cannot fail.
        let _ = write!(text, "{}", d.class);
        for &number in shown {
            let _ = write!(text, " {}", six_digits(number));
        }
        text.push('\n');
    }
    text
}

/// A folder for each class: its name as far as a folder can have it, and all different.
fn folder_names(classes: &[String]) -> Vec<String> {
    let mut taken = HashSet::new();
    classes
        .iter()
        .enumerate()
        .map(|(class, name)| {
            let safe: String = name
                .chars()
                .take(80)
                .map(|c| match c {
                    '/' | '\\' | ':' | '*' | '?' | '"' | '<' | '>' | '|' => '_',
                    c if c.is_control() => '_',
                    c => c,
                })
                .collect();
            let safe = safe.trim().trim_matches('.').to_owned();
            let mut folder = if safe.is_empty() {
                class.to_string()
            } else {
                safe
            };
            while !taken.insert(folder.to_lowercase()) {
                folder = format!("{folder}-{class}");
            }
            folder
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_normalised_by_the_image_and_have_six_digits() {
        let found = [
            Detection {
                xyxy: [10.0, 20.0, 30.0, 60.0],
                score: 0.5,
                class: 2,
            },
            Detection {
                xyxy: [0.0, 0.0, 1.0, 200.0],
                score: 0.123_456_78,
                class: 0,
            },
        ];
        assert_eq!(
            label_rows(&found, (300, 200), true),
            "2 0.0666667 0.2 0.0666667 0.2 0.5\n0 0.00166667 0.5 0.00333333 1 0.123457\n"
        );
        assert!(
            label_rows(&found, (300, 200), false).starts_with("2 0.0666667 0.2 0.0666667 0.2\n")
        );
    }

    #[test]
    fn classes_have_folders_of_their_own_whatever_their_names() {
        let names = ["cat", "a/b", "..", "Cat", "", "Zürich Ost", "cat-3"].map(String::from);
        let folders = folder_names(&names);
        assert_eq!(
            folders,
            ["cat", "a_b", "2", "Cat-3", "4", "Zürich Ost", "cat-3-6"]
        );
    }

    #[test]
    fn points_in_names_stay() {
        assert_eq!(
            with_extension(Path::new("x/a.b"), "txt"),
            Path::new("x/a.b.txt")
        );
    }
}
