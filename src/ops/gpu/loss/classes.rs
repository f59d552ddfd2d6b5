//! Binary cross entropy of all anchors and classes with their soft targets, and its gradient.

use super::math::{sigmoid, softplus};
use super::sums::tree;
use cubecl::prelude::*;

/// Units of a cube.
pub(super) const UNITS: usize = 256;
/// Vectors of a unit.
pub(super) const PER_UNIT: usize = 4;

/// Overwrites the gradient `d` of scores `[n, a, classes]` and leaves sums of pieces, `[n, pieces]`. A cube for each
/// piece (x) of an image (y).
#[cube(launch)]
pub(super) fn classes_kernel<S: Float, N: Size>(
    scores: &[Vector<S, N>],
    targets: &[u32],
    weights: &[f32],
    d: &mut [Vector<S, N>],
    pieces: &mut [f32],
    vectors: u32,
    anchors: u32,
    scale: f32,
    #[comptime] classes: usize,
    #[comptime] weighted: bool,
    #[define(S)] _dtype: ElemType,
) {
    let image = CUBE_POS_Y;
    let size = N::value();
    // of an anchor
    let of_row = comptime!((classes / size) as u32);
    let mut sum = 0.0f32;
    #[unroll]
    for step in 0..PER_UNIT {
        let v = CUBE_POS_X * comptime!((UNITS * PER_UNIT) as u32)
            + comptime!((step * UNITS) as u32)
            + UNIT_POS;
        if v < vectors {
            let row = (image * anchors + v / of_row) as usize;
            let first = (v % of_row) * comptime!(size as u32);
            let class = targets[row * 2];
            let target = f32::from_bits(targets[row * 2 + 1]);
            let at = image as usize * vectors as usize + v as usize;
            let x = scores[at];
            let mut slope = Vector::<f32, N>::zeroed();
            #[unroll]
            for j in 0..size {
                let here = first + comptime!(j as u32);
                let wanted = select(class == here, target, 0.0f32);
                let of_x = f32::cast_from(x.extract(j));
                let mut value = softplus(of_x) - of_x * wanted;
                let mut g = (sigmoid(of_x) - wanted) * scale;
                if weighted {
                    let w = weights[here as usize];
                    value *= w;
                    g *= w;
                }
                sum += value;
                slope.insert(j, g);
            }
            d[at] = Vector::cast_from(slope);
        }
    }
    let total = tree(sum, UNITS);
    if UNIT_POS == 0 {
        pieces[(image * CUBE_COUNT_X + CUBE_POS_X) as usize] = total;
    }
}
