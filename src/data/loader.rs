//! Training and validation batches of a split.

use std::path::PathBuf;
use std::sync::Arc;

use super::augment::{AugmentConfig, Augmenter, Counter, Source};
use super::batch::{BatchImage, Letterbox};
use super::cache::{Decode, ImageCache};
use super::decode::{Rgb, read_rgb};
use super::letterbox::{ValidationBatch, pad, placement, validation_batches};
pub use super::pipeline::{Batches, LoaderError};
use super::pipeline::{Plan, Sample};
use super::sampler::{STRIDE, Sampler, Shard, step_size};
use super::{LabelBox, Split};

/// What a loader needs to know.
#[derive(Debug, Clone, PartialEq)]
pub struct LoaderConfig {
    /// Long side of the images in pixels, a multiple of 32.
    pub imgsz: usize,
    /// Images of a global training batch.
    pub batch: usize,
    pub seed: u64,
    /// Leave out an epoch's last batch where it is incomplete.
    pub drop_last: bool,
    pub augment: AugmentConfig,
    /// First epoch without mosaic, mixup and cutmix; see [`mosaic_off_from`](super::sampler::mosaic_off_from).
    pub mosaic_off_from: usize,
    /// Sizes of training batches differ by up to this share of `imgsz`.
    pub multi_scale: f64,
    /// Rectangular validation batches.
    pub rect: bool,
    /// Worker threads; 0 makes batches in the caller.
    pub workers: usize,
    /// Bound on the pixels that are kept decoded, at the size of the pipeline.
    pub cache_bytes: usize,
    /// The part of every training batch that this process holds.
    pub shard: Shard,
}

/// Holds the window of mosaic's partners at 640 pixels with room to spare.
pub const DEFAULT_CACHE_BYTES: usize = 256 << 20;

impl Default for LoaderConfig {
    fn default() -> Self {
        LoaderConfig {
            imgsz: 640,
            batch: 16,
            seed: 0,
            drop_last: false,
            augment: AugmentConfig::default(),
            mosaic_off_from: usize::MAX,
            multi_scale: 0.0,
            rect: true,
            workers: 0,
            cache_bytes: DEFAULT_CACHE_BYTES,
            shard: Shard::WHOLE,
        }
    }
}

/// Makes the batches of one split.
pub struct Loader {
    split: Arc<Split>,
    cache: Arc<ImageCache>,
    config: LoaderConfig,
}

impl Loader {
    /// Fails on a configuration with which no batch can be made.
    pub fn new(split: Arc<Split>, config: LoaderConfig) -> Result<Self, LoaderError> {
        Self::with_decode(split, config, Box::new(read_rgb))
    }

    /// As [`new`](Self::new), with another way to read an image's pixels.
    pub fn with_decode(
        split: Arc<Split>,
        config: LoaderConfig,
        decode: Box<Decode>,
    ) -> Result<Self, LoaderError> {
        let wrong = |setting, value: String, need| {
            Err(LoaderError::Config {
                setting,
                value,
                need,
            })
        };
        if config.batch == 0 {
            return wrong("batch", "0".into(), "at least one image is needed");
        }
        if config.imgsz == 0 || !config.imgsz.is_multiple_of(STRIDE) {
            return wrong(
                "imgsz",
                config.imgsz.to_string(),
                "a positive multiple of 32 is needed",
            );
        }
        if config.shard.index >= config.shard.count {
            return wrong(
                "shard",
                format!("{} of {}", config.shard.index, config.shard.count),
                "the index is counted from 0",
            );
        }
        let cache = ImageCache::new(split.clone(), config.imgsz, config.cache_bytes, decode);
        Ok(Loader {
            split,
            cache: Arc::new(cache),
            config,
        })
    }

    /// The order and cut of training batches.
    pub fn sampler(&self) -> Sampler {
        Sampler {
            images: self.split.images.len(),
            batch: self.config.batch,
            seed: self.config.seed,
            drop_last: self.config.drop_last,
        }
    }

    /// Changes the first epoch without mosaic.
    pub fn set_mosaic_off_from(&mut self, epoch: usize) {
        self.config.mosaic_off_from = epoch;
    }

    /// Global batches of an epoch.
    pub fn batches_per_epoch(&self) -> usize {
        self.sampler().batches()
    }

    /// Images of a global training batch, over all shards.
    pub fn global_batch_len(&self, batch: usize) -> usize {
        self.sampler().positions(batch).len()
    }

    /// The training batches of an epoch (from 0), from `first_batch` on; what they contain does not depend on where one
    /// starts, on the number of workers, or on what was read before. Ends after the first error.
    pub fn train_epoch(&self, epoch: usize, first_batch: usize) -> Batches {
        let sampler = self.sampler();
        let augment = if epoch < self.config.mosaic_off_from {
            self.config.augment
        } else {
            self.config.augment.without_mosaic()
        };
        let plan = TrainPlan {
            split: self.split.clone(),
            source: EpochSource {
                split: self.split.clone(),
                cache: self.cache.clone(),
                order: sampler.order(epoch),
            },
            sampler,
            augment,
            epoch,
            config: self.config.clone(),
        };
        Batches::new(Arc::new(plan), first_batch, self.config.workers)
    }

    /// The split's images in a fixed order, letterboxed, `batch` at a time; boxes are the training labels at that size.
    pub fn val_batches(&self, batch: usize) -> Batches {
        self.val_batches_of(batch, 0, 1)
    }

    /// The part of [`val_batches`](Self::val_batches) that `rank` of `ranks` validates: of B batches those from
    /// floor(rank B / ranks) to floor((rank + 1) B / ranks), with the very content that they have on one rank. It may
    /// be empty.
    pub fn val_batches_of(&self, batch: usize, rank: usize, ranks: usize) -> Batches {
        let sizes: Vec<(u32, u32)> = self
            .split
            .images
            .iter()
            .map(|entry| (entry.width, entry.height))
            .collect();
        let mut batches = validation_batches(&sizes, self.config.imgsz, batch, self.config.rect);
        let n = batches.len();
        batches.truncate((rank + 1) * n / ranks);
        batches.drain(..(rank * n / ranks).min(batches.len()));
        let plan = ValidationPlan {
            batches,
            split: self.split.clone(),
            cache: self.cache.clone(),
        };
        Batches::new(Arc::new(plan), 0, self.config.workers)
    }

    /// Bytes of decoded pixels that are kept now.
    pub fn cached_bytes(&self) -> usize {
        self.cache.bytes()
    }
}

/// The images of a split in an epoch's order.
struct EpochSource {
    split: Arc<Split>,
    cache: Arc<ImageCache>,
    order: Vec<usize>,
}

impl Source for EpochSource {
    type Error = LoaderError;

    fn image(&self, position: usize) -> Result<(Arc<Rgb>, Vec<LabelBox>), LoaderError> {
        let index = self.order[position];
        let image = self.cache.get(index)?;
        let entry = &self.split.images[index];
        let original = (entry.width as usize, entry.height as usize);
        let place = placement(original, (image.width, image.height), [0, 0]);
        Ok((image, placed(&entry.labels, &place)))
    }
}

fn placed(labels: &[LabelBox], letterbox: &Letterbox) -> Vec<LabelBox> {
    labels
        .iter()
        .map(|label| LabelBox {
            class: label.class,
            xyxy: letterbox.to_letterboxed(label.xyxy),
        })
        .collect()
}

struct TrainPlan {
    split: Arc<Split>,
    source: EpochSource,
    sampler: Sampler,
    augment: AugmentConfig,
    epoch: usize,
    config: LoaderConfig,
}

impl TrainPlan {
    fn position(&self, batch: usize, slot: usize) -> usize {
        self.config.shard.of(self.sampler.positions(batch)).start + slot
    }
}

impl Plan for TrainPlan {
    fn batches(&self) -> usize {
        self.sampler.batches()
    }

    fn shape(&self, _: usize) -> (usize, usize) {
        (self.config.imgsz, self.config.imgsz)
    }

    fn input(&self, batch: usize) -> (usize, usize) {
        let c = &self.config;
        let size = step_size(c.seed, self.epoch, batch, c.imgsz, c.multi_scale);
        (size, size)
    }

    fn images(&self, batch: usize) -> usize {
        self.config.shard.of(self.sampler.positions(batch)).len()
    }

    fn file(&self, batch: usize, slot: usize) -> PathBuf {
        let index = self.source.order[self.position(batch, slot)];
        self.split.images[index].path.clone()
    }

    fn render(
        &self,
        batch: usize,
        slot: usize,
        canvas: &mut Vec<u8>,
    ) -> Result<Sample, LoaderError> {
        let position = self.position(batch, slot);
        let augmenter = Augmenter {
            config: &self.augment,
            source: &self.source,
            images: self.sampler.images,
            side: self.config.imgsz,
        };
        let counter = Counter {
            seed: self.config.seed,
            epoch: self.epoch,
            position,
        };
        let picture = augmenter.sample(counter, canvas)?;
        Ok(Sample {
            pixels: picture.pixels,
            labels: picture.labels,
            image: BatchImage {
                index: self.source.order[position],
                letterbox: Letterbox::IDENTITY,
            },
        })
    }
}

struct ValidationPlan {
    split: Arc<Split>,
    cache: Arc<ImageCache>,
    batches: Vec<ValidationBatch>,
}

impl Plan for ValidationPlan {
    fn batches(&self) -> usize {
        self.batches.len()
    }

    fn shape(&self, batch: usize) -> (usize, usize) {
        (self.batches[batch].height, self.batches[batch].width)
    }

    fn images(&self, batch: usize) -> usize {
        self.batches[batch].images.len()
    }

    fn file(&self, batch: usize, slot: usize) -> PathBuf {
        self.split.images[self.batches[batch].images[slot]]
            .path
            .clone()
    }

    fn render(
        &self,
        batch: usize,
        slot: usize,
        _canvas: &mut Vec<u8>,
    ) -> Result<Sample, LoaderError> {
        let shape = &self.batches[batch];
        let index = shape.images[slot];
        let entry = &self.split.images[index];
        let image = self.cache.get(index)?;
        let (pixels, pads) = pad(&image, shape.width, shape.height);
        let original = (entry.width as usize, entry.height as usize);
        let letterbox = placement(original, (image.width, image.height), pads);
        Ok(Sample {
            pixels,
            labels: placed(&entry.labels, &letterbox),
            image: BatchImage { index, letterbox },
        })
    }
}

#[cfg(test)]
#[path = "loader_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "loader_looks.rs"]
mod looks;
