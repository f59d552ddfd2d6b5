//! Batch norm and activation.
//!
//! Forward: [`moments`] of pieces of images in one pass over `y`, merged by lanes; [`normalise`] merges the lanes (of all
//! ranks) in the fixed tree, where it also moves the running statistics, and writes the activations in one pass.
//! Backward: sums of pieces in one pass, by lanes, then the input's gradient in one pass. The derivative of SiLU is
//! computed again from `y`; nothing but four numbers of each channel is kept.

use super::launch::{
    Cut, Plan, T, UNITS, arg, cube_dim, cubes, elem, empty, lane_start, table, vector,
};
use super::sums::{self, Target, column_sum, fold, levels, pairs, tree_of_lanes};
use crate::ops::Activation;
use burn::tensor::DType;
use cubecl::num_traits::Zero;
use cubecl::prelude::*;

/// Rows of a piece for each unit: enough to hide the reduction at its end, few enough for 20x20 maps to fill a GPU.
const TIMES: usize = 16;
/// Columns and units of a column of the merging kernel: an image has many pieces, and a small network few channels.
const COLUMNS: usize = 8;
const SLOTS: usize = 32;

/// Number of a piece's rows.
#[cube]
fn rows_of(piece: usize, per_image: usize, chunk: usize, rows: usize) -> usize {
    min(chunk, rows - piece % per_image * chunk)
}

/// Adds up over the units of a cube that share a channel: `shared` `[slots, width]`.
#[cube]
pub(super) fn fold_vectors<N: Size>(
    shared: &mut Shared<[Vector<f32, N>]>,
    slot: usize,
    width: usize,
    slots: usize,
) {
    let at = UNIT_POS as usize;
    let mut half = slots;
    while half > 1 {
        let next = half.div_ceil(2);
        sync_cube();
        if slot < half - next {
            shared[at] = shared[at] + shared[at + next * width];
        }
        half = next;
    }
    sync_cube();
}

/// `[pieces, 2, channels]`: mean and sum of squared deviations of each piece.
#[cube(launch_unchecked)]
fn moments_kernel<F: Float, N: Size>(
    y: &[Vector<F, N>],
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
    let mut sums = Shared::<[Vector<f32, N>]>::new_slice(units);
    let mut squares = Shared::<[Vector<f32, N>]>::new_slice(units);
    let first = (piece / per_image * rows + piece % per_image * chunk) * vectors;
    let count = rows_of(piece, per_image, chunk, rows);
    let mut sum = Vector::<f32, N>::zero();
    let mut square = Vector::<f32, N>::zero();
    let mut shift = Vector::<f32, N>::zero();
    if active {
        // sums of differences from a value of the piece: stable for means far from zero
        shift = Vector::<f32, N>::cast_from(y[first + column]);
        for r in range_stepped(slot, count, slots) {
            let d = Vector::<f32, N>::cast_from(y[first + r * vectors + column]) - shift;
            sum += d;
            square = fma(d, d, square);
        }
    }
    sums[unit] = sum;
    squares[unit] = square;
    fold_vectors::<N>(&mut sums, slot, width, slots);
    fold_vectors::<N>(&mut squares, slot, width, slots);
    if slot == 0 && active {
        let n = Vector::<f32, N>::new(f32::cast_from(count));
        let d = sums[unit] / n;
        let centred = squares[unit] - sums[unit] * d;
        let zero = Vector::<f32, N>::zero();
        parts[piece * 2 * vectors + column] = shift + d;
        // not max(0, .): that would hide what is not a number
        parts[(piece * 2 + 1) * vectors + column] =
            select_many(centred.less_than(&zero), zero, centred);
    }
}

/// Merges the pieces of each own lane: `rows` `[lanes, 2, channels]`.
#[cube(launch_unchecked)]
fn merge_kernel(
    parts: &[f32],
    out: &mut [f32],
    rows: usize,
    chunk: usize,
    per_image: usize,
    channels: usize,
    blocks: usize,
    all: usize,
    lanes: usize,
    first: usize,
    own: usize,
    #[comptime] columns: usize,
    #[comptime] slots: usize,
) {
    let lane = CUBE_POS / blocks;
    if lane >= own {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let slot = unit / columns;
    let channel = CUBE_POS % blocks * columns + unit % columns;
    let inside = channel < channels;
    let channel = min(channel, channels - 1);
    let mut shared = Shared::<[f32]>::new_slice(comptime!(columns * slots));
    let start = lane_start(lane, all, lanes, first) * per_image;
    let end = lane_start(lane + 1, all, lanes, first) * per_image;
    let count = f32::cast_from((end - start) / per_image * rows);
    let stride = 2 * channels;
    let mut sum = f32::new(0.0f32);
    for i in range_stepped(start + slot, end, slots) {
        let n = f32::cast_from(rows_of(i, per_image, chunk, rows));
        sum = fma(n, parts[i * stride + channel], sum);
    }
    shared[unit] = sum;
    fold(&mut shared, slot, columns, slots.runtime());
    // an empty lane has no piece: its sum is 0
    let mean = shared[unit % columns] / max(count, f32::new(1.0f32));
    sync_cube();
    let mut sum = f32::new(0.0f32);
    for i in range_stepped(start + slot, end, slots) {
        let n = f32::cast_from(rows_of(i, per_image, chunk, rows));
        let d = parts[i * stride + channel] - mean;
        sum += fma(n * d, d, parts[i * stride + channels + channel]);
    }
    shared[unit] = sum;
    fold(&mut shared, slot, columns, slots.runtime());
    if slot == 0 && inside {
        out[lane * stride + channel] = mean;
        out[lane * stride + channels + channel] = shared[unit];
    }
}

/// Mean, sum of squared deviations and count of a channel over all lanes of `table` `[lanes, 2, channels]` (Chan, Golub
/// and LeVeque 1979), in the tree's order.
#[cube]
fn merged(
    table: &[f32],
    channel: usize,
    channels: usize,
    all: usize,
    total_lanes: usize,
    first: usize,
    rows: usize,
    #[comptime] lanes: usize,
) -> (f32, f32) {
    let mut counts = Array::<f32>::new(lanes);
    let mut means = Array::<f32>::new(lanes);
    let mut squares = Array::<f32>::new(lanes);
    #[unroll]
    for l in 0..lanes {
        let images =
            lane_start(l + 1, all, total_lanes, first) - lane_start(l, all, total_lanes, first);
        counts[l] = f32::cast_from(images * rows);
        means[l] = table[2 * l * channels + channel];
        squares[l] = table[(2 * l + 1) * channels + channel];
    }
    #[unroll]
    for level in 0..comptime!(levels(lanes)) {
        #[unroll]
        for pair in 0..comptime!(pairs(lanes, level)) {
            let a = comptime!(pair * 2 << level);
            let b = comptime!(a + (1 << level));
            // an empty lane holds zeros, and merging it changes no bit
            let count = counts[a] + counts[b];
            let part = counts[b] / max(count, f32::new(1.0f32));
            let d = means[b] - means[a];
            squares[a] = squares[a] + fma(d * d, counts[a] * part, squares[b]);
            means[a] = fma(d, part, means[a]);
            counts[a] = count;
        }
    }
    (means[0], squares[0])
}

/// `act((y - mean) scale + beta)`. `stats` `[4, channels]` gets mean, scale, 1 / deviation and beta.
///
/// The statistics are merged from `table`; where they are `fixed`, they lie in `running`, which otherwise, if it
/// `tracks` them, moves towards them.
#[cube(launch_unchecked)]
fn normalise_kernel<F: Float, N: Size>(
    y: &[Vector<F, N>],
    gamma: &[f32],
    beta: &[f32],
    table: &[f32],
    running: &mut [f32],
    stats: &mut [f32],
    out: &mut [Vector<F, N>],
    total_rows: usize,
    chunk: usize,
    vectors: usize,
    width: usize,
    blocks: usize,
    rows: usize,
    images: usize,
    all: usize,
    total_lanes: usize,
    first: usize,
    mean_at: usize,
    var_at: usize,
    momentum: f32,
    eps: f32,
    #[comptime] lanes: usize,
    #[comptime] fixed: bool,
    #[comptime] tracks: bool,
    #[comptime] silu: bool,
    #[comptime] units: usize,
    #[define(F)] _dtype: ElemType,
) {
    let piece = CUBE_POS / blocks;
    let unit = UNIT_POS as usize;
    let (slot, slots) = (unit / width, units / width);
    let column = CUBE_POS % blocks * width + unit % width;
    let size = N::value();
    let channels = vectors * size;
    // a batch without images still writes the statistics
    let start = piece * chunk;
    if slot < slots && column < vectors && (start < total_rows || piece == 0) {
        let mut mean = Vector::<f32, N>::zero();
        let mut scale = Vector::<f32, N>::zero();
        let mut shift = Vector::<f32, N>::zero();
        #[unroll]
        for k in 0..size {
            let channel = column * size + k;
            let mut m = f32::new(0.0f32);
            let mut v = f32::new(0.0f32);
            if fixed {
                m = running[mean_at + channel];
                v = running[var_at + channel];
            } else {
                let (mean, square) = merged(
                    table,
                    channel,
                    channels,
                    all,
                    total_lanes,
                    first,
                    rows,
                    lanes,
                );
                let count = f32::cast_from(images * rows);
                let one = f32::new(1.0f32);
                m = mean;
                v = square / max(count, one);
                if tracks {
                    if piece == 0 && slot == 0 {
                        let keep = one - momentum;
                        let unbiased = square / max(count - one, one);
                        let (a, b) = (mean_at + channel, var_at + channel);
                        running[a] = fma(keep, running[a], momentum * mean);
                        running[b] = fma(keep, running[b], momentum * unbiased);
                    }
                }
            }
            let inverse = f32::new(1.0f32) / (v + eps).sqrt();
            let s = gamma[channel] * inverse;
            let b = beta[channel];
            mean.insert(k, m);
            scale.insert(k, s);
            shift.insert(k, b);
            if piece == 0 && slot == 0 {
                stats[channel] = m;
                stats[channels + channel] = s;
                stats[2 * channels + channel] = inverse;
                stats[3 * channels + channel] = b;
            }
        }
        let end = min(start + chunk, total_rows);
        for r in range_stepped(start + slot, end, slots) {
            let at = r * vectors + column;
            let z = fma(Vector::<f32, N>::cast_from(y[at]) - mean, scale, shift);
            let mut a = z;
            if silu {
                a = z * sigmoid::<N>(z);
            }
            out[at] = Vector::<F, N>::cast_from(a);
        }
    }
}

#[cube]
pub(super) fn sigmoid<N: Size>(z: Vector<f32, N>) -> Vector<f32, N> {
    let one = Vector::<f32, N>::new(f32::new(1.0f32));
    one / (one + (Vector::<f32, N>::zero() - z).exp())
}

/// Gradient with respect to `z` from that with respect to `act(z)`.
#[cube]
fn through_act<N: Size>(
    d: Vector<f32, N>,
    scale: Vector<f32, N>,
    shift: Vector<f32, N>,
    da: Vector<f32, N>,
    #[comptime] silu: bool,
) -> Vector<f32, N> {
    let mut dz = da;
    if silu {
        let z = fma(d, scale, shift);
        let g = sigmoid::<N>(z);
        let one = Vector::<f32, N>::new(f32::new(1.0f32));
        dz = da * g * fma(z, one - g, one);
    }
    dz
}

/// Four channels' worth of a row of a table `[.., channels]`.
#[cube]
fn per_channel<N: Size>(
    table: &[f32],
    row: usize,
    column: usize,
    channels: usize,
) -> Vector<f32, N> {
    let mut v = Vector::<f32, N>::zero();
    #[unroll]
    for k in 0..N::value() {
        v.insert(k, table[row * channels + column * N::value() + k]);
    }
    v
}

/// `[pieces, 2, channels]`: sums of `dz` and of `dz (y - mean)`.
#[cube(launch_unchecked)]
fn gradient_sums_kernel<F: Float, N: Size>(
    y: &[Vector<F, N>],
    da: &[Vector<F, N>],
    stats: &[f32],
    parts: &mut [Vector<f32, N>],
    rows: usize,
    chunk: usize,
    per_image: usize,
    pieces: usize,
    vectors: usize,
    width: usize,
    blocks: usize,
    #[comptime] silu: bool,
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
    let mut sums = Shared::<[Vector<f32, N>]>::new_slice(units);
    let mut centred = Shared::<[Vector<f32, N>]>::new_slice(units);
    let first = (piece / per_image * rows + piece % per_image * chunk) * vectors;
    let count = rows_of(piece, per_image, chunk, rows);
    let mut sum = Vector::<f32, N>::zero();
    let mut product = Vector::<f32, N>::zero();
    if active {
        let channels = vectors * N::value();
        let mean = per_channel::<N>(stats, 0usize, column, channels);
        let scale = per_channel::<N>(stats, 1usize, column, channels);
        let shift = per_channel::<N>(stats, 3usize, column, channels);
        for r in range_stepped(slot, count, slots) {
            let at = first + r * vectors + column;
            let d = Vector::<f32, N>::cast_from(y[at]) - mean;
            let dz = through_act::<N>(d, scale, shift, Vector::cast_from(da[at]), silu);
            sum += dz;
            product = fma(dz, d, product);
        }
    }
    sums[unit] = sum;
    centred[unit] = product;
    fold_vectors::<N>(&mut sums, slot, width, slots);
    fold_vectors::<N>(&mut centred, slot, width, slots);
    if slot == 0 && active {
        parts[piece * 2 * vectors + column] = sums[unit];
        parts[(piece * 2 + 1) * vectors + column] = centred[unit];
    }
}

/// Sums the pieces of each own lane: `rows` `[lanes, 2, channels]` of `dz` and `dz (y - mean)`, and the gradients of
/// beta and gamma, `gradients[lane, ..]`.
#[cube(launch_unchecked)]
fn gradient_lanes_kernel(
    parts: &[f32],
    stats: &[f32],
    out: &mut [f32],
    gradients: &mut [f32],
    per_image: usize,
    channels: usize,
    blocks: usize,
    all: usize,
    lanes: usize,
    first: usize,
    own: usize,
    stride: usize,
    gamma_at: usize,
    beta_at: usize,
    #[comptime] add: bool,
    #[comptime] columns: usize,
    #[comptime] slots: usize,
) {
    let lane = CUBE_POS / blocks;
    if lane >= own {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let slot = unit / columns;
    let channel = CUBE_POS % blocks * columns + unit % columns;
    let inside = channel < channels;
    let channel = min(channel, channels - 1);
    let mut shared = Shared::<[f32]>::new_slice(comptime!(columns * slots));
    let start = lane_start(lane, all, lanes, first) * per_image;
    let end = lane_start(lane + 1, all, lanes, first) * per_image;
    let width = 2 * channels;
    let sum = column_sum(
        parts,
        &mut shared,
        start,
        end,
        width,
        channel,
        slot,
        columns,
        slots,
    );
    sync_cube();
    let centred = column_sum(
        parts,
        &mut shared,
        start,
        end,
        width,
        channels + channel,
        slot,
        columns,
        slots,
    );
    if slot == 0 && inside {
        out[lane * width + channel] = sum;
        out[lane * width + channels + channel] = centred;
        let gamma = centred * stats[2 * channels + channel];
        let (g, b) = (
            lane * stride + gamma_at + channel,
            lane * stride + beta_at + channel,
        );
        if add {
            gradients[g] = gradients[g] + gamma;
            gradients[b] = gradients[b] + sum;
        } else {
            gradients[g] = gamma;
            gradients[b] = sum;
        }
    }
}

/// `dy = scale (dz - sum(dz) / n - xhat sum(dz xhat) / n)`; the sums are 0 where the statistics are constants.
#[cube(launch_unchecked)]
fn input_gradient_kernel<F: Float, N: Size>(
    y: &[Vector<F, N>],
    da: &[Vector<F, N>],
    stats: &[f32],
    table: &[f32],
    out: &mut [Vector<F, N>],
    total_rows: usize,
    chunk: usize,
    vectors: usize,
    width: usize,
    blocks: usize,
    rows: usize,
    images: usize,
    #[comptime] lanes: usize,
    #[comptime] fixed: bool,
    #[comptime] silu: bool,
    #[comptime] units: usize,
    #[define(F)] _dtype: ElemType,
) {
    let piece = CUBE_POS / blocks;
    let unit = UNIT_POS as usize;
    let (slot, slots) = (unit / width, units / width);
    let column = CUBE_POS % blocks * width + unit % width;
    let start = piece * chunk;
    if slot < slots && column < vectors && start < total_rows {
        let size = N::value();
        let channels = vectors * size;
        let mean = per_channel::<N>(stats, 0usize, column, channels);
        let scale = per_channel::<N>(stats, 1usize, column, channels);
        let shift = per_channel::<N>(stats, 3usize, column, channels);
        let mut slope = Vector::<f32, N>::zero();
        let mut offset = Vector::<f32, N>::zero();
        if !fixed {
            let n = max(f32::cast_from(images * rows), f32::new(1.0f32));
            #[unroll]
            for k in 0..size {
                let channel = column * size + k;
                let sum = tree_of_lanes(table, channel, 2 * channels, lanes);
                let centred = tree_of_lanes(table, channels + channel, 2 * channels, lanes);
                let inverse = stats[2 * channels + channel];
                let minus = f32::new(0.0f32) - stats[channels + channel];
                slope.insert(k, minus * inverse * inverse * centred / n);
                offset.insert(k, minus * sum / n);
            }
        }
        let end = min(start + chunk, total_rows);
        for r in range_stepped(start + slot, end, slots) {
            let at = r * vectors + column;
            let d = Vector::<f32, N>::cast_from(y[at]) - mean;
            let dz = through_act::<N>(d, scale, shift, Vector::cast_from(da[at]), silu);
            out[at] = Vector::<F, N>::cast_from(fma(dz, scale, fma(d, slope, offset)));
        }
    }
}

/// `[images, pixels, channels]` with its cut into pieces.
pub(super) struct Grid {
    plan: Plan,
    vector: usize,
    images: usize,
    pixels: usize,
    channels: usize,
}

impl Grid {
    pub fn new(tensors: &[&T]) -> Self {
        let [images, h, w, channels] = super::launch::dims4(tensors[0]);
        let vector = vector(tensors, &[channels]);
        Self {
            plan: Plan::new(h * w, channels, vector, TIMES),
            vector,
            images,
            pixels: h * w,
            channels,
        }
    }
    fn pieces(&self) -> usize {
        self.images * self.plan.per_image
    }
    fn parts(&self, like: &T) -> T {
        table(like, self.pieces() * 2 * self.channels)
    }
    /// Cubes of a pass over all rows.
    fn passes(&self) -> usize {
        let rows = self.images * self.pixels;
        rows.div_ceil(self.plan.chunk).max(1) * self.plan.blocks
    }
}

/// Mean and sum of squared deviations of each own lane, `[lanes, 2, channels]`; zeros of an empty one.
pub(super) fn moments(y: &T, cut: Cut) -> T {
    let g = Grid::new(&[y]);
    let (p, client) = (g.plan, &y.client);
    let parts = g.parts(y);
    let rows = empty(y, [cut.own, 2 * g.channels], DType::F32);
    let blocks = g.channels.div_ceil(COLUMNS);
    // SAFETY: pieces are those of the images, columns those of the channels.
    unsafe {
        if g.pieces() > 0 {
            moments_kernel::launch_unchecked(
                client,
                cubes(client, g.pieces() * p.blocks),
                cube_dim(),
                g.vector,
                arg(y, g.vector),
                arg(&parts, g.vector),
                g.pixels,
                p.chunk,
                p.per_image,
                g.pieces(),
                p.vectors,
                p.width,
                p.blocks,
                UNITS,
                elem(y.dtype),
            );
        }
        merge_kernel::launch_unchecked(
            client,
            cubes(client, blocks * cut.own),
            cube_dim(),
            arg(&parts, 1),
            arg(&rows, 1),
            g.pixels,
            p.chunk,
            p.per_image,
            g.channels,
            blocks,
            cut.all,
            cut.lanes,
            cut.first,
            cut.own,
            COLUMNS,
            SLOTS,
        );
    }
    rows
}

/// What the statistics of a norm are, on the device.
pub(super) enum Source {
    /// `[lanes of all ranks, 2, channels]`, and the running statistics that move towards them with this momentum.
    Lanes(T, Option<(Places, f32)>),
    Fixed(Places),
}

/// Where mean and variance lie.
#[derive(Clone)]
pub(super) struct Places {
    pub flat: T,
    pub mean: usize,
    pub var: usize,
}

/// Activations, and `[4, channels]` for the backward pass.
pub(super) fn normalise(
    y: &T,
    gamma: &T,
    beta: &T,
    source: Source,
    cut: Cut,
    act: Activation,
) -> (T, T) {
    let g = Grid::new(&[y]);
    let (p, client) = (g.plan, &y.client);
    let out = empty(y, y.meta.shape().clone(), y.dtype);
    let stats = empty(y, [4, g.channels], DType::F32);
    let (rows, places, momentum, fixed) = match source {
        Source::Lanes(rows, running) => {
            let (places, momentum) = running.unzip();
            (rows, places, momentum, false)
        }
        Source::Fixed(places) => (table(y, 1), Some(places), None, true),
    };
    let tracks = momentum.is_some();
    // without images there is nothing to read or write, but statistics there are: those of other ranks
    let (from, to) = match g.images {
        0 => (table(y, 4), table(y, 4)),
        _ => (y.clone(), out.clone()),
    };
    let places = places.unwrap_or_else(|| Places {
        flat: table(y, 1),
        mean: 0,
        var: 0,
    });
    // SAFETY: units stay in the rows and channels of `y`.
    unsafe {
        normalise_kernel::launch_unchecked(
            client,
            cubes(client, g.passes()),
            cube_dim(),
            g.vector,
            arg(&from, g.vector),
            arg(gamma, 1),
            arg(beta, 1),
            arg(&rows, 1),
            arg(&places.flat, 1),
            arg(&stats, 1),
            arg(&to, g.vector),
            g.images * g.pixels,
            p.chunk,
            p.vectors,
            p.width,
            p.blocks,
            g.pixels,
            cut.images,
            cut.all,
            cut.lanes,
            cut.first,
            places.mean,
            places.var,
            momentum.unwrap_or(0.0),
            crate::ops::NORM_EPS as f32,
            cut.own,
            fixed,
            tracks,
            act == Activation::Silu,
            UNITS,
            elem(y.dtype),
        );
    }
    (out, stats)
}

/// Sums of `dz` and `dz (y - mean)` of each own lane, `[lanes, 2, channels]`; the gradients of gamma and beta go to
/// their targets, or are returned.
pub(super) fn gradient_sums(
    da: &T,
    y: &T,
    stats: &T,
    cut: Cut,
    act: Activation,
    gamma: Target,
    beta: Target,
) -> (T, T, T) {
    let g = Grid::new(&[y, da]);
    let (p, client) = (g.plan, &y.client);
    let parts = g.parts(y);
    let c = g.channels;
    let rows = empty(y, [cut.own, 2 * c], DType::F32);
    // one launch where both go to the same memory, as those of a step do
    let direct = match (&gamma, &beta) {
        (Target::Slot(_, a), Target::Slot(_, b)) => (same_memory(&a.flat, &b.flat)
            && a.add == b.add)
            .then(|| (a.flat.clone(), a.offset, b.offset, a.add)),
        _ => None,
    };
    let is_direct = direct.is_some();
    let (out, gamma_at, beta_at, add) =
        direct.unwrap_or_else(|| (empty(y, [cut.own, 2 * c], DType::F32), 0, c, false));
    let blocks = c.div_ceil(COLUMNS);
    // SAFETY: pieces are those of the images, columns those of the channels.
    unsafe {
        if g.pieces() > 0 {
            gradient_sums_kernel::launch_unchecked(
                client,
                cubes(client, g.pieces() * p.blocks),
                cube_dim(),
                g.vector,
                arg(y, g.vector),
                arg(da, g.vector),
                arg(stats, 1),
                arg(&parts, g.vector),
                g.pixels,
                p.chunk,
                p.per_image,
                g.pieces(),
                p.vectors,
                p.width,
                p.blocks,
                act == Activation::Silu,
                UNITS,
                elem(y.dtype),
            );
        }
        gradient_lanes_kernel::launch_unchecked(
            client,
            cubes(client, blocks * cut.own),
            cube_dim(),
            arg(&parts, 1),
            arg(stats, 1),
            arg(&rows, 1),
            arg(&out, 1),
            p.per_image,
            c,
            blocks,
            cut.all,
            cut.lanes,
            cut.first,
            cut.own,
            sums::lane_len(&out),
            gamma_at,
            beta_at,
            add,
            COLUMNS,
            SLOTS,
        );
    }
    let put = |target: Target, from: usize| match target {
        Target::Slot(slot, _) if is_direct => {
            slot.sink.written(slot.id);
            sums::nothing(y)
        }
        target => sums::put(&out, from, target, [c].into(), DType::F32),
    };
    let (dgamma, dbeta) = (put(gamma, 0), put(beta, c));
    (rows, dgamma, dbeta)
}

fn same_memory(a: &T, b: &T) -> bool {
    a.handle.memory.descriptor() == b.handle.memory.descriptor()
        && a.handle.offset_start == b.handle.offset_start
}

/// The gradient with respect to `y`; `rows` are the sums of all ranks' lanes, `None` where the statistics are constants.
pub(super) fn input_gradient(
    da: &T,
    y: &T,
    stats: &T,
    rows: Option<T>,
    cut: Cut,
    act: Activation,
) -> T {
    let g = Grid::new(&[y, da]);
    let (p, client) = (g.plan, &y.client);
    let out = empty(y, y.meta.shape().clone(), y.dtype);
    if g.images == 0 {
        return out;
    }
    let fixed = rows.is_none();
    let rows = rows.unwrap_or_else(|| table(y, 1));
    // SAFETY: units stay in the rows and channels of `y`.
    unsafe {
        input_gradient_kernel::launch_unchecked(
            client,
            cubes(client, g.passes()),
            cube_dim(),
            g.vector,
            arg(y, g.vector),
            arg(da, g.vector),
            arg(stats, 1),
            arg(&rows, 1),
            arg(&out, g.vector),
            g.images * g.pixels,
            p.chunk,
            p.vectors,
            p.width,
            p.blocks,
            g.pixels,
            cut.images,
            cut.own,
            fixed,
            act == Activation::Silu,
            UNITS,
            elem(y.dtype),
        );
    }
    out
}
