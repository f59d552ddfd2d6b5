//! Maximum over 5x5 windows, stride 1, padding 2.
//!
//! Of equal values the first in row order wins, and what is not a number wins over every number, as on the CPU. The
//! backward pass gathers: an input collects from the windows whose winner it was.

use super::launch::{T, arg, dims4, elem, empty, len, units, vector};
use burn::tensor::DType;
use cubecl::num_traits::Zero;
use cubecl::prelude::*;

/// Bits of a winner's place in its window, `5 (dy + 2) + dx + 2`.
const BITS: u32 = 5;

#[cube(launch_unchecked)]
fn pool_kernel<F: Float, N: Size>(
    x: &[Vector<F, N>],
    out: &mut [Vector<F, N>],
    winners: &mut [u32],
    count: usize,
    h: u32,
    w: u32,
    vectors: u32,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= count {
        terminate!();
    }
    let at = ABSOLUTE_POS as u32;
    let c = at % vectors;
    let pixel = at / vectors;
    let column = pixel % w;
    let row = pixel / w % h;
    let image = pixel / w / h * h;
    let size = N::value();
    let first_y = row - min(row, 2u32);
    let first_x = column - min(column, 2u32);
    let end_y = min(row + 3, h);
    let end_x = min(column + 3, w);
    let mut best = Array::<f32>::new(size);
    let mut codes = Array::<u32>::new(size);
    let start =
        Vector::<f32, N>::cast_from(x[(((image + first_y) * w + first_x) * vectors + c) as usize]);
    #[unroll]
    for k in 0..size {
        best[k] = start.extract(k);
        codes[k] = (first_y + 2 - row) * 5 + (first_x + 2 - column);
    }
    for y in first_y..end_y {
        for px in first_x..end_x {
            let from = ((image + y) * w + px) * vectors + c;
            let value = Vector::<f32, N>::cast_from(x[from as usize]);
            let code = (y + 2 - row) * 5 + (px + 2 - column);
            #[unroll]
            for k in 0..size {
                let v = value.extract(k);
                if v > best[k] || v.is_nan() {
                    best[k] = v;
                    codes[k] = code;
                }
            }
        }
    }
    let mut value = Vector::<f32, N>::zero();
    let mut packed = 0u32.runtime();
    #[unroll]
    for k in 0..size {
        value.insert(k, best[k]);
        packed |= codes[k] << comptime!(k as u32 * BITS);
    }
    out[ABSOLUTE_POS] = Vector::<F, N>::cast_from(value);
    winners[ABSOLUTE_POS] = packed;
}

#[cube(launch_unchecked)]
fn gradient_kernel<F: Float, N: Size>(
    dy: &[Vector<F, N>],
    winners: &[u32],
    out: &mut [Vector<F, N>],
    count: usize,
    h: u32,
    w: u32,
    vectors: u32,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= count {
        terminate!();
    }
    let at = ABSOLUTE_POS as u32;
    let c = at % vectors;
    let pixel = at / vectors;
    let column = pixel % w;
    let row = pixel / w % h;
    let image = pixel / w / h * h;
    let size = N::value();
    let mut sums = Array::<f32>::new(size);
    #[unroll]
    for k in 0..size {
        sums[k] = f32::new(0.0f32);
    }
    for y in (row - min(row, 2u32))..min(row + 3, h) {
        for px in (column - min(column, 2u32))..min(column + 3, w) {
            let from = (((image + y) * w + px) * vectors + c) as usize;
            // where this pixel lies in the window around that one
            let own = (row + 2 - y) * 5 + (column + 2 - px);
            let packed = winners[from];
            let g = Vector::<f32, N>::cast_from(dy[from]);
            #[unroll]
            for k in 0..size {
                let code = (packed >> comptime!(k as u32 * BITS)) & comptime!((1u32 << BITS) - 1);
                if code == own {
                    sums[k] += g.extract(k);
                }
            }
        }
    }
    let mut value = Vector::<f32, N>::zero();
    #[unroll]
    for k in 0..size {
        value.insert(k, sums[k]);
    }
    out[ABSOLUTE_POS] = Vector::<F, N>::cast_from(value);
}

/// Maxima, and where they are.
pub(super) fn pool5(x: &T) -> (T, T) {
    let [_, h, w, c] = dims4(x);
    let v = vector(&[x], &[c]);
    let out = empty(x, x.meta.shape().clone(), x.dtype);
    let count = len(x) / v;
    let winners = empty(x, [count.max(1)], DType::U32);
    if count > 0 {
        let (cubes, dim) = units(count);
        // SAFETY: a unit for each vector; windows end at the image's edges.
        unsafe {
            pool_kernel::launch_unchecked(
                &x.client,
                cubes,
                dim,
                v,
                arg(x, v),
                arg(&out, v),
                arg(&winners, 1),
                count,
                h as u32,
                w as u32,
                (c / v) as u32,
                elem(x.dtype),
            );
        }
    }
    (out, winners)
}

pub(super) fn pool5_dx(dy: &T, winners: &T) -> T {
    let [_, h, w, c] = dims4(dy);
    let out = empty(dy, dy.meta.shape().clone(), dy.dtype);
    if len(dy) == 0 {
        return out;
    }
    // as wide as the winners are packed
    let v = len(dy) / len(winners);
    let count = len(winners);
    let (cubes, dim) = units(count);
    // SAFETY: a unit for each vector; windows end at the image's edges.
    unsafe {
        gradient_kernel::launch_unchecked(
            &dy.client,
            cubes,
            dim,
            v,
            arg(dy, v),
            arg(winners, 1),
            arg(&out, v),
            count,
            h as u32,
            w as u32,
            (c / v) as u32,
            elem(dy.dtype),
        );
    }
    out
}
