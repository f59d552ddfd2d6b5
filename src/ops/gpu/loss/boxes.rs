//! Box and distance terms of the positives, and their gradient.

use super::assign::around_anchor;
use super::math::ciou_slope;
use super::truths::{NONE, cell, object};
use cubecl::prelude::*;

/// Units of a cube.
pub(super) const UNITS: usize = 64;

/// `1 - CIoU` and a quarter of the distance term, both times the target, `[slots, 4]` each (the first in each slot's
/// first place), and the gradient of the positives' raw outputs. A unit for each side of a slot; slots without an anchor
/// have terms of 0.
#[cube(launch)]
pub(super) fn boxes_kernel<B: Float>(
    truths: &[u32],
    levels: &[u32],
    distances: &[f32],
    slots: &[u32],
    boxes: &[B],
    d_boxes: &mut [B],
    terms: &mut [f32],
    count: u32,
    records: u32,
    anchors: u32,
    width: f32,
    height: f32,
    box_scale: f32,
    distance_scale: f32,
    #[comptime] k: usize,
    #[comptime] reg_max: usize,
    #[comptime] level_count: usize,
    #[define(B)] _dtype: ElemType,
) {
    let index = ABSOLUTE_POS as u32;
    let slot = index / 4;
    let side = index % 4;
    if slot >= count {
        terminate!();
    }
    let mut box_term = 0.0f32;
    let mut distance_term = 0.0f32;
    let anchor = slots[slot as usize * 2];
    if anchor != NONE {
        let target = f32::from_bits(slots[slot as usize * 2 + 1]);
        let t = object(truths, records, slot / comptime!(k as u32));
        let pair = around_anchor(distances, levels, anchors, anchor, &t, level_count);
        let row = t.image * anchors + anchor;
        let (ciou, slope) = ciou_slope(&pair, side);
        let far = side >= 2;
        let sign = select(far, 1.0f32, -1.0f32);
        let by_box = -slope * sign * box_scale * target;
        if side == 0 {
            box_term = (1.0f32 - ciou) * target;
        }
        let vertical = side % 2 == 1;
        let wanted = select(
            vertical,
            select(far, pair.t3, -pair.t1),
            select(far, pair.t2, -pair.t0),
        );
        let mean = distances[(row * 4 + side) as usize];
        let first = (row * 4 + side) as usize * reg_max;
        let by_distance = distance_scale * target / 4.0f32;
        if comptime!(reg_max == 1) {
            let stride = cell(levels, anchor, level_count).stride;
            let unit = stride / select(vertical, height, width);
            let off = mean - wanted;
            let direction = select(off > 0.0f32, 1.0f32, select(off < 0.0f32, -1.0f32, 0.0f32));
            distance_term = f32::abs(off) * unit / 4.0f32 * target;
            d_boxes[first] = B::cast_from(by_box + direction * unit * by_distance);
        } else {
            let mut max = f32::cast_from(boxes[first]);
            for b in 1..reg_max {
                max = f32::max(max, f32::cast_from(boxes[first + b]));
            }
            let mut sum = 0.0f32;
            for b in 0..reg_max {
                sum += f32::exp(f32::cast_from(boxes[first + b]) - max);
            }
            // cross entropy with the two bins around the target, linearly weighted
            let t = f32::min(
                f32::max(wanted, 0.0f32),
                comptime!(reg_max as f32 - 1.01f32),
            );
            let left = f32::floor(t);
            let low = left + 1.0f32 - t;
            let high = t - left;
            let log_sum = max + f32::ln(sum);
            let at = u32::cast_from(left) as usize;
            let entropy = low * (log_sum - f32::cast_from(boxes[first + at]))
                + high * (log_sum - f32::cast_from(boxes[first + at + 1]));
            distance_term = entropy / 4.0f32 * target;
            for b in 0..reg_max {
                let q = f32::exp(f32::cast_from(boxes[first + b]) - max) / sum;
                let w = select(b == at, low, select(b == at + 1, high, 0.0f32));
                let g = by_box * q * (f32::cast_from(b) - mean) + (q - w) * by_distance;
                d_boxes[first + b] = B::cast_from(g);
            }
        }
    }
    let to = index as usize * 2;
    terms[to] = box_term;
    terms[to + 1] = distance_term;
}
