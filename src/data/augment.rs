//! One training sample: mosaic or letterbox, affine, mixup, cutmix, colour, flips, in the incumbent's order.

use super::LabelBox;
use super::decode::Rgb;
use super::geometry::{AffineDraw, transform_labels};
use super::mix::{Picture, cutmix, mixup};
use super::mosaic::{self, Piece};
use super::random::{Draws, Stream, rng};
use super::sampler::partner_window;
use super::{hsv, warp};

/// Strengths and probabilities of augmentation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AugmentConfig {
    /// Hue shift, up to this share of the full circle to either side.
    pub hsv_h: f64,
    /// Saturation factor in `1 - s ..= 1 + s`.
    pub hsv_s: f64,
    /// Value factor in `1 - v ..= 1 + v`.
    pub hsv_v: f64,
    /// Rotation up to this many degrees to either side.
    pub degrees: f64,
    /// Shift up to this share of the image size to either side.
    pub translate: f64,
    /// Lowest and highest scale factor: (0.5, 1.5) for a `scale` of 0.5.
    pub scale: (f64, f64),
    /// Shear up to this many degrees to either side, per axis.
    pub shear: f64,
    /// Perspective up to this much per pixel, per axis.
    pub perspective: f64,
    /// Probabilities.
    pub flipud: f64,
    pub fliplr: f64,
    pub mosaic: f64,
    pub mixup: f64,
    pub cutmix: f64,
}

impl Default for AugmentConfig {
    /// The defaults of the command line.
    fn default() -> Self {
        AugmentConfig {
            hsv_h: 0.015,
            hsv_s: 0.7,
            hsv_v: 0.4,
            translate: 0.1,
            scale: (0.5, 1.5),
            fliplr: 0.5,
            mosaic: 1.0,
            ..AugmentConfig::NONE
        }
    }
}

impl AugmentConfig {
    /// Letterboxed images as they are.
    pub const NONE: AugmentConfig = AugmentConfig {
        hsv_h: 0.0,
        hsv_s: 0.0,
        hsv_v: 0.0,
        degrees: 0.0,
        translate: 0.0,
        scale: (1.0, 1.0),
        shear: 0.0,
        perspective: 0.0,
        flipud: 0.0,
        fliplr: 0.0,
        mosaic: 0.0,
        mixup: 0.0,
        cutmix: 0.0,
    };

    /// As in the last epochs: without what joins several images.
    pub fn without_mosaic(self) -> Self {
        AugmentConfig {
            mosaic: 0.0,
            mixup: 0.0,
            cutmix: 0.0,
            ..self
        }
    }
}

/// Where images come from.
pub trait Source {
    type Error;
    /// The image at a position of the epoch's order, resized so that its long side is the image size, with its boxes at
    /// that size.
    fn image(&self, position: usize) -> Result<(std::sync::Arc<Rgb>, Vec<LabelBox>), Self::Error>;
}

/// What identifies a sample: every choice in it is a pure function of these three and the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counter {
    pub seed: u64,
    pub epoch: usize,
    /// Position in the epoch's order over the global batches.
    pub position: usize,
}

impl Counter {
    fn rng(&self, stream: Stream) -> impl Draws + use<> {
        rng(self.seed, self.epoch as u64, self.position as u64, stream)
    }
}

/// Makes samples; keeps buffers between them.
pub struct Augmenter<'a, S> {
    pub config: &'a AugmentConfig,
    pub source: &'a S,
    /// Images in the epoch.
    pub images: usize,
    /// Side of the output, which is square.
    pub side: usize,
}

impl<S: Source> Augmenter<'_, S> {
    /// The sample of `counter`: `[side, side, 3]` RGB and boxes inside it. `canvas` is a buffer to reuse.
    pub fn sample(&self, counter: Counter, canvas: &mut Vec<u8>) -> Result<Picture, S::Error> {
        let config = self.config;
        let own = counter.position;
        let mut picture = self.base(counter, own, Stream::Mosaic, Stream::Affine, canvas)?;

        let mut random = counter.rng(Stream::MixUp);
        if random.coin(config.mixup) {
            let partner = self.partner(own, &mut random);
            let share = random.beta_symmetric(32);
            let other = self.base(
                counter,
                partner,
                Stream::MixUpMosaic,
                Stream::MixUpAffine,
                canvas,
            )?;
            mixup(&mut picture, &other, share);
        }

        let mut random = counter.rng(Stream::CutMix);
        if random.coin(config.cutmix) {
            let partner = self.partner(own, &mut random);
            let other = self.base(
                counter,
                partner,
                Stream::CutMixMosaic,
                Stream::CutMixAffine,
                canvas,
            )?;
            cutmix(&mut picture, &other, self.side, &mut random);
        }

        let mut random = counter.rng(Stream::Hsv);
        let mut gain = |strength: f64| random.uniform(-1.0, 1.0) * strength;
        let (hue, saturation, value) = (
            gain(config.hsv_h),
            1.0 + gain(config.hsv_s),
            1.0 + gain(config.hsv_v),
        );
        if (hue, saturation, value) != (0.0, 1.0, 1.0) {
            hsv::shift(&mut picture.pixels, hue, saturation, value);
        }

        let mut random = counter.rng(Stream::Flip);
        if random.coin(config.flipud) {
            flip_vertically(&mut picture, self.side);
        }
        if random.coin(config.fliplr) {
            flip_horizontally(&mut picture, self.side);
        }
        Ok(picture)
    }

    /// Mosaic or letterbox of the image at `position`, then the affine transformation.
    fn base(
        &self,
        counter: Counter,
        position: usize,
        mosaic_stream: Stream,
        affine_stream: Stream,
        canvas: &mut Vec<u8>,
    ) -> Result<Picture, S::Error> {
        let buffer = std::mem::take(canvas);
        let mut random = counter.rng(mosaic_stream);
        let (scene, labels) = if random.coin(self.config.mosaic) {
            let centre = [0; 2].map(|_| {
                let side = self.side as f64;
                random.uniform(0.5 * side, 1.5 * side) as usize
            });
            // All partners lie in the window of the sample's own position, those of a mixup partner too.
            let positions = [
                position,
                self.partner(counter.position, &mut random),
                self.partner(counter.position, &mut random),
                self.partner(counter.position, &mut random),
            ];
            let mut images = Vec::with_capacity(4);
            for position in positions {
                images.push(self.source.image(position)?);
            }
            let pieces: [Piece; 4] = std::array::from_fn(|i| Piece {
                image: &images[i].0,
                labels: images[i].1.clone(),
            });
            mosaic::compose(&pieces, self.side, centre, buffer)
        } else {
            let (image, labels) = self.source.image(position)?;
            let piece = Piece {
                image: &image,
                labels,
            };
            mosaic::letterbox(&piece, self.side, buffer)
        };
        let draw = self.draw_affine(&mut counter.rng(affine_stream));
        let side = self.side as f64;
        let map = draw.matrix(scene.width as f64, side);
        let picture = Picture {
            pixels: warp::warp(&scene, &map, self.side, self.side),
            labels: transform_labels(&labels, &map, draw.scale, side),
        };
        *canvas = scene.pixels;
        Ok(picture)
    }

    fn draw_affine(&self, random: &mut impl Draws) -> AffineDraw {
        let c = self.config;
        let mut symmetric = |strength: f64| random.uniform(-strength, strength);
        let perspective = [symmetric(c.perspective), symmetric(c.perspective)];
        let degrees = symmetric(c.degrees);
        let shear = [symmetric(c.shear), symmetric(c.shear)];
        let centre = [0.5 + symmetric(c.translate), 0.5 + symmetric(c.translate)];
        AffineDraw {
            degrees,
            scale: random.uniform(c.scale.0, c.scale.1),
            shear,
            centre,
            perspective,
        }
    }

    /// A position of the window around `position`, other than it where there is one.
    fn partner(&self, position: usize, random: &mut impl Draws) -> usize {
        let window = partner_window(position, self.images);
        if window.len() < 2 {
            return position;
        }
        let drawn = window.start + random.index(window.len() - 1);
        drawn + usize::from(drawn >= position)
    }
}

/// Mirrors left and right.
pub fn flip_horizontally(picture: &mut Picture, side: usize) {
    for row in picture.pixels.chunks_exact_mut((side * 3).max(1)) {
        let (pixels, _) = row.as_chunks_mut::<3>();
        pixels.reverse();
    }
    for label in &mut picture.labels {
        let [x1, y1, x2, y2] = label.xyxy;
        label.xyxy = [side as f32 - x2, y1, side as f32 - x1, y2];
    }
}

/// Mirrors top and bottom.
pub fn flip_vertically(picture: &mut Picture, side: usize) {
    let row = side * 3;
    let (upper, lower) = picture.pixels.split_at_mut(side / 2 * row);
    for (a, b) in upper
        .chunks_exact_mut(row.max(1))
        .zip(lower.chunks_exact_mut(row.max(1)).rev())
    {
        a.swap_with_slice(b);
    }
    for label in &mut picture.labels {
        let [x1, y1, x2, y2] = label.xyxy;
        label.xyxy = [x1, side as f32 - y2, x2, side as f32 - y1];
    }
}

#[cfg(test)]
#[path = "augment_tests.rs"]
mod tests;
