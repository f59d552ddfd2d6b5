//! What the loader hands to training and validation: one batch of equally sized images with its boxes.

/// A box of a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchBox {
    /// Index of the image in the batch.
    pub image: usize,
    pub class: usize,
    /// Corners in pixels of the batch's images, inside them.
    pub xyxy: [f32; 4],
}

/// How an original image lies in a letterboxed one: `letterboxed = original * ratio + pad`, per axis (x, y).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Letterbox {
    pub ratio: [f32; 2],
    pub pad: [f32; 2],
}

impl Letterbox {
    /// The image as it is.
    pub const IDENTITY: Letterbox = Letterbox {
        ratio: [1.0, 1.0],
        pad: [0.0, 0.0],
    };

    /// Corners in the original image -> corners in the letterboxed one.
    pub fn to_letterboxed(&self, xyxy: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| xyxy[i] * self.ratio[i % 2] + self.pad[i % 2])
    }

    /// Corners in the letterboxed image -> corners in the original of `width` x `height` pixels, clipped to it.
    pub fn to_original(&self, xyxy: [f32; 4], width: u32, height: u32) -> [f32; 4] {
        let limit = [width as f32, height as f32];
        std::array::from_fn(|i| {
            ((xyxy[i] - self.pad[i % 2]) / self.ratio[i % 2]).clamp(0.0, limit[i % 2])
        })
    }
}

/// Which image of the split lies at an index of the batch, and how.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchImage {
    /// Index in `Split::images`. With mosaic, mixup or cutmix: of the image whose turn it is in the epoch's order.
    pub index: usize,
    /// Meaningful in validation; the identity in training.
    pub letterbox: Letterbox,
}

/// One batch, or the part of a global batch that this process holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    pub height: usize,
    pub width: usize,
    /// Height and width that the network takes: where they are others (multi-scale), pixels and boxes are scaled to
    /// them where it computes.
    pub input: (usize, usize),
    /// `[images, height, width, 3]`, RGB.
    pub pixels: Vec<u8>,
    pub images: Vec<BatchImage>,
    /// Ordered by image, then as the image's boxes come.
    pub boxes: Vec<BatchBox>,
}

impl Batch {
    /// Number of images.
    pub fn len(&self) -> usize {
        self.images.len()
    }

    pub fn is_empty(&self) -> bool {
        self.images.is_empty()
    }
}
