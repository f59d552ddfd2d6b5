//! Sums over the images of a lane, in an order that shapes alone give, and where parameters' gradients go.

use super::launch::{
    Cut, Plan, T, UNITS, arg, cube_dim, cubes, dims4, elem, empty, lane_start, len, table, units,
    vector,
};
use super::norm_kernels::fold_vectors;
use crate::ops::ranks::{DeviceSlot, Slot};
use burn::tensor::{DType, Shape};
use cubecl::num_traits::Zero;
use cubecl::prelude::*;

/// Columns that a cube of a reduction holds.
pub(super) const COLUMNS: usize = 32;
/// Units that share a column.
pub(super) const SLOTS: usize = 8;

/// Adds up what the `slots` units of a column left in `shared` (`[slots, columns]`), into its first row.
#[cube]
pub(super) fn fold(
    shared: &mut Shared<[f32]>,
    slot: usize,
    #[comptime] columns: usize,
    slots: usize,
) {
    let at = UNIT_POS as usize;
    let mut half = slots;
    while half > 1 {
        let next = half.div_ceil(2);
        sync_cube();
        if slot < half - next {
            shared[at] += shared[at + next * columns];
        }
        half = next;
    }
    sync_cube();
}

/// The sum of a column over the pieces `start..end`, in the first unit of each column.
#[cube]
pub(super) fn column_sum(
    parts: &[f32],
    shared: &mut Shared<[f32]>,
    start: usize,
    end: usize,
    stride: usize,
    column: usize,
    slot: usize,
    #[comptime] columns: usize,
    #[comptime] slots: usize,
) -> f32 {
    let mut sum = f32::new(0.0f32);
    for i in range_stepped(start + slot, end, slots) {
        sum += parts[i * stride + column];
    }
    shared[UNIT_POS as usize] = sum;
    fold(shared, slot, columns, slots.runtime());
    shared[UNIT_POS as usize]
}

/// `out[lane, offset..] (+)=` the sum of the pieces of each own lane; `parts` `[pieces, len]`.
#[cube(launch_unchecked)]
fn lane_sums_kernel(
    parts: &[f32],
    out: &mut [f32],
    len: usize,
    blocks: usize,
    per_image: usize,
    all: usize,
    lanes: usize,
    first: usize,
    own: usize,
    stride: usize,
    offset: usize,
    #[comptime] add: bool,
    #[comptime] columns: usize,
    #[comptime] slots: usize,
) {
    let lane = CUBE_POS / blocks;
    if lane >= own {
        terminate!();
    }
    let slot = UNIT_POS as usize / columns;
    let column = CUBE_POS % blocks * columns + UNIT_POS as usize % columns;
    let inside = column < len;
    let mut shared = Shared::<[f32]>::new_slice(comptime!(columns * slots));
    let start = lane_start(lane, all, lanes, first) * per_image;
    let end = lane_start(lane + 1, all, lanes, first) * per_image;
    let sum = column_sum(
        parts,
        &mut shared,
        start,
        end,
        len,
        min(column, len - 1),
        slot,
        columns,
        slots,
    );
    if slot == 0 && inside {
        let at = lane * stride + offset + column;
        if add {
            out[at] += sum;
        } else {
            out[at] = sum;
        }
    }
}

/// `out[lane, offset..] (+)= parts[lane, from..]`
#[cube(launch_unchecked)]
fn put_kernel(
    parts: &[f32],
    out: &mut [f32],
    len: usize,
    own: usize,
    from: usize,
    from_stride: usize,
    stride: usize,
    offset: usize,
    #[comptime] add: bool,
) {
    if ABSOLUTE_POS >= own * len {
        terminate!();
    }
    let (lane, i) = (ABSOLUTE_POS / len, ABSOLUTE_POS % len);
    let value = parts[lane * from_stride + from + i];
    let at = lane * stride + offset + i;
    if add {
        out[at] += value;
    } else {
        out[at] = value;
    }
}

/// Sum over the lanes of `rows` `[lanes, stride]`, in the tree's order.
#[cube(launch_unchecked)]
fn total_kernel(
    rows: &[f32],
    out: &mut [f32],
    len: usize,
    from: usize,
    stride: usize,
    #[comptime] lanes: usize,
) {
    if ABSOLUTE_POS >= len {
        terminate!();
    }
    out[ABSOLUTE_POS] = tree_of_lanes(rows, from + ABSOLUTE_POS, stride, lanes);
}

/// `rows[0, at] + .. + rows[lanes - 1, at]` in the order of `cpu::lanes::tree`: neighbours first.
#[cube]
pub(super) fn tree_of_lanes(
    rows: &[f32],
    at: usize,
    stride: usize,
    #[comptime] lanes: usize,
) -> f32 {
    let mut sums = Array::<f32>::new(lanes);
    #[unroll]
    for l in 0..lanes {
        sums[l] = rows[l * stride + at];
    }
    #[unroll]
    for level in 0..comptime!(levels(lanes)) {
        #[unroll]
        for pair in 0..comptime!(pairs(lanes, level)) {
            let a = comptime!((pair * 2) << level);
            let b = comptime!(a + (1 << level));
            sums[a] += sums[b];
        }
    }
    sums[0]
}

/// Levels of a tree over `lanes` lanes.
pub(super) fn levels(lanes: usize) -> usize {
    lanes.next_power_of_two().trailing_zeros() as usize
}

/// Pairs that are joined on a level of a tree over `lanes` lanes.
pub(super) fn pairs(lanes: usize, level: usize) -> usize {
    lanes.div_ceil(1 << level) / 2
}

/// Where a gradient goes: a slot of the device, or a tensor.
pub(super) enum Target<'a> {
    Slot(&'a Slot, DeviceSlot),
    Tensor,
    /// A tensor of those of each lane, `[own lanes, elements]`, float32.
    Lanes,
}

impl<'a> Target<'a> {
    pub fn of(slot: Option<&'a Slot>) -> Self {
        match slot.and_then(|s| s.sink.device(s.id).map(|d| (s, d))) {
            Some((slot, place)) => Self::Slot(slot, place),
            None => Self::Tensor,
        }
    }
}

/// Elements of a lane of a slot's memory.
pub(super) fn lane_len(flat: &T) -> usize {
    let shape = flat.meta.shape();
    shape[shape.num_dims() - 1]
}

/// Sums the pieces of `parts` `[pieces, len]` by lanes into the target; the tensor has `shape` and type `dtype`, and is
/// empty where the sums went into a slot.
pub(super) fn lane_sums(
    parts: &T,
    per_image: usize,
    len: usize,
    cut: Cut,
    target: Target,
    shape: Shape,
    dtype: DType,
) -> T {
    let launch = |out: &T, stride: usize, offset: usize, add: bool| {
        let blocks = len.div_ceil(COLUMNS);
        let client = &parts.client;
        // SAFETY: each cube stays in the pieces of its lane and in the columns of `out`.
        unsafe {
            lane_sums_kernel::launch_unchecked(
                client,
                cubes(blocks * cut.own),
                cube_dim(),
                arg(parts, 1),
                arg(out, 1),
                len,
                blocks,
                per_image,
                cut.all,
                cut.lanes,
                cut.first,
                cut.own,
                stride,
                offset,
                add,
                COLUMNS,
                SLOTS,
            );
        }
    };
    match target {
        Target::Slot(slot, place) => {
            launch(&place.flat, lane_len(&place.flat), place.offset, place.add);
            slot.sink.written(slot.id);
            nothing(parts)
        }
        Target::Tensor => {
            let rows = empty(parts, [cut.own, len], DType::F32);
            launch(&rows, len, 0, false);
            total(&rows, 0, len, shape, dtype)
        }
        Target::Lanes => {
            let rows = empty(parts, [cut.own, len], DType::F32);
            launch(&rows, len, 0, false);
            rows
        }
    }
}

/// Puts `rows[lane, from..from + len]` into the target, as [`lane_sums`] does.
pub(super) fn put(rows: &T, from: usize, target: Target, shape: Shape, dtype: DType) -> T {
    let len = shape.num_elements();
    match target {
        Target::Slot(slot, place) => {
            let (own, from_stride) = (rows.meta.shape()[0], lane_len(rows));
            let client = &rows.client;
            let (count, dim) = units(own * len);
            // SAFETY: as many units as there are elements, in the columns of both.
            unsafe {
                put_kernel::launch_unchecked(
                    client,
                    count,
                    dim,
                    arg(rows, 1),
                    arg(&place.flat, 1),
                    len,
                    own,
                    from,
                    from_stride,
                    lane_len(&place.flat),
                    place.offset,
                    place.add,
                );
            }
            slot.sink.written(slot.id);
            nothing(rows)
        }
        Target::Tensor => total(rows, from, len, shape, dtype),
        Target::Lanes => super::shape::along(rows, 1, from, len),
    }
}

/// The sum over the lanes of `rows` `[lanes, ..]`, of columns `from..from + len`.
fn total(rows: &T, from: usize, len: usize, shape: Shape, dtype: DType) -> T {
    let out = empty(rows, shape, DType::F32);
    let client = &rows.client;
    let (count, dim) = units(len);
    // SAFETY: as many units as there are columns.
    unsafe {
        total_kernel::launch_unchecked(
            client,
            count,
            dim,
            arg(rows, 1),
            arg(&out, 1),
            len,
            from,
            lane_len(rows),
            rows.meta.shape()[0],
        );
    }
    cast(out, dtype)
}

/// Of another type.
pub(super) fn cast(t: T, dtype: DType) -> T {
    if t.dtype == dtype {
        return t;
    }
    super::launch::dense(burn_cubecl::kernel::cast(t, dtype))
}

/// What is returned instead of a gradient that went into a slot.
pub(super) fn nothing(like: &T) -> T {
    let t = empty(like, [0], DType::F32);
    debug_assert_eq!(len(&t), 0);
    t
}

/// `[pieces, channels]`: sums over the pixels of pieces of images.
#[cube(launch_unchecked)]
fn column_sums_kernel<F: Float, N: Size>(
    x: &[Vector<F, N>],
    parts: &mut [Vector<f32, N>],
    rows: usize,
    chunk: usize,
    per_image: usize,
    pieces: usize,
    vectors: usize,
    width: usize,
    blocks: usize,
    #[comptime] units: usize,
    #[define(F)] _dtype: ElemType,
) {
    let piece = CUBE_POS / blocks;
    if piece >= pieces {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let (slot, slots) = (unit / width, units / width);
    let column = CUBE_POS % blocks * width + unit % width;
    let active = slot < slots && column < vectors;
    let mut shared = Shared::<[Vector<f32, N>]>::new_slice(units);
    let first = (piece / per_image * rows + piece % per_image * chunk) * vectors;
    let count = min(chunk, rows - piece % per_image * chunk);
    let mut sum = Vector::<f32, N>::zero();
    if active {
        for r in range_stepped(slot, count, slots) {
            sum += Vector::<f32, N>::cast_from(x[first + r * vectors + column]);
        }
    }
    shared[unit] = sum;
    fold_vectors::<N>(&mut shared, slot, width, slots);
    if slot == 0 && active {
        parts[piece * vectors + column] = shared[unit];
    }
}

/// Sums over the pixels of pieces of images, `[pieces, channels]`, and the pieces of an image.
pub(super) fn column_sums(x: &T) -> (T, usize) {
    let [n, h, w, c] = dims4(x);
    let v = vector(&[x], &[c]);
    let p = Plan::new(h * w, c, v, 16);
    let pieces = n * p.per_image;
    let parts = table(x, pieces * c);
    if pieces > 0 {
        let client = &x.client;
        // SAFETY: pieces are those of the images, columns those of the channels.
        unsafe {
            column_sums_kernel::launch_unchecked(
                client,
                cubes(pieces * p.blocks),
                cube_dim(),
                v,
                arg(x, v),
                arg(&parts, v),
                h * w,
                p.chunk,
                p.per_image,
                pieces,
                p.vectors,
                p.width,
                p.blocks,
                UNITS,
                elem(x.dtype),
            );
        }
    }
    (parts, p.per_image)
}
