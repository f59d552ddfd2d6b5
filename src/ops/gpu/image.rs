//! Images from bytes: pixels travel as they are and become activations on the device.

use super::flat;
use super::launch::{T, arg, elem, len, units};
use burn::tensor::DType;
use burn_cubecl::CubeDevice;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use cubecl::prelude::*;

/// Bytes that are uploaded at once. Less than what CubeCL copies through pinned memory, so that the host need not wait
/// for it and it runs beside kernels.
const PIECE: usize = 32 << 20;

/// The bytes of `pixels` in words: WebGPU knows no bytes.
fn words(pixels: &[u8], device: &CubeDevice) -> T {
    let count = pixels.len().div_ceil(4).max(1);
    let words = flat::empty(device, [count], DType::U32);
    for (i, piece) in pixels.chunks(PIECE).enumerate() {
        let mut bytes = Vec::with_capacity(piece.len().next_multiple_of(4));
        bytes.extend_from_slice(piece);
        bytes.resize(piece.len().next_multiple_of(4), 0);
        let part = flat::view(&words, i * PIECE / 4, [bytes.len() / 4]);
        let bytes = burn::tensor::Bytes::from_bytes_vec(bytes);
        words.client.write(&part.handle, bytes);
    }
    words
}

/// Byte `i`, as a fraction of 255.
#[cube]
fn unit_byte(words: &[u32], i: usize) -> f32 {
    let byte = (words[i / 4] >> ((i % 4) as u32 * 8)) & 255u32;
    f32::cast_from(byte) / f32::new(255.0f32)
}

#[cube(launch_unchecked)]
fn unit_kernel<F: Float>(
    words: &[u32],
    out: &mut [F],
    count: usize,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= count {
        terminate!();
    }
    out[ABSOLUTE_POS] = F::cast_from(unit_byte(words, ABSOLUTE_POS));
}

/// `a + (b - a) t`
#[cube]
fn mix(a: f32, b: f32, t: f32) -> f32 {
    fma(b - a, t, a)
}

/// Place in the source that an output index reads (half-pixel centres): first pixel and weight of the one behind it.
#[cube]
fn source(i: u32, ratio: f32, size: u32) -> (u32, f32) {
    let half = f32::new(0.5f32);
    let at = max(
        fma(f32::cast_from(i) + half, ratio, -half),
        f32::new(0.0f32),
    );
    let first = min(u32::cast_from(at), size - 1);
    (first, at - f32::cast_from(first))
}

#[cube(launch_unchecked)]
fn resize_kernel<F: Float>(
    words: &[u32],
    out: &mut [F],
    count: usize,
    h: u32,
    w: u32,
    out_h: u32,
    out_w: u32,
    ratio_y: f32,
    ratio_x: f32,
    #[comptime] channels: u32,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= count {
        terminate!();
    }
    let pixel = (ABSOLUTE_POS / channels as usize) as u32;
    let c = (ABSOLUTE_POS % channels as usize) as u32;
    let (y, ty) = source(pixel / out_w % out_h, ratio_y, h);
    let (x, tx) = source(pixel % out_w, ratio_x, w);
    let image = pixel / out_w / out_h;
    let (y1, x1) = (min(y + 1, h - 1), min(x + 1, w - 1));
    let row = (image * h + y) * w;
    let below = (image * h + y1) * w;
    let top = mix(
        unit_byte(words, ((row + x) * channels + c) as usize),
        unit_byte(words, ((row + x1) * channels + c) as usize),
        tx,
    );
    let bottom = mix(
        unit_byte(words, ((below + x) * channels + c) as usize),
        unit_byte(words, ((below + x1) * channels + c) as usize),
        tx,
    );
    out[ABSOLUTE_POS] = F::cast_from(mix(top, bottom, ty));
}

/// Pixels of 0..=255, `[n, h, w, c]`, as values of 0..1.
pub(in crate::ops) fn image(
    pixels: &[u8],
    shape: [usize; 4],
    device: &CubeDevice,
    dtype: DType,
) -> T {
    let out = empty_device_contiguous_dtype(device.client(), device.clone(), shape.into(), dtype);
    let count = len(&out);
    if count > 0 {
        let words = words(pixels, device);
        let (cubes, dim) = units(count);
        // SAFETY: a unit for each byte.
        unsafe {
            unit_kernel::launch_unchecked(
                &out.client,
                cubes,
                dim,
                arg(&words, 1),
                arg(&out, 1),
                count,
                elem(dtype),
            );
        }
    }
    out
}

/// As [`image()`], resized to `to` (rows, columns) bilinearly with half-pixel centres and without antialiasing.
pub(in crate::ops) fn resized(
    pixels: &[u8],
    [n, h, w, c]: [usize; 4],
    to: [usize; 2],
    device: &CubeDevice,
    dtype: DType,
) -> T {
    let shape = [n, to[0], to[1], c];
    let out = empty_device_contiguous_dtype(device.client(), device.clone(), shape.into(), dtype);
    let count = len(&out);
    if count > 0 {
        let words = words(pixels, device);
        let (cubes, dim) = units(count);
        // SAFETY: a unit for each value; reads end at the image's edges.
        unsafe {
            resize_kernel::launch_unchecked(
                &out.client,
                cubes,
                dim,
                arg(&words, 1),
                arg(&out, 1),
                count,
                h as u32,
                w as u32,
                to[0] as u32,
                to[1] as u32,
                h as f32 / to[0] as f32,
                w as f32 / to[1] as f32,
                c as u32,
                elem(dtype),
            );
        }
    }
    out
}
