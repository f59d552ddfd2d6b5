//! Sums of the loss: over the pieces of an image, then over the images of a lane, in orders that shapes alone give.

use cubecl::prelude::*;

/// Units of a cube that sums an image.
pub(super) const UNITS: usize = 256;
/// Sums of a lane: boxes, classes, distances, target scores.
pub const SUMS: usize = 4;

/// Sum of the units' numbers in a binary tree; the first unit has it. All units of a cube of `units`, a power of two,
/// must come here.
#[cube]
pub(crate) fn tree(value: f32, #[comptime] units: usize) -> f32 {
    let mut all = Shared::<[f32]>::new_slice(units);
    all[UNIT_POS as usize] = value;
    sync_cube();
    let mut half = CUBE_DIM / 2;
    while half > 0 {
        if UNIT_POS < half {
            let other = all[(UNIT_POS + half) as usize];
            all[UNIT_POS as usize] += other;
        }
        sync_cube();
        half /= 2;
    }
    all[0]
}

/// Sums of an image, `[n, 4]`. A cube for each image.
#[cube(launch)]
pub(super) fn image_kernel(
    truths: &[u32],
    pieces: &[f32],
    terms: &[f32],
    slots: &[u32],
    sums: &mut [f32],
    piece_count: u32,
    #[comptime] k: usize,
) {
    let image = CUBE_POS_X;
    let units = comptime!(UNITS as u32);
    let mut classes = 0.0f32;
    let mut i = UNIT_POS;
    while i < piece_count {
        classes += pieces[(image * piece_count + i) as usize];
        i += units;
    }
    let mut boxes = 0.0f32;
    let mut distances = 0.0f32;
    let mut scores = 0.0f32;
    let end = truths[image as usize + 1] * comptime!(k as u32);
    let mut slot = truths[image as usize] * comptime!(k as u32) + UNIT_POS;
    while slot < end {
        let at = slot as usize * 8;
        boxes += terms[at];
        distances += terms[at + 1] + terms[at + 3] + (terms[at + 5] + terms[at + 7]);
        scores += f32::from_bits(slots[slot as usize * 2 + 1]);
        slot += units;
    }
    let boxes = tree(boxes, UNITS);
    let classes = tree(classes, UNITS);
    let distances = tree(distances, UNITS);
    let scores = tree(scores, UNITS);
    if UNIT_POS == 0 {
        let at = image as usize * 4;
        sums[at] = boxes;
        sums[at + 1] = classes;
        sums[at + 2] = distances;
        sums[at + 3] = scores;
    }
}

/// Sums of a lane's images one after the other, `[lanes, 4]`; `bounds` `[lanes, 2]` are its first image and one past its
/// last. A unit for each number.
#[cube(launch)]
pub(super) fn lane_kernel(of_images: &[f32], bounds: &[u32], sums: &mut [f32], numbers: u32) {
    let index = ABSOLUTE_POS as u32;
    if index >= numbers {
        terminate!();
    }
    let lane = index as usize / 4;
    let mut sum = 0.0f32;
    let mut image = bounds[lane * 2];
    let end = bounds[lane * 2 + 1];
    while image < end {
        sum += of_images[(image * 4 + index % 4) as usize];
        image += 1;
    }
    sums[index as usize] = sum;
}
