//! One filter per channel: vectors of channels, no sums over channels.
//!
//! 3x3 with stride 1 slides along a row and keeps the filter and three columns of sums in registers; everything
//! else takes the plain loops of [`plain`].

mod plain;
mod slide;

use std::ops::Range;

use rayon::prelude::*;

use super::super::buffer::{Buffer, Shared};
use super::super::isa::Isa;
use super::super::lanes::{LaneSums, store, tree};
use super::ConvShape;

/// Output rows of a task.
fn rows_of_task(rows: usize, row: usize) -> usize {
    let cached = (192 * 1024 / (8 * row).max(1)).max(4) / 4 * 4;
    cached.min(rows.div_ceil(8).max(4)).min(rows).max(1)
}

pub(super) fn forward<T: Send>(
    isa: Isa,
    shape: &ConvShape,
    x: &[f32],
    w: &[f32],
    y: &mut [f32],
    after: impl Fn(&mut [f32]) -> T + Sync,
) -> Vec<T> {
    let (oh, ow, c) = (shape.out_h(), shape.out_w(), shape.co);
    let slides = shape.k == 3 && shape.stride == 1;
    let task = rows_of_task(oh, ow * c);
    let tasks = oh.div_ceil(task);
    let zeros = Buffer::zeros(if slides { shape.w * c } else { 0 });
    let zeros = &zeros[..];
    let out = Shared::new(y);
    let one = |t: usize| {
        let (image, r0) = (t / tasks, t % tasks * task);
        let r1 = (r0 + task).min(oh);
        // SAFETY: a task's rows are its own.
        let y = unsafe { out.slice((image * oh + r0) * ow * c, (r1 - r0) * ow * c) };
        let x = &x[image * shape.h * shape.w * c..][..shape.h * shape.w * c];
        if slides {
            slide::rows(isa, (shape.h, shape.w, c), x, w, zeros, y, r0..r1, false);
        } else {
            plain::forward(isa, shape, x, w, y, r0..r1);
        }
        after(y)
    };
    (0..shape.n * tasks).into_par_iter().map(one).collect()
}

pub(super) fn backward_data(
    isa: Isa,
    shape: &ConvShape,
    dy: &[f32],
    w: &[f32],
    dx: &mut [f32],
    add: bool,
) {
    let (h, c) = (shape.h, shape.ci);
    let slides = shape.k == 3 && shape.stride == 1;
    let mut turned = Buffer::take(w.len());
    for (t, tap) in w.chunks(c).rev().enumerate() {
        turned[t * c..][..c].copy_from_slice(tap);
    }
    let turned = &turned[..];
    let task = rows_of_task(h, shape.w * c);
    let tasks = h.div_ceil(task);
    let zeros = Buffer::zeros(if slides { shape.w * c } else { 0 });
    let zeros = &zeros[..];
    let out = Shared::new(dx);
    let image_y = shape.out_h() * shape.out_w() * c;
    (0..shape.n * tasks).into_par_iter().for_each(|t| {
        let (image, r0) = (t / tasks, t % tasks * task);
        let r1 = (r0 + task).min(h);
        // SAFETY: a task's rows are its own.
        let dx = unsafe { out.slice((image * h + r0) * shape.w * c, (r1 - r0) * shape.w * c) };
        let dy = &dy[image * image_y..][..image_y];
        if slides {
            slide::rows(isa, (h, shape.w, c), dy, turned, zeros, dx, r0..r1, add);
        } else {
            plain::backward_data(isa, shape, dy, w, dx, r0..r1, add);
        }
    });
}

pub(super) fn backward_weight(
    isa: Isa,
    shape: &ConvShape,
    x: &[f32],
    dy: &[f32],
    lanes: &[Range<usize>],
    sums: &mut LaneSums,
) {
    let (oh, ow, c, size) = (shape.out_h(), shape.out_w(), shape.ci, shape.w_len());
    let slides = shape.k == 3 && shape.stride == 1;
    // Units of an image, each a partial sum.
    let units = (oh * ow / 400).clamp(1, 8).min(oh);
    let zeros = Buffer::zeros(if slides { shape.w * c } else { 0 });
    let zeros = &zeros[..];
    let mut partial = Buffer::take(shape.n * units * size);
    partial
        .par_chunks_mut(size)
        .enumerate()
        .for_each(|(u, partial)| {
            let (image, u) = (u / units, u % units);
            let rows = u * oh / units..(u + 1) * oh / units;
            let x = &x[image * shape.h * shape.w * c..][..shape.h * shape.w * c];
            let dy = &dy[image * oh * ow * c..][..oh * ow * c];
            if slides {
                slide::weight(isa, (shape.h, shape.w, c), x, dy, zeros, partial, rows);
            } else {
                plain::backward_weight(isa, shape, x, dy, partial, rows);
            }
        });
    let add = |a: &mut [f32], b: &[f32]| a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
    let more = sums.add;
    for (group, out) in sums.groups.iter().zip(sums.out.iter_mut()) {
        let sum = tree(
            group.clone(),
            &mut |l| {
                let mut parts = partial
                    .chunks(size)
                    .skip(lanes[l].start * units)
                    .take(lanes[l].len() * units);
                let mut sum = Buffer::take(size);
                sum.copy_from_slice(parts.next()?);
                parts.for_each(|p| add(&mut sum, p));
                Some(sum)
            },
            &mut |mut a, b| {
                add(&mut a, &b);
                a
            },
        );
        store(sum.as_deref(), out, more);
    }
}
