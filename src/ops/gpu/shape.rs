//! Passes that move values: slices and concatenations of columns, doubling, sums.

use super::launch::{T, arg, dims4, elem, empty, len, units, vector};
use super::norm_kernels::sigmoid;
use burn::tensor::Shape;
use cubecl::num_traits::Zero;
use cubecl::prelude::*;

/// `out[row, i] = x[row, start + i]`, zero outside of `x`: a slice where `out` is narrower, padding where it is wider.
#[cube(launch_unchecked)]
fn columns_kernel<E: Numeric, N: Size>(
    x: &[Vector<E, N>],
    out: &mut [Vector<E, N>],
    total: usize,
    x_width: usize,
    out_width: usize,
    skip: usize,
    before: usize,
    #[define(E)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= total {
        terminate!();
    }
    let (row, i) = (ABSOLUTE_POS / out_width, ABSOLUTE_POS % out_width);
    let mut value = Vector::<E, N>::zero();
    if i >= before && i - before + skip < x_width {
        value = x[row * x_width + i - before + skip];
    }
    out[ABSOLUTE_POS] = value;
}

/// Sizes before and behind an axis.
fn around(shape: &Shape, axis: usize) -> [usize; 2] {
    let product = |r: std::ops::Range<usize>| r.map(|i| shape[i]).product();
    [product(0..axis), product(axis + 1..shape.num_dims())]
}

fn columns(x: &T, axis: usize, size: usize, skip: usize, before: usize) -> T {
    let mut shape = x.meta.shape().clone();
    let [_, inner] = around(&shape, axis);
    let widths = [shape[axis] * inner, size * inner];
    shape[axis] = size;
    let out = empty(x, shape, x.dtype);
    let total = len(&out);
    if total == 0 {
        return out;
    }
    let (skip, before) = (skip * inner, before * inner);
    let v = vector(&[x, &out], &[widths[0], widths[1], skip, before]);
    let client = &x.client;
    let (count, dim) = units(total / v);
    // SAFETY: a unit for each vector of the output; reads are masked by the width.
    unsafe {
        columns_kernel::launch_unchecked(
            client,
            count,
            dim,
            v,
            arg(x, v),
            arg(&out, v),
            total / v,
            widths[0] / v,
            widths[1] / v,
            skip / v,
            before / v,
            elem(x.dtype),
        );
    }
    out
}

/// `start..start + len` along `axis`.
pub(super) fn along(x: &T, axis: usize, start: usize, len: usize) -> T {
    columns(x, axis, len, start, 0)
}

/// Zeros, `total` along `axis`, with `x` from `start` on.
pub(super) fn within(x: &T, axis: usize, start: usize, total: usize) -> T {
    columns(x, axis, total, 0, start)
}

/// Rows of up to four matrices side by side.
#[cube(launch_unchecked)]
fn concat_kernel<E: Numeric, N: Size>(
    a: &[Vector<E, N>],
    b: &[Vector<E, N>],
    c: &[Vector<E, N>],
    d: &[Vector<E, N>],
    out: &mut [Vector<E, N>],
    total: usize,
    wa: usize,
    wb: usize,
    wc: usize,
    wd: usize,
    #[define(E)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= total {
        terminate!();
    }
    let width = wa + wb + wc + wd;
    let (row, i) = (ABSOLUTE_POS / width, ABSOLUTE_POS % width);
    if i < wa {
        out[ABSOLUTE_POS] = a[row * wa + i];
    } else if i < wa + wb {
        out[ABSOLUTE_POS] = b[row * wb + i - wa];
    } else if i < wa + wb + wc {
        out[ABSOLUTE_POS] = c[row * wc + i - wa - wb];
    } else {
        out[ABSOLUTE_POS] = d[row * wd + i - wa - wb - wc];
    }
}

/// Concatenation of two to four tensors along `axis`.
pub(super) fn concat(parts: &[&T], axis: usize) -> T {
    let mut shape = parts[0].meta.shape().clone();
    let [_, inner] = around(&shape, axis);
    shape[axis] = parts.iter().map(|p| p.meta.shape()[axis]).sum();
    let out = empty(parts[0], shape, parts[0].dtype);
    let total = len(&out);
    if total == 0 {
        return out;
    }
    // one that has elements stands in for those that are missing
    let some = parts
        .iter()
        .find(|p| len(p) > 0)
        .expect("the result has elements");
    let part = |i: usize| match parts.get(i) {
        Some(p) if len(p) > 0 => (*p, p.meta.shape()[axis] * inner),
        _ => (*some, 0),
    };
    let all: [(&T, usize); 4] = std::array::from_fn(part);
    let v = vector(&all.map(|p| p.0), &all.map(|p| p.1));
    let client = &out.client;
    let (count, dim) = units(total / v);
    let [a, b, c, d] = all.map(|(t, width)| (arg(t, v), width / v));
    // SAFETY: a unit for each vector of the output, which the widths divide among the parts.
    unsafe {
        concat_kernel::launch_unchecked(
            client,
            count,
            dim,
            v,
            a.0,
            b.0,
            c.0,
            d.0,
            arg(&out, v),
            total / v,
            a.1,
            b.1,
            c.1,
            d.1,
            elem(out.dtype),
        );
    }
    out
}

/// `out[row, i] = total[row, i] + g[row, i - start]` where `g` has such a column; `out` may be `total`.
#[cube(launch_unchecked)]
fn add_part_kernel<F: Float, N: Size>(
    total: &[Vector<F, N>],
    g: &[Vector<F, N>],
    out: &mut [Vector<F, N>],
    count: usize,
    width: usize,
    start: usize,
    g_width: usize,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= count {
        terminate!();
    }
    let (row, i) = (ABSOLUTE_POS / width, ABSOLUTE_POS % width);
    let mut value = total[ABSOLUTE_POS];
    if i >= start && i < start + g_width {
        let sum = Vector::<f32, N>::cast_from(value)
            + Vector::<f32, N>::cast_from(g[row * g_width + i - start]);
        value = Vector::<F, N>::cast_from(sum);
    }
    out[ABSOLUTE_POS] = value;
}

/// `total[row, start + i] += g[row, i]`, in place.
#[cube(launch_unchecked)]
fn add_into_kernel<F: Float, N: Size>(
    total: &mut [Vector<F, N>],
    g: &[Vector<F, N>],
    count: usize,
    width: usize,
    start: usize,
    g_width: usize,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= count {
        terminate!();
    }
    let at = ABSOLUTE_POS / g_width * width + start + ABSOLUTE_POS % g_width;
    let sum = Vector::<f32, N>::cast_from(total[at]) + Vector::<f32, N>::cast_from(g[ABSOLUTE_POS]);
    total[at] = Vector::<F, N>::cast_from(sum);
}

/// `total[.., start..] += g`, in place where nobody else holds it.
pub(super) fn add_to_part(total: T, g: &T, start: usize) -> T {
    let ([_, _, _, c], [_, _, _, part]) = (dims4(&total), dims4(g));
    if len(g) == 0 {
        return total;
    }
    let v = vector(&[&total, g], &[c, part, start]);
    let client = total.client.clone();
    if total.can_mut() {
        let count = len(g) / v;
        let (cubes, dim) = units(count);
        // SAFETY: a unit for each vector of `g`, whose columns lie in those of `total`.
        unsafe {
            add_into_kernel::launch_unchecked(
                &client,
                cubes,
                dim,
                v,
                arg(&total, v),
                arg(g, v),
                count,
                c / v,
                start / v,
                part / v,
                elem(total.dtype),
            );
        }
        return total;
    }
    let out = empty(&total, total.meta.shape().clone(), total.dtype);
    let count = len(&total) / v;
    let (cubes, dim) = units(count);
    // SAFETY: a unit for each vector of `total`.
    unsafe {
        add_part_kernel::launch_unchecked(
            &client,
            cubes,
            dim,
            v,
            arg(&total, v),
            arg(g, v),
            arg(&out, v),
            count,
            c / v,
            start / v,
            part / v,
            elem(total.dtype),
        );
    }
    out
}

/// `a + b[i % width]`: of one shape, or with a row of `b` for each of `a`.
#[cube(launch_unchecked)]
fn sum_kernel<F: Float, B: Float, N: Size>(
    a: &[Vector<F, N>],
    b: &[Vector<B, N>],
    out: &mut [Vector<F, N>],
    count: usize,
    width: usize,
    #[define(F, B)] _dtypes: [ElemType; 2],
) {
    if ABSOLUTE_POS >= count {
        terminate!();
    }
    let b = Vector::<f32, N>::cast_from(b[ABSOLUTE_POS % width]);
    out[ABSOLUTE_POS] = Vector::<F, N>::cast_from(Vector::<f32, N>::cast_from(a[ABSOLUTE_POS]) + b);
}

/// `a + b`, the elements of `b` repeated.
pub(super) fn sum(a: &T, b: &T) -> T {
    let out = empty(a, a.meta.shape().clone(), a.dtype);
    if len(a) == 0 {
        return out;
    }
    let v = vector(&[a, b], &[len(a), len(b)]);
    let (count, dim) = units(len(a) / v);
    // SAFETY: a unit for each vector of `a`.
    unsafe {
        sum_kernel::launch_unchecked(
            &a.client,
            count,
            dim,
            v,
            arg(a, v),
            arg(b, v),
            arg(&out, v),
            len(a) / v,
            len(b) / v,
            [elem(a.dtype), elem(b.dtype)],
        );
    }
    out
}

/// Nearest-neighbour doubling.
#[cube(launch_unchecked)]
fn up2_kernel<E: Numeric, N: Size>(
    x: &[Vector<E, N>],
    out: &mut [Vector<E, N>],
    count: usize,
    w: usize,
    vectors: usize,
    #[define(E)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= count {
        terminate!();
    }
    let c = ABSOLUTE_POS % vectors;
    let pixel = ABSOLUTE_POS / vectors;
    // rows of all images: an image has an even number of them
    let (row, column) = (pixel / (2 * w), pixel % (2 * w));
    out[ABSOLUTE_POS] = x[(row / 2 * w + column / 2) * vectors + c];
}

pub(super) fn up2(x: &T) -> T {
    let [n, h, w, c] = dims4(x);
    let out = empty(x, [n, 2 * h, 2 * w, c], x.dtype);
    if len(x) == 0 {
        return out;
    }
    let v = vector(&[x], &[c]);
    let (count, dim) = units(len(&out) / v);
    // SAFETY: a unit for each vector of the output.
    unsafe {
        up2_kernel::launch_unchecked(
            &x.client,
            count,
            dim,
            v,
            arg(x, v),
            arg(&out, v),
            len(&out) / v,
            w,
            c / v,
            elem(x.dtype),
        );
    }
    out
}

/// Sums of 2x2 pixels.
#[cube(launch_unchecked)]
fn up2_gradient_kernel<F: Float, N: Size>(
    dy: &[Vector<F, N>],
    out: &mut [Vector<F, N>],
    count: usize,
    w: usize,
    vectors: usize,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= count {
        terminate!();
    }
    let c = ABSOLUTE_POS % vectors;
    let pixel = ABSOLUTE_POS / vectors;
    let (row, column) = (pixel / w, pixel % w);
    let first = (row * 2 * w + column) * 2 * vectors + c;
    let below = first + 2 * w * vectors;
    let top =
        Vector::<f32, N>::cast_from(dy[first]) + Vector::<f32, N>::cast_from(dy[first + vectors]);
    let bottom =
        Vector::<f32, N>::cast_from(dy[below]) + Vector::<f32, N>::cast_from(dy[below + vectors]);
    out[ABSOLUTE_POS] = Vector::<F, N>::cast_from(top + bottom);
}

pub(super) fn up2_dx(dy: &T) -> T {
    let [n, h, w, c] = dims4(dy);
    let out = empty(dy, [n, h / 2, w / 2, c], dy.dtype);
    if len(&out) == 0 {
        return out;
    }
    let v = vector(&[dy], &[c]);
    let (count, dim) = units(len(&out) / v);
    // SAFETY: a unit for each vector of the output.
    unsafe {
        up2_gradient_kernel::launch_unchecked(
            &dy.client,
            count,
            dim,
            v,
            arg(dy, v),
            arg(&out, v),
            len(&out) / v,
            w / 2,
            c / v,
            elem(dy.dtype),
        );
    }
    out
}

/// `act(y scale + shift)`, per channel.
#[cube(launch_unchecked)]
fn affine_kernel<F: Float, N: Size>(
    y: &[Vector<F, N>],
    scale: &[Vector<f32, N>],
    shift: &[Vector<f32, N>],
    out: &mut [Vector<F, N>],
    count: usize,
    vectors: usize,
    #[comptime] silu: bool,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= count {
        terminate!();
    }
    let c = ABSOLUTE_POS % vectors;
    let z = fma(
        Vector::<f32, N>::cast_from(y[ABSOLUTE_POS]),
        scale[c],
        shift[c],
    );
    let mut a = z;
    if silu {
        a = z * sigmoid::<N>(z);
    }
    out[ABSOLUTE_POS] = Vector::<F, N>::cast_from(a);
}

pub(super) fn affine(y: &T, scale: &T, shift: &T, silu: bool) -> T {
    let out = empty(y, y.meta.shape().clone(), y.dtype);
    if len(y) == 0 {
        return out;
    }
    let c = len(scale);
    let v = vector(&[y, scale, shift], &[c]);
    let (count, dim) = units(len(y) / v);
    // SAFETY: a unit for each vector of `y`.
    unsafe {
        affine_kernel::launch_unchecked(
            &y.client,
            count,
            dim,
            v,
            arg(y, v),
            arg(scale, v),
            arg(shift, v),
            arg(&out, v),
            len(y) / v,
            c / v,
            silu,
            elem(y.dtype),
        );
    }
    out
}
