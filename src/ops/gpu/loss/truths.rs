//! What the kernels know of objects and anchors, as arrays on the device.

use super::super::flat;
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// Numbers of an object: image, class, and the bits of its four corners.
pub(super) const RECORD: usize = 6;
/// Numbers of a level: first anchor, rows, columns, stride.
pub(super) const LEVEL: usize = 4;
/// No anchor, no object.
pub(super) const NONE: u32 = u32::MAX;

/// An object as the device gets it: class, and `x1 y1 x2 y2` in pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Object {
    pub class: u32,
    pub xyxy: [f32; 4],
}

/// The objects of a micro-batch on the device.
#[derive(Debug, Clone)]
pub struct Truths {
    /// `[images + 1]` numbers of the first object of each image, then [`RECORD`] numbers for each object.
    pub(super) data: CubeTensor,
    pub(super) images: usize,
    pub(super) total: usize,
    /// One more than the largest class.
    pub(super) classes: usize,
}

impl Truths {
    /// Uploads one list per image, in one piece.
    ///
    /// # Panics
    /// If there are 2^32 objects or more.
    #[must_use]
    pub fn new(images: &[Vec<Object>], device: &CubeDevice) -> Self {
        let total: usize = images.iter().map(Vec::len).sum();
        assert!(
            u32::try_from(total).is_ok(),
            "{total} objects in a micro-batch"
        );
        let mut data = Vec::with_capacity(images.len() + 1 + total * RECORD);
        let mut first = 0u32;
        data.push(0);
        for objects in images {
            first += objects.len() as u32;
            data.push(first);
        }
        for (image, objects) in images.iter().enumerate() {
            for o in objects {
                data.extend([image as u32, o.class]);
                data.extend(o.xyxy.map(f32::to_bits));
            }
        }
        let classes = images.iter().flatten().map(|o| o.class as usize + 1);
        Self {
            data: flat::upload_u32(device, &data),
            images: images.len(),
            total,
            classes: classes.max().unwrap_or(0),
        }
    }

    /// Number of images.
    #[must_use]
    pub fn images(&self) -> usize {
        self.images
    }

    /// Objects of all images.
    #[must_use]
    pub fn total(&self) -> usize {
        self.total
    }
}

/// A level of the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LevelGrid {
    pub first: usize,
    pub rows: usize,
    pub cols: usize,
    pub stride: usize,
}

/// The anchors of an image size on the device.
#[derive(Debug, Clone)]
pub struct AnchorTable {
    /// [`LEVEL`] numbers for each level.
    pub(super) levels: CubeTensor,
    pub(super) level_count: usize,
    pub(super) len: usize,
    /// Width and height of the image in pixels.
    pub(super) size: [f32; 2],
}

impl AnchorTable {
    /// `levels` in the order of the head's outputs; `size` is the image's width and height.
    #[must_use]
    pub fn new(levels: &[LevelGrid], size: [f32; 2], device: &CubeDevice) -> Self {
        let data: Vec<u32> = levels
            .iter()
            .flat_map(|l| [l.first, l.rows, l.cols, l.stride])
            .map(|v| v as u32)
            .collect();
        Self {
            levels: flat::upload_u32(device, &data),
            level_count: levels.len(),
            len: levels.iter().map(|l| l.rows * l.cols).sum(),
            size,
        }
    }

    /// Number of anchors of an image.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// An object in a kernel.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Seen {
    pub image: u32,
    pub class: u32,
    pub x1: f32,
    pub y1: f32,
    pub x2: f32,
    pub y2: f32,
}

/// Object `truth` of `data`, whose records begin at `records`.
#[cube]
pub(super) fn object(data: &[u32], records: u32, truth: u32) -> Seen {
    let at = (records + truth * comptime!(RECORD as u32)) as usize;
    Seen {
        image: data[at],
        class: data[at + 1],
        x1: f32::from_bits(data[at + 2]),
        y1: f32::from_bits(data[at + 3]),
        x2: f32::from_bits(data[at + 4]),
        y2: f32::from_bits(data[at + 5]),
    }
}

/// Centre and stride of an anchor.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Cell {
    pub x: f32,
    pub y: f32,
    pub stride: f32,
}

/// Where an anchor lies.
#[cube]
pub(super) fn cell(levels: &[u32], anchor: u32, #[comptime] level_count: usize) -> Cell {
    let mut at = 0usize;
    #[unroll]
    for l in 1..level_count {
        if levels[l * comptime!(LEVEL)] <= anchor {
            at = l * comptime!(LEVEL);
        }
    }
    let index = anchor - levels[at];
    let cols = levels[at + 2];
    let stride = f32::cast_from(levels[at + 3]);
    Cell {
        x: (f32::cast_from(index % cols) + 0.5f32) * stride,
        y: (f32::cast_from(index / cols) + 0.5f32) * stride,
        stride,
    }
}
