//! Kernels of batch norm and activation; `norm.rs` says what they do for it.

use super::launch::lane_start;
use super::sums::{column_sum, fold, levels, pairs, tree_of_lanes};
use cubecl::num_traits::Zero;
use cubecl::prelude::*;

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
            let other = shared[at + next * width];
            shared[at] += other;
        }
        half = next;
    }
    sync_cube();
}

/// `[pieces, 2, channels]`: mean and sum of squared deviations of each piece.
#[cube(launch_unchecked)]
pub(super) fn moments_kernel<F: Float, N: Size>(
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

/// Merges the pieces of each own lane, into two values of each channel from column `at` on of `out` `[lanes, width]`.
#[cube(launch_unchecked)]
pub(super) fn merge_kernel(
    parts: &[f32],
    out: &mut [f32],
    at: usize,
    out_width: usize,
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
        let to = lane * out_width + at + channel;
        out[to] = mean;
        out[to + channels] = shared[unit];
    }
}

/// Mean and sum of squared deviations of a channel over all lanes (Chan, Golub and LeVeque 1979), in the tree's order.
/// Those of a lane lie from `at` on in a row of `table` `[lanes, stride]`.
#[cube]
fn merged(
    table: &[f32],
    at: usize,
    stride: usize,
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
        means[l] = table[l * stride + at + channel];
        squares[l] = table[l * stride + at + channels + channel];
    }
    #[unroll]
    for level in 0..comptime!(levels(lanes)) {
        #[unroll]
        for pair in 0..comptime!(pairs(lanes, level)) {
            let a = comptime!((pair * 2) << level);
            let b = comptime!(a + (1 << level));
            // an empty lane holds zeros, and merging it changes no bit
            let count = counts[a] + counts[b];
            let part = counts[b] / max(count, f32::new(1.0f32));
            let d = means[b] - means[a];
            squares[a] += fma(d * d, counts[a] * part, squares[b]);
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
pub(super) fn normalise_kernel<F: Float, N: Size>(
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
    table_at: usize,
    stride: usize,
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
                    table_at,
                    stride,
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
pub(super) fn gradient_sums_kernel<F: Float, N: Size>(
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

/// Sums the pieces of each own lane: of `dz` and `dz (y - mean)` from column `at` on of `out` `[lanes, out_width]`, and the
/// gradients of beta and gamma, `gradients[lane, ..]`.
#[cube(launch_unchecked)]
pub(super) fn gradient_lanes_kernel(
    parts: &[f32],
    stats: &[f32],
    out: &mut [f32],
    gradients: &mut [f32],
    at: usize,
    out_width: usize,
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
        let to = lane * out_width + at + channel;
        out[to] = sum;
        out[to + channels] = centred;
        let gamma = centred * stats[2 * channels + channel];
        let (g, b) = (
            lane * stride + gamma_at + channel,
            lane * stride + beta_at + channel,
        );
        if add {
            gradients[g] += gamma;
            gradients[b] += sum;
        } else {
            gradients[g] = gamma;
            gradients[b] = sum;
        }
    }
}

/// `dy = scale (dz - sum(dz) / n - xhat sum(dz xhat) / n)`; the sums are 0 where the statistics are constants.
#[cube(launch_unchecked)]
pub(super) fn input_gradient_kernel<F: Float, N: Size>(
    y: &[Vector<F, N>],
    da: &[Vector<F, N>],
    stats: &[f32],
    table: &[f32],
    out: &mut [Vector<F, N>],
    table_at: usize,
    stride: usize,
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
                let first = table_at + channel;
                let sum = tree_of_lanes(table, first, stride, lanes);
                let centred = tree_of_lanes(table, first + channels, stride, lanes);
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
