//! Convolutions with one filter per channel: bound by memory, so each unit keeps a few channels and reads its
//! neighbourhood, which the units beside it have just read.

use super::conv::Sizes;
use super::launch::{Cut, Plan, T, UNITS, arg, cube_dim, cubes, elem, table, units, vector};
use super::norm_kernels::fold_vectors;
use super::sums::{Target, lane_sums};
use burn::tensor::{DType, Shape};
use cubecl::num_traits::Zero;
use cubecl::prelude::*;

/// Rows of a piece of a weight gradient for each unit.
const TIMES: usize = 16;

/// `out[pixel, c] = sum over taps of a[pixel of the tap, c] w[tap, c]`; `turned`, the gradient with respect to a
/// convolution's input.
#[cube(launch_unchecked)]
fn filter_kernel<F: Float, N: Size>(
    a: &[Vector<F, N>],
    w: &[Vector<F, N>],
    out: &mut [Vector<F, N>],
    total: usize,
    a_h: u32,
    a_w: u32,
    out_h: u32,
    out_w: u32,
    vectors: u32,
    stride: u32,
    #[comptime] kernel: u32,
    #[comptime] turned: bool,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= total {
        terminate!();
    }
    let at = ABSOLUTE_POS as u32;
    let column = at % vectors;
    let pixel = at / vectors;
    let x = (pixel % out_w) as i32;
    let y = (pixel / out_w % out_h) as i32;
    let image = pixel / out_w / out_h;
    let pad = comptime!((kernel / 2) as i32);
    let step = stride as i32;
    let mut sum = Vector::<f32, N>::zero();
    #[unroll]
    for ky in 0..kernel {
        #[unroll]
        for kx in 0..kernel {
            let mut inside = true.runtime();
            let mut ay = 0i32.runtime();
            let mut ax = 0i32.runtime();
            if turned {
                let sy = y + pad - comptime!(ky as i32);
                let sx = x + pad - comptime!(kx as i32);
                ay = sy / step;
                ax = sx / step;
                inside = sy >= 0 && sx >= 0 && ay * step == sy && ax * step == sx;
            } else {
                ay = y * step + comptime!(ky as i32 - (kernel / 2) as i32);
                ax = x * step + comptime!(kx as i32 - (kernel / 2) as i32);
                inside = ay >= 0 && ax >= 0;
            }
            if inside && ay < a_h as i32 && ax < a_w as i32 {
                let from = ((image * a_h + ay as u32) * a_w + ax as u32) * vectors + column;
                let tap = comptime!(ky * kernel + kx) * vectors + column;
                let value = Vector::<f32, N>::cast_from(a[from as usize]);
                sum = fma(value, Vector::<f32, N>::cast_from(w[tap as usize]), sum);
            }
        }
    }
    out[ABSOLUTE_POS] = Vector::<F, N>::cast_from(sum);
}

/// `parts[piece, tap, c] = sum over the pixels of a piece of x[pixel of the tap, c] dy[pixel, c]`.
#[cube(launch_unchecked)]
fn weight_kernel<F: Float, N: Size>(
    x: &[Vector<F, N>],
    dy: &[Vector<F, N>],
    parts: &mut [Vector<f32, N>],
    h: u32,
    w: u32,
    out_h: u32,
    out_w: u32,
    stride: u32,
    chunk: usize,
    per_image: usize,
    pieces: usize,
    vectors: usize,
    width: usize,
    blocks: usize,
    #[comptime] kernel: u32,
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
    let image = (piece / per_image) as u32;
    let start = piece % per_image * chunk;
    let pixels = (out_h * out_w) as usize;
    let end = min(start + chunk, pixels);
    let taps = comptime!((kernel * kernel) as usize);
    let mut sums = Array::<Vector<f32, N>>::new(taps);
    #[unroll]
    for t in 0..taps {
        sums[t] = Vector::<f32, N>::zero();
    }
    if active {
        for p in range_stepped(start + slot, end, slots) {
            let g =
                Vector::<f32, N>::cast_from(dy[(image as usize * pixels + p) * vectors + column]);
            let y = (p as u32 / out_w * stride) as i32;
            let px = (p as u32 % out_w * stride) as i32;
            #[unroll]
            for t in 0..taps {
                let ay = y + comptime!((t as u32 / kernel) as i32 - (kernel / 2) as i32);
                let ax = px + comptime!((t as u32 % kernel) as i32 - (kernel / 2) as i32);
                if ay >= 0 && ay < h as i32 && ax >= 0 && ax < w as i32 {
                    let pixel = (image * h + ay as u32) * w + ax as u32;
                    let value = Vector::<f32, N>::cast_from(x[pixel as usize * vectors + column]);
                    sums[t] = fma(value, g, sums[t]);
                }
            }
        }
    }
    let mut shared = Shared::<[Vector<f32, N>]>::new_slice(units);
    #[unroll]
    for t in 0..taps {
        shared[unit] = sums[t];
        fold_vectors::<N>(&mut shared, slot, width, slots);
        if slot == 0 && active {
            parts[(piece * taps + t) * vectors + column] = shared[unit];
        }
        sync_cube();
    }
}

pub(super) fn forward(x: &T, w: &T, y: &T, s: &Sizes) {
    filter(x, w, y, s, [s.h, s.w], [s.out_h(), s.out_w()], false);
}

pub(super) fn backward_data(dy: &T, w: &T, dx: &T, s: &Sizes) {
    filter(dy, w, dx, s, [s.out_h(), s.out_w()], [s.h, s.w], true);
}

fn filter(a: &T, w: &T, out: &T, s: &Sizes, from: [usize; 2], to: [usize; 2], turned: bool) {
    let v = vector(&[a, w, out], &[s.ci]);
    let total = s.n * to[0] * to[1] * s.ci / v;
    let client = &a.client;
    let (count, dim) = units(total);
    // SAFETY: a unit for each vector of the output; reads are masked by the sizes.
    unsafe {
        filter_kernel::launch_unchecked(
            client,
            count,
            dim,
            v,
            arg(a, v),
            arg(w, v),
            arg(out, v),
            total,
            from[0] as u32,
            from[1] as u32,
            to[0] as u32,
            to[1] as u32,
            (s.ci / v) as u32,
            s.stride as u32,
            s.k as u32,
            turned,
            elem(a.dtype),
        );
    }
}

pub(super) fn backward_weight(
    dy: &T,
    x: &T,
    s: &Sizes,
    cut: Cut,
    target: Target,
    shape: Shape,
    dtype: DType,
) -> T {
    let v = vector(&[dy, x], &[s.ci]);
    let p = Plan::new(s.out_h() * s.out_w(), s.ci, v, TIMES);
    let pieces = s.n * p.per_image;
    let parts = table(x, pieces * s.weights());
    let client = &x.client;
    if pieces > 0 {
        // SAFETY: pieces are those of the images; reads are masked by the sizes.
        unsafe {
            weight_kernel::launch_unchecked(
                client,
                cubes(pieces * p.blocks),
                cube_dim(),
                v,
                arg(x, v),
                arg(dy, v),
                arg(&parts, v),
                s.h as u32,
                s.w as u32,
                s.out_h() as u32,
                s.out_w() as u32,
                s.stride as u32,
                p.chunk,
                p.per_image,
                pieces,
                p.vectors,
                p.width,
                p.blocks,
                s.k as u32,
                UNITS,
                elem(x.dtype),
            );
        }
    }
    lane_sums(&parts, p.per_image, s.weights(), cut, target, shape, dtype)
}
