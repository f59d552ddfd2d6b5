//! Convolution of NHWC activations with HWIO weights, padding `k / 2`: forward and both gradients.
//!
//! Values depend on shapes and data alone, not on the number of threads (work is cut by shape, every sum has a
//! fixed order), and those of an image not on the rest of the batch. All of it runs in the caller's rayon pool.
//!
//! Read `gather` first: forward and data gradient are the same loop over `tile`s. `weight` is the weight
//! gradient, `depthwise` the case of one filter per channel.

mod bias;
mod depthwise;
mod epilogue;
mod gather;
mod pack;
mod shape;
mod tile;
mod weight;
mod weight_tile;

#[cfg(test)]
mod tests;

pub use bias::column_sums;
pub use epilogue::Epilogue;
pub use shape::ConvShape;

use std::ops::Range;

use super::isa::Isa;
use super::lanes::{self, LaneSums};

/// `y = conv(x, w)`, then the epilogue.
///
/// `x` `[n, h, w, ci]`, `w` `[k, k, ci / groups, co]`, `y` `[n, ceil(h / stride), ceil(w / stride), co]`.
/// Panics where a length does not fit the shape.
pub fn conv_forward(
    isa: Isa,
    shape: &ConvShape,
    x: &[f32],
    w: &[f32],
    y: &mut [f32],
    epilogue: Epilogue,
) {
    epilogue.check(shape.co);
    conv_forward_map(isa, shape, x, w, y, |part| {
        epilogue.apply(isa, part, shape.co)
    });
}

/// As [`conv_forward`], and calls `after` on each part of `y`, whole rows of one image, while it is still in the
/// cache. How an image is cut depends on the shape alone, not on `n`; the results come in the order of the images
/// and of the parts in them, so an image has `len / n` of them.
pub fn conv_forward_map<T: Send>(
    isa: Isa,
    shape: &ConvShape,
    x: &[f32],
    w: &[f32],
    y: &mut [f32],
    after: impl Fn(&mut [f32]) -> T + Sync,
) -> Vec<T> {
    shape.check(x, w, y);
    if shape.depthwise() {
        depthwise::forward(isa, shape, x, w, y, after)
    } else {
        gather::forward(isa, shape, x, w, y, after)
    }
}

/// Gradient with respect to `x`: `dx` `[n, h, w, ci]` from `dy` `[n, oh, ow, co]`; added to `dx` if `add`.
pub fn conv_backward_data(
    isa: Isa,
    shape: &ConvShape,
    dy: &[f32],
    w: &[f32],
    dx: &mut [f32],
    add: bool,
) {
    shape.check(dx, w, dy);
    if shape.depthwise() {
        depthwise::backward_data(isa, shape, dy, w, dx, add);
    } else {
        gather::backward_data(isa, shape, dy, w, dx, add);
    }
}

/// Gradient with respect to `w`, `[k, k, ci / groups, co]`, for each group of lanes: the sum over its lanes in the order
/// of [`lanes::tree`] of the lanes' own sums, which are what this gives for a lane alone.
pub fn conv_backward_weight(
    isa: Isa,
    shape: &ConvShape,
    x: &[f32],
    dy: &[f32],
    lanes: &[Range<usize>],
    sums: &mut LaneSums,
) {
    for dw in sums.out.iter() {
        shape.check(x, dw, dy);
    }
    lanes::check(lanes, shape.n);
    if shape.depthwise() {
        depthwise::backward_weight(isa, shape, x, dy, lanes, sums);
    } else {
        weight::backward_weight(isa, shape, x, dy, lanes, sums);
    }
}
