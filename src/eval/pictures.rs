//! Pictures of batches: what the network is trained on, and what it finds beside what is annotated.

use super::{Detection, Predictions};
use crate::data::Split;
use crate::data::batch::{Batch, BatchImage};
use crate::data::decode::Rgb;
use crate::data::letterbox::resize;
use crate::data::loader::Loader;
use crate::report::Console;
use crate::report::draw::{Canvas, Colour, Lettering, Mark, Pen};
use crate::report::files::write_atomic;
use rayon::prelude::*;
use std::path::Path;

/// Batches that are drawn at the beginning, and at the point where mosaic ends.
const BATCHES: usize = 3;
/// Images of a batch that are drawn.
const IMAGES: usize = 16;
/// Longest side of a picture in pixels.
const LONGEST: usize = 1920;
/// Detections with a score above this are drawn.
const SHOWN_ABOVE: f32 = 0.25;
const GAP: usize = 2;
const GROUND: Colour = [255; 3];

/// Why a picture is missing.
#[derive(Debug, thiserror::Error)]
enum PictureError {
    #[error("cannot be drawn: {0}")]
    Draw(String),
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Loader(#[from] crate::data::loader::LoaderError),
}

/// Draws the batches of a run into its folder. What cannot be drawn is a warning: no run ends for a picture.
pub struct BatchPictures<'a> {
    folder: &'a Path,
    split: &'a Split,
    console: &'a Console,
    lettering: Lettering,
}

impl<'a> BatchPictures<'a> {
    /// Pictures of batches of `split`.
    #[must_use]
    pub fn new(folder: &'a Path, split: &'a Split, console: &'a Console) -> Self {
        Self {
            folder,
            split,
            console,
            lettering: Lettering::new(),
        }
    }

    /// `train_batchN.jpg` of the first three batches of a run and of the epoch where mosaic ends (`mosaic_off_from`): the very
    /// pixels and boxes of `batch`, which is batch `i` of `batches` in `epoch`. N counts the batches of the run. Of other
    /// batches nothing.
    pub fn training(
        &self,
        (epoch, i): (usize, usize),
        batches: usize,
        mosaic_off_from: usize,
        batch: &Batch,
    ) {
        if i < BATCHES && (epoch == 0 || epoch == mosaic_off_from) {
            let name = format!("train_batch{}.jpg", epoch * batches + i);
            self.save(&name, || self.sheet(batch, |_| None));
        }
    }

    /// `val_batchN_labels.jpg` and `val_batchN_pred.jpg` of the first three validation batches, of `batch` images each.
    pub fn validation(&self, loader: &Loader, batch: usize, predictions: &Predictions) {
        for (n, made) in loader.val_batches(batch).take(BATCHES).enumerate() {
            let made = match made {
                Ok(made) => made,
                Err(e) => return self.warn(&format!("val_batch{n}_labels.jpg"), &e.into()),
            };
            self.save(&format!("val_batch{n}_labels.jpg"), || {
                self.sheet(&made, |_| None)
            });
            self.save(&format!("val_batch{n}_pred.jpg"), || {
                self.sheet(&made, |image| Some(predictions.of(image.index)))
            });
        }
    }

    fn save(&self, name: &str, draw: impl FnOnce() -> Result<Canvas, PictureError>) {
        let path = self.folder.join(name);
        let saved = draw()
            .and_then(|canvas| Ok(canvas.to_jpeg()?))
            .and_then(|bytes| Ok(write_atomic(&path, &bytes)?));
        if let Err(e) = saved {
            self.warn(name, &e);
        }
    }

    fn warn(&self, name: &str, e: &PictureError) {
        self.console.warn(format!("{name} is missing: {e}"));
    }

    /// The images of a batch side by side with their file names, and with what is `found` in them or else the boxes of the
    /// batch.
    fn sheet(
        &self,
        batch: &Batch,
        found: impl Fn(&BatchImage) -> Option<Vec<Detection>> + Sync,
    ) -> Result<Canvas, PictureError> {
        let shown = batch.len().min(IMAGES);
        let grid = Grid::new(shown, batch.width, batch.height);
        let pen = Pen::for_image(grid.width, grid.height);
        let tiles: Vec<Canvas> = (0..shown)
            .into_par_iter()
            .map(|i| {
                let image = &batch.images[i];
                let mut tile = grid.tile(batch, i)?;
                let marks = match found(image) {
                    Some(detections) => self.detected(image, &detections, &grid),
                    None => self.annotated(batch, i, &grid),
                };
                tile.mark(&marks, pen, &self.lettering);
                let name = &self.split.images[image.index].file_name;
                let name = name.rsplit('/').next().unwrap_or(name);
                tile.title(name, (0, 0), grid.width, pen.font, &self.lettering);
                Ok(tile)
            })
            .collect::<Result<_, PictureError>>()?;
        Ok(grid.joined(&tiles))
    }

    fn annotated(&self, batch: &Batch, image: usize, grid: &Grid) -> Vec<Mark> {
        let of_image = batch.boxes.iter().filter(|b| b.image == image);
        of_image
            .map(|b| self.mark(b.xyxy, b.class, None, grid))
            .collect()
    }

    fn detected(&self, image: &BatchImage, detections: &[Detection], grid: &Grid) -> Vec<Mark> {
        let shown = detections.iter().filter(|d| d.score > SHOWN_ABOVE);
        shown
            .map(|d| {
                let xyxy = image.letterbox.to_letterboxed(d.xyxy);
                self.mark(xyxy, d.class, Some(d.score), grid)
            })
            .collect()
    }

    fn mark(&self, xyxy: [f32; 4], class: usize, score: Option<f32>, grid: &Grid) -> Mark {
        Mark {
            xyxy: xyxy.map(|v| v * grid.scale),
            class,
            name: self.split.names.get(class).cloned().unwrap_or_default(),
            score,
        }
    }
}

/// Equal tiles in rows.
struct Grid {
    columns: usize,
    rows: usize,
    /// Of a tile, in pixels.
    width: usize,
    height: usize,
    /// Pixels of a tile per pixel of its image.
    scale: f32,
}

impl Grid {
    /// For `tiles` images of `width` x `height` pixels: as square as can be, in full size unless the picture would get too large.
    fn new(tiles: usize, width: usize, height: usize) -> Self {
        let columns = (1..).find(|c| c * c >= tiles).unwrap_or(1);
        let rows = tiles.div_ceil(columns.max(1));
        let room = |n: usize| (LONGEST - GAP * n.saturating_sub(1)) as f32 / n.max(1) as f32;
        let scale = (room(columns) / width as f32)
            .min(room(rows) / height as f32)
            .min(1.0);
        let side = |pixels: usize| ((pixels as f32 * scale) as usize).max(1);
        Self {
            columns,
            rows,
            width: side(width),
            height: side(height),
            scale,
        }
    }

    /// The pixels of image `i`.
    fn tile(&self, batch: &Batch, i: usize) -> Result<Canvas, PictureError> {
        let size = batch.width * batch.height * 3;
        let pixels = batch.pixels[i * size..(i + 1) * size].to_vec();
        let image = Rgb {
            width: batch.width,
            height: batch.height,
            pixels,
        };
        let Rgb { pixels, .. } =
            resize(&image, self.width, self.height).map_err(PictureError::Draw)?;
        Ok(Canvas {
            width: self.width,
            height: self.height,
            pixels,
        })
    }

    fn joined(&self, tiles: &[Canvas]) -> Canvas {
        let side = |n: usize, pixels: usize| n * (pixels + GAP) - GAP.min(n * GAP);
        let mut sheet = Canvas::new(
            side(self.columns, self.width),
            side(self.rows, self.height),
            GROUND,
        );
        for (i, tile) in tiles.iter().enumerate() {
            let (column, row) = (i % self.columns, i / self.columns);
            let at = (column * (self.width + GAP), row * (self.height + GAP));
            sheet.paste(tile, at);
        }
        sheet
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::batch::{BatchBox, Letterbox};
    use crate::eval::testing::{image, split};
    use crate::report::draw::class_colour;

    fn batch(n: usize, width: usize, height: usize) -> Batch {
        Batch {
            height,
            width,
            input: (height, width),
            pixels: vec![90; n * width * height * 3],
            images: (0..n)
                .map(|index| BatchImage {
                    index,
                    letterbox: Letterbox::IDENTITY,
                })
                .collect(),
            boxes: (0..n)
                .map(|image| BatchBox {
                    image,
                    class: 0,
                    xyxy: [20.0, 40.0, 60.0, 90.0],
                })
                .collect(),
        }
    }

    #[test]
    fn a_grid_is_as_square_as_can_be_and_within_its_limit() {
        for (n, w, h, columns, rows) in [
            (1, 640, 640, 1, 1),
            (2, 640, 640, 2, 1),
            (5, 640, 352, 3, 2),
            (16, 640, 640, 4, 4),
            (16, 4096, 32, 4, 4),
        ] {
            let g = Grid::new(n, w, h);
            assert_eq!((g.columns, g.rows), (columns, rows), "{n}");
            let sheet = g.joined(&vec![Canvas::new(g.width, g.height, [0; 3]); n]);
            assert!(sheet.width <= LONGEST && sheet.height <= LONGEST);
        }
        let small = Grid::new(4, 100, 80);
        assert_eq!((small.width, small.height, small.scale), (100, 80, 1.0));
    }

    #[test]
    fn the_first_three_batches_and_three_where_mosaic_ends_are_drawn_by_their_number_in_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let split = split(&[0], (0..4).map(|i| image(i, vec![])).collect());
        let console = Console::silent();
        let p = BatchPictures::new(folder.path(), &split, &console);
        for epoch in 0..4 {
            for i in 0..5 {
                p.training((epoch, i), 5, 2, &batch(4, 128, 96));
            }
        }
        let mut names: Vec<String> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let expected = [0, 1, 10, 11, 12, 2].map(|n| format!("train_batch{n}.jpg"));
        assert_eq!(names, expected);
        let read = image::open(folder.path().join("train_batch0.jpg"))
            .unwrap()
            .to_rgb8();
        assert_eq!(read.dimensions(), (2 * 128 + 2, 2 * 96 + 2));
        // the left side of the last tile's box
        let (x, y) = (130 + 20, 98 + 70);
        let near = |a: u8, b: u8| a.abs_diff(b) < 60;
        let pixel = read.get_pixel(x, y).0;
        let colour = class_colour(0);
        assert!((0..3).all(|c| near(pixel[c], colour[c])), "{pixel:?}");
        assert!((0..3).all(|c| near(read.get_pixel(x + 20, y).0[c], 90)));
    }

    #[test]
    fn a_picture_that_cannot_be_written_is_a_warning() {
        let split = split(&[0], vec![image(0, vec![])]);
        let console = Console::silent();
        let p = BatchPictures::new(Path::new("/nowhere/at/all"), &split, &console);
        p.training((0, 0), 1, 1, &batch(1, 64, 64));
    }
}
