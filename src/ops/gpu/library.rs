//! Convolutions through cuDNN: weights in its order, lanes, and gradients back into ours.

use super::conv::Sizes;
use super::cudnn::{self, Op};
use super::launch::{Cut, T, arg, elem, empty, lane_start, units};
use super::precision;
use super::sums::{self, Target, lane_len};
use crate::ops::extension::ConvArgs;
use burn::tensor::{DType, Shape};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::permute;
use cubecl::prelude::*;
use std::ops::Range;

/// Whether a convolution goes there at all: those with one filter per channel are quicker here.
fn takes(x: &T, s: &Sizes) -> bool {
    s.groups == 1 && !s.is_depthwise() && cudnn::applies(x)
}

/// `[k, k, ci, co]` as `[co, k, k, ci]`.
pub(super) fn filters(w: &T) -> T {
    into_contiguous(permute(w.clone(), &[3, 0, 1, 2]))
}

/// The images of a call: each lane by itself where bits must not depend on how many lanes a rank holds.
fn calls(lanes: &[Range<usize>], images: usize) -> Vec<Range<usize>> {
    if precision::deterministic() {
        lanes.iter().filter(|l| !l.is_empty()).cloned().collect()
    } else {
        vec![0..images]
    }
}

/// Rows `range` of a contiguous tensor, without a copy.
fn rows(t: &T, range: &Range<usize>) -> T {
    let mut shape = t.meta.shape().clone();
    let count = shape[0];
    let bytes = (t.meta.num_elements() / count.max(1) * t.elem_size()) as u64;
    shape[0] = range.len();
    let handle = t.handle.clone();
    let handle = handle
        .offset_start(range.start as u64 * bytes)
        .offset_end((count - range.end) as u64 * bytes);
    T::new_contiguous(t.client.clone(), t.device.clone(), shape, handle, t.dtype)
}

/// `None`: nothing was done.
fn by_calls(
    op: Op,
    [x, w, y]: [&T; 3],
    bias: Option<&T>,
    s: &Sizes,
    lanes: &[Range<usize>],
) -> Option<()> {
    for images in calls(lanes, s.n) {
        let part = Sizes {
            n: images.len(),
            ..*s
        };
        // refused for one of the calls: the kernels overwrite what the others wrote
        let (x, y) = (rows(x, &images), rows(y, &images));
        cudnn::run(op, [&x, w, &y], bias, &part).then_some(())?;
    }
    Some(())
}

/// With `bias` `[co]` added, where there is one.
pub(super) fn forward(x: &T, w: &T, bias: Option<&T>, s: &Sizes, a: &ConvArgs) -> Option<T> {
    if !takes(x, s) {
        return None;
    }
    let y = empty(x, s.y_shape(), x.dtype);
    let w = a.filters.kept_or(|| filters(w));
    let bias = bias.map(|b| sums::cast(b.clone(), x.dtype));
    let op = bias.as_ref().map_or(Op::Forward, |_| Op::Biased);
    by_calls(op, [x, &w, &y], bias.as_ref(), s, &a.lanes.cut(s.n))?;
    Some(y)
}

pub(super) fn backward_data(dy: &T, w: &T, s: &Sizes, a: &ConvArgs) -> Option<T> {
    if !takes(dy, s) {
        return None;
    }
    let dx = empty(dy, [s.n, s.h, s.w, s.ci], dy.dtype);
    let w = a.filters.kept_or(|| filters(w));
    by_calls(Op::Data, [&dx, &w, dy], None, s, &a.lanes.cut(s.n))?;
    Some(dx)
}

/// `out[lane, offset + (tap, ci), co] (+)= parts[lane, co, (tap, ci)]`, nothing of lanes without images.
#[cube(launch_unchecked)]
fn put_filters_kernel<F: Float>(
    parts: &[F],
    out: &mut [f32],
    own: usize,
    height: usize,
    co: usize,
    stride: usize,
    offset: usize,
    all: usize,
    lanes: usize,
    first: usize,
    #[comptime] whole: bool,
    #[comptime] add: bool,
    #[define(F)] _dtype: ElemType,
) {
    let len = height * co;
    if ABSOLUTE_POS >= own * len {
        terminate!();
    }
    let (lane, i) = (ABSOLUTE_POS / len, ABSOLUTE_POS % len);
    let (row, column) = (i / co, i % co);
    let mut filled = true.runtime();
    if !whole {
        filled = lane_start(lane + 1, all, lanes, first) > lane_start(lane, all, lanes, first);
    }
    let mut value = f32::new(0.0f32);
    if filled {
        value = f32::cast_from(parts[lane * len + column * height + row]);
    }
    let at = lane * stride + offset + i;
    if add {
        out[at] += value;
    } else {
        out[at] = value;
    }
}

/// The gradient with respect to the weights, as `conv::backward_weight` gives it.
pub(super) fn backward_weight(
    dy: &T,
    x: &T,
    s: &Sizes,
    lanes: &[Range<usize>],
    cut: Cut,
    target: &Target,
    shape: &Shape,
    dtype: DType,
) -> Option<T> {
    if !takes(x, s) || s.n == 0 {
        return None;
    }
    // without a place for each lane, and where bits may depend on the number of ranks, one sum does
    let whole = matches!(target, Target::Tensor) && !precision::deterministic();
    let own = if whole { 1 } else { cut.own };
    let one = [0..s.n];
    let lanes = if whole { &one[..] } else { lanes };
    let parts = empty(x, [own, s.weights()], x.dtype);
    for (i, images) in lanes.iter().enumerate().filter(|(_, l)| !l.is_empty()) {
        let part = Sizes {
            n: images.len(),
            ..*s
        };
        let (x, dy) = (rows(x, images), rows(dy, images));
        let out = rows(&parts, &(i..i + 1));
        cudnn::run(Op::Weight, [&x, &out, &dy], None, &part).then_some(())?;
    }
    Some(put_filters(&parts, s, cut, whole, target, shape, dtype))
}

/// Gradients `[lanes, co, k, k, ci]` into the target, in our order; `whole`, one of all images.
pub(super) fn put_filters(
    parts: &T,
    s: &Sizes,
    cut: Cut,
    whole: bool,
    target: &Target,
    shape: &Shape,
    dtype: DType,
) -> T {
    let own = parts.meta.shape()[0];
    let put = |out: &T, stride: usize, offset: usize, add: bool| {
        let client = &parts.client;
        let (count, dim) = units(own * s.weights());
        // SAFETY: a unit for each weight of each lane.
        unsafe {
            put_filters_kernel::launch_unchecked(
                client,
                count,
                dim,
                arg(parts, 1),
                arg(out, 1),
                own,
                s.k * s.k * s.ci,
                s.co,
                stride,
                offset,
                cut.all,
                cut.lanes,
                cut.first,
                whole,
                add,
                elem(parts.dtype),
            );
        }
    };
    match target {
        Target::Slot(slot, place) => {
            put(&place.flat, lane_len(&place.flat), place.offset, place.add);
            slot.sink.written(slot.id);
            sums::nothing(parts)
        }
        Target::Tensor | Target::Lanes => {
            let rows = empty(parts, [own, s.weights()], DType::F32);
            put(&rows, s.weights(), 0, false);
            match target {
                Target::Lanes => rows,
                _ => sums::put(&rows, 0, Target::Tensor, shape.clone(), dtype),
            }
        }
    }
}
