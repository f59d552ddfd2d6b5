//! Task-aligned assignment on the device, with the rules of [`crate::loss::assign`].
//!
//! A cube for each object scans the anchors inside of it and keeps the best ones, ordered by alignment and then by
//! anchor: an order without ties, so that it does not matter which unit saw an anchor. A second launch gives an anchor
//! that several objects want to the one that overlaps it most, keeps each object's best ones and writes the targets.

use super::math::{EPS, Pair, iou, penalty, sigmoid};
use super::truths::{LEVEL, NONE, Seen, cell, object};
use cubecl::prelude::*;

/// Units of a cube that looks for an object's anchors.
pub(super) const SCAN_UNITS: usize = 128;
/// Units of a cube that resolves an object's conflicts.
pub(super) const RESOLVE_UNITS: usize = 64;
/// Most anchors of an object before conflicts are resolved: what `SCAN_UNITS` lists of them may take of shared memory.
pub(super) const MOST_FIRST: usize = 10;
/// A centre this close to an object's side, in pixels, is not inside; also what keeps a quotient finite.
const CLOSE: f32 = 1e-9;

/// `[n, a, 4]` distances in stride units from raw outputs `[n, a, 4 * reg_max]`; clears what the kernels that follow add
/// to: the gradient of the boxes, and the targets of all anchors. A unit for each side of an anchor.
#[cube(launch)]
pub(super) fn decode_kernel<B: Float, N: Size>(
    boxes: &[Vector<B, N>],
    d_boxes: &mut [Vector<B, N>],
    distances: &mut [f32],
    targets: &mut [u32],
    sides: u32,
    #[comptime] reg_max: usize,
    #[define(B)] _dtype: ElemType,
) {
    let side = ABSOLUTE_POS;
    if side >= sides as usize {
        terminate!();
    }
    let size = N::value();
    let vectors = comptime!(reg_max / size);
    let first = side * vectors;
    let distance = if comptime!(reg_max == 1) {
        f32::cast_from(boxes[first].extract(0usize))
    } else {
        let mut max = f32::cast_from(boxes[first].extract(0usize));
        for i in 0..vectors {
            let v = boxes[first + i];
            #[unroll]
            for j in 0..size {
                max = f32::max(max, f32::cast_from(v.extract(j)));
            }
        }
        let mut sum = 0.0f32;
        let mut mean = 0.0f32;
        for i in 0..vectors {
            let v = boxes[first + i];
            #[unroll]
            for j in 0..size {
                let e = f32::exp(f32::cast_from(v.extract(j)) - max);
                sum += e;
                mean += e * f32::cast_from(i * size + j);
            }
        }
        mean / sum
    };
    for i in 0..vectors {
        d_boxes[first + i] = Vector::zeroed();
    }
    distances[side] = distance;
    if side % 4 < 1 {
        targets[side / 2] = NONE;
        targets[side / 2 + 1] = 0u32;
    }
}

/// Prediction and object around an anchor, in units of its stride.
#[cube]
fn around(distances: &[f32], row: u32, x: f32, y: f32, stride: f32, t: &Seen) -> Pair {
    let at = row as usize * 4;
    Pair {
        p0: -distances[at],
        p1: -distances[at + 1],
        p2: distances[at + 2],
        p3: distances[at + 3],
        t0: (t.x1 - x) / stride,
        t1: (t.y1 - y) / stride,
        t2: (t.x2 - x) / stride,
        t3: (t.y2 - y) / stride,
    }
}

/// As [`around`], for kernels that know the anchor.
#[cube]
pub(super) fn around_anchor(
    distances: &[f32],
    levels: &[u32],
    anchors: u32,
    anchor: u32,
    t: &Seen,
    #[comptime] level_count: usize,
) -> Pair {
    let c = cell(levels, anchor, level_count);
    around(distances, t.image * anchors + anchor, c.x, c.y, c.stride, t)
}

/// First cell of a row or column whose centre can lie beyond `lo`.
#[cube]
fn first_cell(lo: f32, stride: f32, n: u32) -> u32 {
    let c = f32::max(f32::floor(lo / stride - 0.5f32), 0.0f32);
    u32::cast_from(f32::min(c, f32::cast_from(n)))
}

/// One past the last cell whose centre can lie before `hi`.
#[cube]
fn last_cell(hi: f32, stride: f32, n: u32) -> u32 {
    let c = f32::max(f32::ceil(hi / stride - 0.5f32) + 1.0f32, 0.0f32);
    u32::cast_from(f32::min(c, f32::cast_from(n)))
}

/// The `k` best anchors of each object in the order of their alignment: anchor (or [`NONE`]), alignment, overlap,
/// `[objects, k]` each. A cube for each object.
#[cube(launch)]
pub(super) fn candidates_kernel<S: Float>(
    truths: &[u32],
    levels: &[u32],
    distances: &[f32],
    scores: &[S],
    best_anchor: &mut [u32],
    best_metric: &mut [f32],
    best_overlap: &mut [f32],
    total: u32,
    records: u32,
    anchors: u32,
    min_side: f32,
    #[comptime] k: usize,
    #[comptime] classes: usize,
    #[comptime] level_count: usize,
    #[define(S)] _dtype: ElemType,
) {
    let truth = CUBE_POS as u32;
    if truth >= total {
        terminate!();
    }
    let units = comptime!(SCAN_UNITS as u32);
    let t = object(truths, records, truth);
    // small objects are enlarged, for the choice of candidates only
    let half = min_side / 2.0f32;
    let small_x = t.x2 - t.x1 < min_side;
    let small_y = t.y2 - t.y1 < min_side;
    let centre_x = (t.x1 + t.x2) / 2.0f32;
    let centre_y = (t.y1 + t.y2) / 2.0f32;
    let x1 = select(small_x, centre_x - half, t.x1);
    let x2 = select(small_x, centre_x + half, t.x2);
    let y1 = select(small_y, centre_y - half, t.y1);
    let y2 = select(small_y, centre_y + half, t.y2);

    let mut anchor_of = Array::<u32>::new(k);
    let mut metric_of = Array::<f32>::new(k);
    let mut overlap_of = Array::<f32>::new(k);
    #[unroll]
    for i in 0..k {
        anchor_of[i] = NONE;
        metric_of[i] = 0.0f32;
        overlap_of[i] = 0.0f32;
    }
    for level in 0..level_count {
        let at = level * comptime!(LEVEL);
        let first = levels[at];
        let rows = levels[at + 1];
        let cols = levels[at + 2];
        let stride = f32::cast_from(levels[at + 3]);
        let c1 = first_cell(x1, stride, cols);
        let c2 = last_cell(x2, stride, cols);
        let r1 = first_cell(y1, stride, rows);
        let r2 = last_cell(y2, stride, rows);
        if c2 > c1 && r2 > r1 {
            let width = c2 - c1;
            let cells = width * (r2 - r1);
            // an anchor's alignment does not depend on units of length but for what keeps quotients finite
            let side = EPS / stride;
            let area = side / stride;
            let mut i = UNIT_POS;
            while i < cells {
                let row = r1 + i / width;
                let col = c1 + i % width;
                let x = (f32::cast_from(col) + 0.5f32) * stride;
                let y = (f32::cast_from(row) + 0.5f32) * stride;
                let near_x = f32::min(x - x1, x2 - x);
                let near_y = f32::min(y - y1, y2 - y);
                if f32::min(near_x, near_y) > CLOSE {
                    let anchor = first + row * cols + col;
                    let of_image = t.image * anchors + anchor;
                    let pair = around(distances, of_image, x, y, stride, &t);
                    let floor = metric_of[comptime!(k - 1)];
                    let over = iou(&pair, side, area);
                    let most = sixth(f32::max(over, 0.0f32));
                    if most > floor {
                        let at = of_image as usize * comptime!(classes) + t.class as usize;
                        let root = f32::sqrt(sigmoid(f32::cast_from(scores[at])));
                        if root * most > floor {
                            let overlap = f32::max(over - penalty(&pair, over, side, area), 0.0f32);
                            let metric = root * sixth(overlap);
                            if metric > floor {
                                // it goes after those that are as good: their anchors are lower
                                let mut a = anchor;
                                let mut m = metric;
                                let mut o = overlap;
                                let mut placed = 0u32;
                                #[unroll]
                                for i in 0..k {
                                    if placed == 1 || m > metric_of[i] {
                                        let (a_old, m_old, o_old) =
                                            (anchor_of[i], metric_of[i], overlap_of[i]);
                                        anchor_of[i] = a;
                                        metric_of[i] = m;
                                        overlap_of[i] = o;
                                        a = a_old;
                                        m = m_old;
                                        o = o_old;
                                        placed = 1u32;
                                    }
                                }
                            }
                        }
                    }
                }
                i += units;
            }
        }
    }

    let mut all_anchors = Shared::<[u32]>::new_slice(comptime!(SCAN_UNITS * k));
    let mut all_metrics = Shared::<[f32]>::new_slice(comptime!(SCAN_UNITS * k));
    let mut all_overlaps = Shared::<[f32]>::new_slice(comptime!(SCAN_UNITS * k));
    let own = UNIT_POS as usize * k;
    #[unroll]
    for i in 0..k {
        all_anchors[own + i] = anchor_of[i];
        all_metrics[own + i] = metric_of[i];
        all_overlaps[own + i] = overlap_of[i];
    }
    sync_cube();
    let mut half = CUBE_DIM / 2;
    while half > 0 {
        if UNIT_POS < half {
            let mut a = own;
            let mut b = (UNIT_POS + half) as usize * k;
            #[unroll]
            for i in 0..k {
                let (ma, mb) = (all_metrics[a], all_metrics[b]);
                let first = ma > mb || (ma == mb && all_anchors[a] <= all_anchors[b]);
                let from = select(first, a, b);
                anchor_of[i] = all_anchors[from];
                metric_of[i] = all_metrics[from];
                overlap_of[i] = all_overlaps[from];
                if first {
                    a += 1;
                } else {
                    b += 1;
                }
            }
            #[unroll]
            for i in 0..k {
                all_anchors[own + i] = anchor_of[i];
                all_metrics[own + i] = metric_of[i];
                all_overlaps[own + i] = overlap_of[i];
            }
        }
        sync_cube();
        half /= 2;
    }
    if UNIT_POS < k as u32 {
        let from = UNIT_POS as usize;
        let to = truth as usize * k + from;
        best_anchor[to] = all_anchors[from];
        best_metric[to] = all_metrics[from];
        best_overlap[to] = all_overlaps[from];
    }
}

/// `x^6`.
#[cube]
fn sixth(x: f32) -> f32 {
    let square = x * x;
    square * square * square
}

/// Which of the candidates `[objects, k]` stay: in `slots` `[objects, k, 2]` their anchor (or [`NONE`]) and the bits of
/// their soft target, in `targets` `[n, a, 2]` the class that an anchor stands for and the bits of its target. A cube for
/// each object.
#[cube(launch)]
pub(super) fn resolve_kernel(
    truths: &[u32],
    best_anchor: &[u32],
    best_metric: &[f32],
    best_overlap: &[f32],
    slots: &mut [u32],
    targets: &mut [u32],
    total: u32,
    records: u32,
    anchors: u32,
    last: u32,
    #[comptime] k: usize,
) {
    let truth = CUBE_POS as u32;
    if truth >= total {
        terminate!();
    }
    let t = object(truths, records, truth);
    let image = t.image as usize;
    let per_object = comptime!(k as u32);
    let begin = truths[image] * per_object;
    let end = truths[image + 1] * per_object;
    let own = truth * per_object;
    let mut anchor_of = Array::<u32>::new(k);
    let mut overlap_of = Array::<f32>::new(k);
    #[unroll]
    for i in 0..k {
        anchor_of[i] = best_anchor[own as usize + i];
        overlap_of[i] = best_overlap[own as usize + i];
    }
    // a bit for each candidate that another object of the image has
    let mut lost = 0u32;
    let mut slot = begin + UNIT_POS;
    while slot < end {
        let anchor = best_anchor[slot as usize];
        let other = slot / per_object;
        if anchor != NONE && other != truth {
            let overlap = best_overlap[slot as usize];
            #[unroll]
            for i in 0..k {
                let better = overlap > overlap_of[i] || (overlap == overlap_of[i] && other < truth);
                if anchor == anchor_of[i] && better {
                    lost |= comptime!(1u32 << i);
                }
            }
        }
        slot += comptime!(RESOLVE_UNITS as u32);
    }
    let mut all_lost = Shared::<[u32]>::new_slice(RESOLVE_UNITS);
    all_lost[UNIT_POS as usize] = lost;
    sync_cube();
    if UNIT_POS == 0 {
        let mut lost = 0u32;
        for i in 0..RESOLVE_UNITS {
            lost |= all_lost[i];
        }
        let mut count = 0u32;
        let mut most_metric = 0.0f32;
        let mut most_overlap = 0.0f32;
        let mut stays = 0u32;
        #[unroll]
        for i in 0..k {
            let free = anchor_of[i] != NONE && lost & comptime!(1u32 << i) == 0;
            if free && count < last {
                count += 1;
                stays |= comptime!(1u32 << i);
                most_metric = f32::max(most_metric, best_metric[own as usize + i]);
                most_overlap = f32::max(most_overlap, overlap_of[i]);
            }
        }
        #[unroll]
        for i in 0..k {
            let at = own as usize + i;
            if stays & comptime!(1u32 << i) == 0 {
                slots[at * 2] = NONE;
                slots[at * 2 + 1] = 0u32;
            } else {
                let target = best_metric[at] * most_overlap / (most_metric + CLOSE);
                let row = (t.image * anchors + anchor_of[i]) as usize;
                slots[at * 2] = anchor_of[i];
                slots[at * 2 + 1] = target.to_bits();
                targets[row * 2] = t.class;
                targets[row * 2 + 1] = target.to_bits();
            }
        }
    }
}
