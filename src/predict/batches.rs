//! The batches of a prediction: images that follow each other and have the same shape after resizing, each letterboxed as
//! validation does it with a batch of one. A file that cannot be read leaves an empty place; its neighbours do not notice.

use crate::data::batch::BatchImage;
use crate::data::decode::Rgb;
use crate::data::letterbox::{fitted, pad, placement, resize, validation_batches};
use crate::data::loader::LoaderError;
use crate::data::pipeline::{Plan, Sample};
use crate::data::{DecodeError, read_header, read_rgb};
use rayon::prelude::*;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Decoded pixels that the batches in flight may hold, unless one image is larger.
const PIXEL_BYTES: usize = 256 << 20;

/// What became of a file.
pub enum Read {
    /// The image as decoded, where it was to be kept.
    Image(Option<Rgb>),
    Bad(String),
}

pub struct PredictPlan {
    files: Vec<PathBuf>,
    /// Width and height of each upright image, or why its header cannot be read.
    sizes: Vec<Result<(u32, u32), String>>,
    batches: Vec<Part>,
    imgsz: usize,
    keep: bool,
    read: Vec<Mutex<Option<Read>>>,
}

/// Files of one batch, and their shape.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    files: Range<usize>,
    width: usize,
    height: usize,
}

/// How images become batches.
pub struct Shapes {
    pub imgsz: usize,
    /// Images of a batch.
    pub batch: usize,
    /// Rectangles as small as an image allows instead of squares.
    pub rect: bool,
    /// Threads that decode.
    pub workers: usize,
}

impl PredictPlan {
    /// Reads the headers of all files. With `keep` an image's own pixels are kept until [`take`](Self::take).
    pub fn new(files: Vec<PathBuf>, shapes: &Shapes, keep: bool) -> Self {
        let sizes: Vec<Result<(u32, u32), String>> = files
            .par_iter()
            .map(|file| read_header(file).map_err(|e| e.reason()))
            .collect();
        let limit = PIXEL_BYTES / (shapes.workers + 3);
        Self {
            batches: parts(&sizes, shapes, limit),
            read: files.iter().map(|_| Mutex::default()).collect(),
            files,
            sizes,
            imgsz: shapes.imgsz,
            keep,
        }
    }

    /// Width and height of an upright image; `None` where its header cannot be read.
    pub fn size(&self, file: usize) -> Option<(u32, u32)> {
        self.sizes[file].as_ref().ok().copied()
    }

    /// What became of a file; once its batch was made, and only once.
    pub fn take(&self, file: usize) -> Read {
        let mut read = self.read[file]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match (&self.sizes[file], read.take()) {
            (Err(reason), _) => Read::Bad(reason.clone()),
            (_, Some(read)) => read,
            (_, None) => Read::Image(None),
        }
    }

    /// The files of a batch.
    pub fn files(&self, batch: usize) -> Range<usize> {
        self.batches[batch].files.clone()
    }

    fn load(&self, file: usize, part: &Part) -> Result<(Rgb, Sample), String> {
        let expected = self.sizes[file].clone()?;
        let image = read_rgb(&self.files[file]).map_err(|e: DecodeError| e.reason())?;
        let size = (image.width, image.height);
        if size != (expected.0 as usize, expected.1 as usize) {
            return Err(format!(
                "it has {} x {} pixels now, {} x {} a moment ago",
                size.0, size.1, expected.0, expected.1
            ));
        }
        let (width, height) = fitted(size.0, size.1, self.imgsz);
        let resized = resize(&image, width, height)?;
        let (pixels, pads) = pad(&resized, part.width, part.height);
        let letterbox = placement(size, (width, height), pads);
        let sample = Sample {
            pixels,
            labels: vec![],
            image: BatchImage {
                index: file,
                letterbox,
            },
        };
        Ok((image, sample))
    }
}

impl Plan for PredictPlan {
    fn batches(&self) -> usize {
        self.batches.len()
    }

    fn shape(&self, batch: usize) -> (usize, usize) {
        (self.batches[batch].height, self.batches[batch].width)
    }

    fn images(&self, batch: usize) -> usize {
        self.batches[batch].files.len()
    }

    fn file(&self, batch: usize, slot: usize) -> PathBuf {
        self.files[self.batches[batch].files.start + slot].clone()
    }

    fn render(
        &self,
        batch: usize,
        slot: usize,
        _canvas: &mut Vec<u8>,
    ) -> Result<Sample, LoaderError> {
        let part = &self.batches[batch];
        let file = part.files.start + slot;
        let (read, sample) = match self.load(file, part) {
            Ok((image, sample)) => (Read::Image(self.keep.then_some(image)), sample),
            Err(reason) => {
                let empty = Sample {
                    pixels: vec![0; part.width * part.height * 3],
                    labels: vec![],
                    image: BatchImage {
                        index: file,
                        letterbox: crate::data::batch::Letterbox::IDENTITY,
                    },
                };
                (Read::Bad(reason), empty)
            }
        };
        *self.read[file]
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(read);
        Ok(sample)
    }
}

/// Cuts the files into batches. A file without a size goes with the ones before it.
fn parts(sizes: &[Result<(u32, u32), String>], shapes: &Shapes, limit: usize) -> Vec<Part> {
    let mut parts: Vec<Part> = vec![];
    let mut bytes = 0;
    for (file, size) in sizes.iter().enumerate() {
        let shape = size.as_ref().ok().map(|&size| {
            let one = &validation_batches(&[size], shapes.imgsz, 1, shapes.rect)[0];
            let bytes = size.0 as usize * size.1 as usize * 3;
            (one.width, one.height, bytes)
        });
        let fits = |part: &Part, bytes: usize| {
            part.files.len() < shapes.batch
                && shape.is_none_or(|(w, h, more)| {
                    (w, h) == (part.width, part.height) && bytes + more <= limit
                })
        };
        match parts.last_mut() {
            Some(part) if fits(part, bytes) => {
                part.files.end = file + 1;
                bytes += shape.map_or(0, |s| s.2);
            }
            _ => {
                // of a file that cannot be read any shape will do
                let (width, height, first) = shape.unwrap_or((32, 32, 0));
                parts.push(Part {
                    files: file..file + 1,
                    width,
                    height,
                });
                bytes = first;
            }
        }
    }
    parts
}

/// A plan as the loader's threads take it.
pub fn shared(plan: &Arc<PredictPlan>) -> Arc<dyn Plan> {
    plan.clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHAPES: Shapes = Shapes {
        imgsz: 320,
        batch: 3,
        rect: true,
        workers: 1,
    };

    #[test]
    fn neighbours_of_one_shape_share_a_batch() {
        let bad = || Err("broken".to_owned());
        let sizes = [
            Ok((640, 480)),
            bad(),
            Ok((320, 240)),
            Ok((640, 480)),
            Ok((480, 640)),
            bad(),
        ];
        let p = parts(&sizes, &SHAPES, usize::MAX);
        let ranges: Vec<Range<usize>> = p.iter().map(|p| p.files.clone()).collect();
        assert_eq!(ranges, [0..3, 3..4, 4..6]);
        assert_eq!((p[0].width, p[0].height), (352, 256));
        assert_eq!((p[2].width, p[2].height), (256, 352));
        let one = parts(&sizes, &SHAPES, 640 * 480 * 3);
        assert_eq!(one.len(), 4, "large images have batches of their own");
        let square = Shapes {
            rect: false,
            ..SHAPES
        };
        assert!(
            parts(&sizes, &square, usize::MAX)
                .iter()
                .all(|p| (p.width, p.height) == (320, 320))
        );
    }

    proptest! {
        #[test]
        fn every_file_is_in_one_batch_in_its_order(
            sizes in proptest::collection::vec(proptest::option::of((1u32..900, 1u32..900)), 0..20),
            batch in 1usize..5, limit in 1usize..2_000_000,
        ) {
            let sizes: Vec<Result<(u32, u32), String>> =
                sizes.into_iter().map(|s| s.ok_or_else(String::new)).collect();
            let parts = parts(&sizes, &Shapes { batch, ..SHAPES }, limit);
            let mut next = 0;
            for part in parts {
                prop_assert_eq!(part.files.start, next);
                prop_assert!(!part.files.is_empty() && part.files.len() <= batch);
                next = part.files.end;
            }
            prop_assert_eq!(next, sizes.len());
        }
    }
}
