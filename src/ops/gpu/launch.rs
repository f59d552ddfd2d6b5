//! What the launches of all kernels have in common: buffers, vector widths, counts of cubes, lanes.
//!
//! Kernels read whole, contiguous NHWC buffers. Work is cut so that it depends on an image's shape alone: a sum over
//! images has the same order on any number of ranks, and no kernel adds with atomics.

use crate::ops::cpu::lanes::Lanes;
use burn::tensor::{DType, Shape};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::client::Client;
use cubecl::ir::FloatKind;
use cubecl::prelude::*;

pub(super) type T = CubeTensor;

/// Units of a cube: what every WebGPU adapter has.
pub(super) const UNITS: usize = 256;

/// Most cubes of a dimension that every runtime takes.
const MOST_CUBES: u32 = 65_535;

/// Element type of a kernel.
pub(super) fn elem(dtype: DType) -> ElemType {
    match dtype {
        DType::F64 => ElemType::Float(FloatKind::F64),
        DType::F16 => ElemType::Float(FloatKind::F16),
        DType::BF16 => ElemType::Float(FloatKind::BF16),
        // `available` lets nothing else pass
        _ => ElemType::Float(FloatKind::F32),
    }
}

/// A contiguous tensor.
pub(super) fn dense(t: T) -> T {
    into_contiguous(t)
}

/// Uninitialised, contiguous, on the device of `like`.
pub(super) fn empty(like: &T, shape: impl Into<Shape>, dtype: DType) -> T {
    let (client, device) = (like.client.clone(), like.device.clone());
    empty_device_contiguous_dtype(client, device, shape.into(), dtype)
}

/// As [`empty`], of at least one element: for tables that a kernel binds whatever their length.
pub(super) fn table(like: &T, len: usize) -> T {
    empty(like, [len.max(1)], DType::F32)
}

/// The elements of a contiguous tensor as vectors of `vector`.
pub(super) fn arg(t: &T, vector: usize) -> BufferArg {
    let len = t.meta.num_elements() / vector;
    // SAFETY: the buffer holds the tensor's elements, and kernels stay in its shape.
    unsafe { BufferArg::from_raw_parts(t.handle.clone(), len) }
}

pub(super) fn dims4(t: &T) -> [usize; 4] {
    let s = t.meta.shape();
    [s[0], s[1], s[2], s[3]]
}

pub(super) fn len(t: &T) -> usize {
    t.meta.num_elements()
}

/// The widest vector (4, 2 or 1 elements) that divides `counts` and that the buffers' first elements are aligned to.
pub(super) fn vector(tensors: &[&T], counts: &[usize]) -> usize {
    let fits = |v: &usize| {
        let aligned = |t: &&T| {
            let at = t.handle.offset_start.unwrap_or(0) as usize;
            at.is_multiple_of(v * t.elem_size())
        };
        counts.iter().all(|c| c.is_multiple_of(*v)) && tensors.iter().all(aligned)
    };
    [4, 2].into_iter().find(fits).unwrap_or(1)
}

/// The most elements that the device reads at once of a type of `size` bytes, which divide `len`.
pub(super) fn vector_size(client: &Client, size: usize, len: usize) -> VectorSize {
    client
        .io_optimized_vector_sizes(size)
        .filter(|v| len.is_multiple_of(*v))
        .max()
        .unwrap_or(1)
}

/// `n` cubes: `CUBE_POS` counts them, and may go on behind the last.
pub(super) fn cubes(n: usize) -> CubeCount {
    let n = u32::try_from(n).unwrap_or(u32::MAX).max(1);
    let y = n.div_ceil(MOST_CUBES);
    CubeCount::Static(n.div_ceil(y), y, 1)
}

/// Cubes for `n` units of work, which `ABSOLUTE_POS` counts, and may go on behind the last.
pub(super) fn units(n: usize) -> (CubeCount, CubeDim) {
    (cubes(n.div_ceil(UNITS)), cube_dim())
}

pub(super) fn cube_dim() -> CubeDim {
    CubeDim::new_1d(UNITS as u32)
}

/// The lanes that sums over images are formed in, as kernels take them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    /// Images of all ranks together.
    pub all: usize,
    /// Lanes of all ranks together.
    pub lanes: usize,
    /// Number of the first own lane.
    pub first: usize,
    /// Own lanes.
    pub own: usize,
    /// Own images.
    pub images: usize,
}

impl Cut {
    /// Of `images` own images.
    pub fn new(lanes: &Lanes, images: usize) -> Self {
        // asserts that these are as many as the lanes have
        let own = lanes.cut(images).len();
        Self {
            all: lanes.all(images),
            lanes: lanes.total(),
            first: lanes.own().start,
            own,
            images,
        }
    }
}

/// The first image of own lane `lane`, counted from this process's first.
#[cube]
pub(super) fn lane_start(lane: usize, all: usize, lanes: usize, first: usize) -> usize {
    (first + lane) * all / lanes - first * all / lanes
}

/// How the rows (pixels) of an image are cut for a reduction over them, and channels over the units of a cube.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Vectors of channels.
    pub vectors: usize,
    /// Of these, that a cube holds; unit `u` has vector `u % width` and every `UNITS / width`th row.
    pub width: usize,
    /// Cubes side by side that hold all channels.
    pub blocks: usize,
    /// Rows of a piece.
    pub chunk: usize,
    /// Pieces of an image.
    pub per_image: usize,
}

impl Plan {
    /// Pieces of about `times` rows for each unit.
    pub fn new(rows: usize, channels: usize, vector: usize, times: usize) -> Self {
        let vectors = channels / vector;
        let blocks = vectors.div_ceil(UNITS).max(1);
        let width = vectors.div_ceil(blocks).max(1);
        let chunk = UNITS / width * times;
        Self {
            vectors,
            width,
            blocks,
            chunk,
            per_image: rows.div_ceil(chunk),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::gpu::flat;
    use crate::ops::gpu::flat::testing::{device, read_u32};

    #[cube(launch)]
    fn numbers_kernel(out: &mut [u32], n: u32) {
        if CUBE_POS < n as usize {
            out[CUBE_POS] = CUBE_POS as u32;
        }
    }

    #[test]
    fn more_cubes_than_a_dimension_takes_are_counted_through() {
        let Some(device) = device() else { return };
        let n = MOST_CUBES as usize + 4_466;
        let out = flat::empty(&device, [n], DType::U32);
        let (client, dim) = (device.client(), CubeDim::new_1d(1));
        let arg = out.clone().into_buffer_arg();
        numbers_kernel::launch(&client, cubes(n), dim, arg, n as u32);
        let got = read_u32(&out);
        assert!(got.iter().enumerate().all(|(i, &v)| i == v as usize));
    }
}
