//! Moves of NHWC activations: concatenation, slices of channels, doubling, residuals, pictures.
//!
//! Activations are `[pixels, channels]` here (all images' pixels in one row), except for the doubling. Every
//! function is a pass in which each element has its own arithmetic, so results depend on nothing but the values.

use rayon::prelude::*;

/// About how many floats a task has.
const CHUNK: usize = 1 << 15;

/// Pixels of a task where a pixel has `channels` floats.
fn pixels_of_task(channels: usize) -> usize {
    (CHUNK / channels.max(1)).max(1)
}

/// Concatenation of channels: parts `[pixels, channels]` (values and channels of each) into `[pixels, sum]`.
///
/// # Panics
/// If a part's pixels are not those of `out`.
pub fn concat<T: Copy + Send + Sync>(parts: &[(&[T], usize)], out: &mut [T]) {
    let total: usize = parts.iter().map(|p| p.1).sum();
    let pixels = out.len() / total.max(1);
    for (x, c) in parts {
        assert_eq!(
            x.len(),
            pixels * c,
            "a part of a concatenation into {pixels} pixels of {total} channels"
        );
    }
    assert_eq!(
        out.len(),
        pixels * total,
        "a concatenation into {total} channels"
    );
    let task = pixels_of_task(total);
    out.par_chunks_mut((task * total).max(1))
        .enumerate()
        .for_each(|(t, out)| {
            let pixels = out.len() / total;
            let mut first = 0;
            for &(x, c) in parts {
                let x = &x[t * task * c..][..pixels * c];
                copy_columns(x, c, 0, out, total, first, c);
                first += c;
            }
        });
}

/// Channels `first..first + len` of `x` `[pixels, channels]`: also the gradient of one part of a concatenation.
///
/// # Panics
/// If the channels are not there or sizes do not fit.
pub fn slice_channels<T: Copy + Send + Sync>(
    x: &[T],
    channels: usize,
    first: usize,
    len: usize,
    out: &mut [T],
) {
    check(x, channels, first, len, out);
    let task = pixels_of_task(channels);
    out.par_chunks_mut((task * len).max(1))
        .enumerate()
        .for_each(|(t, out)| {
            let x = &x[t * task * channels..][..out.len() / len * channels];
            copy_columns(x, channels, first, out, len, 0, len);
        });
}

/// `acc[.., first..first + len] += g`: `acc` `[pixels, channels]`, `g` `[pixels, len]`.
///
/// # Panics
/// If the channels are not there or sizes do not fit.
pub fn add_to_channels(acc: &mut [f32], channels: usize, first: usize, len: usize, g: &[f32]) {
    check(acc, channels, first, len, g);
    let task = pixels_of_task(channels);
    acc.par_chunks_mut(task * channels)
        .enumerate()
        .for_each(|(t, acc)| {
            let pixels = acc.len() / channels;
            let g = &g[t * task * len..][..pixels * len];
            for (acc, g) in acc.chunks_exact_mut(channels).zip(g.chunks_exact(len)) {
                for (a, g) in acc[first..first + len].iter_mut().zip(g) {
                    *a += g;
                }
            }
        });
}

/// `acc += x`
///
/// # Panics
/// If lengths differ.
pub fn add_to(acc: &mut [f32], x: &[f32]) {
    assert_eq!(acc.len(), x.len(), "terms of a sum");
    acc.par_chunks_mut(CHUNK)
        .zip(x.par_chunks(CHUNK))
        .for_each(|(acc, x)| {
            acc.iter_mut().zip(x).for_each(|(a, x)| *a += x);
        });
}

/// `out = a + b`
///
/// # Panics
/// If lengths differ.
pub fn add(a: &[f32], b: &[f32], out: &mut [f32]) {
    assert_eq!(a.len(), b.len(), "terms of a sum");
    assert_eq!(a.len(), out.len(), "a sum and its terms");
    let parts = out
        .par_chunks_mut(CHUNK)
        .zip(a.par_chunks(CHUNK))
        .zip(b.par_chunks(CHUNK));
    parts.for_each(|((out, a), b)| {
        for ((o, a), b) in out.iter_mut().zip(a).zip(b) {
            *o = a + b;
        }
    });
}

/// Pixel values in 0..1.
///
/// # Panics
/// If lengths differ.
pub fn unit_pixels(pixels: &[u8], out: &mut [f32]) {
    assert_eq!(pixels.len(), out.len(), "pixels and their values");
    let parts = out.par_chunks_mut(CHUNK).zip(pixels.par_chunks(CHUNK));
    parts.for_each(|(out, pixels)| {
        out.iter_mut()
            .zip(pixels)
            .for_each(|(o, &p)| *o = f32::from(p) / 255.0);
    });
}

/// Nearest-neighbour doubling: `[images, rows, cols, channels]` -> `[images, 2 rows, 2 cols, channels]`.
///
/// # Panics
/// If `out` has not four times the elements of `x`, or `x` is not whole rows.
pub fn upsample2(x: &[f32], cols: usize, channels: usize, out: &mut [f32]) {
    assert_eq!(out.len(), 4 * x.len(), "a doubled activation");
    upsample2_into(x, cols, channels, out, channels, 0);
}

/// As [`upsample2`], into channels `first..first + channels` of `[images, 2 rows, 2 cols, total]`: a doubled part of
/// a concatenation.
///
/// # Panics
/// If sizes do not fit.
pub fn upsample2_into(
    x: &[f32],
    cols: usize,
    channels: usize,
    out: &mut [f32],
    total: usize,
    first: usize,
) {
    let row = cols * channels;
    assert!(
        first + channels <= total,
        "channels {first}..{} of {total}",
        first + channels
    );
    assert_eq!(
        out.len() / total.max(1) * channels,
        4 * x.len(),
        "a doubled activation"
    );
    assert_eq!(
        x.len() % row.max(1),
        0,
        "rows of {cols} pixels of {channels} channels"
    );
    let wide = 2 * cols * total;
    out.par_chunks_mut((2 * wide).max(1))
        .zip(x.par_chunks(row.max(1)))
        .with_min_len(tasks_of(row))
        .for_each(|(out, x)| {
            let (upper, lower) = out.split_at_mut(wide);
            for out in [upper, lower] {
                for (pair, x) in out
                    .chunks_exact_mut(2 * total)
                    .zip(x.chunks_exact(channels))
                {
                    pair[first..first + channels].copy_from_slice(x);
                    pair[total + first..total + first + channels].copy_from_slice(x);
                }
            }
        });
}

/// Gradient of [`upsample2`]: each element is the sum of its four copies' gradients.
///
/// # Panics
/// If `g` has not four times the elements of `out`, or `out` is not whole rows.
pub fn upsample2_gradient(g: &[f32], cols: usize, channels: usize, out: &mut [f32]) {
    assert_eq!(g.len(), 4 * out.len(), "gradient of a doubled activation");
    upsample2_gradient_from(g, channels, 0, cols, channels, out);
}

/// As [`upsample2_gradient`], from channels `first..first + channels` of `[images, 2 rows, 2 cols, total]`.
///
/// # Panics
/// If sizes do not fit.
pub fn upsample2_gradient_from(
    g: &[f32],
    total: usize,
    first: usize,
    cols: usize,
    channels: usize,
    out: &mut [f32],
) {
    let row = cols * channels;
    assert!(
        first + channels <= total,
        "channels {first}..{} of {total}",
        first + channels
    );
    assert_eq!(
        g.len() / total.max(1) * channels,
        4 * out.len(),
        "gradient of a doubled activation"
    );
    assert_eq!(
        out.len() % row.max(1),
        0,
        "rows of {cols} pixels of {channels} channels"
    );
    let wide = 2 * cols * total;
    let rows = out
        .par_chunks_mut(row.max(1))
        .zip(g.par_chunks((2 * wide).max(1)));
    rows.with_min_len(tasks_of(row)).for_each(|(out, g)| {
        let (upper, lower) = g.split_at(wide);
        let pairs = upper
            .chunks_exact(2 * total)
            .zip(lower.chunks_exact(2 * total));
        for (out, (upper, lower)) in out.chunks_exact_mut(channels).zip(pairs) {
            let (a, b) = (
                &upper[first..][..channels],
                &upper[total + first..][..channels],
            );
            let (c, d) = (
                &lower[first..][..channels],
                &lower[total + first..][..channels],
            );
            for (i, o) in out.iter_mut().enumerate() {
                *o = (a[i] + b[i]) + (c[i] + d[i]);
            }
        }
    });
}

/// Rows that make a task, where a row has `row` floats.
fn tasks_of(row: usize) -> usize {
    (CHUNK / row.max(1)).max(1)
}

fn check<T>(x: &[T], channels: usize, first: usize, len: usize, part: &[T]) {
    assert!(
        first + len <= channels,
        "channels {first}..{} of {channels}",
        first + len
    );
    assert_eq!(
        x.len() / channels.max(1) * len,
        part.len(),
        "{len} channels of {channels}"
    );
}

/// Copies `len` channels of each pixel from `from` on of `x` to `to` on of `out`.
#[inline]
fn copy_columns<T: Copy>(
    x: &[T],
    xc: usize,
    from: usize,
    out: &mut [T],
    oc: usize,
    to: usize,
    len: usize,
) {
    if len == 0 {
        return;
    }
    // a copy of fixed size is a few instructions; the usual widths are multiples of 8
    let pixels = x.chunks_exact(xc).zip(out.chunks_exact_mut(oc));
    if len.is_multiple_of(8) && len <= 128 {
        for (x, out) in pixels {
            let (x, _) = x[from..from + len].as_chunks::<8>();
            let (out, _) = out[to..to + len].as_chunks_mut::<8>();
            for (o, x) in out.iter_mut().zip(x) {
                *o = *x;
            }
        }
    } else {
        for (x, out) in pixels {
            out[to..to + len].copy_from_slice(&x[from..from + len]);
        }
    }
}

#[cfg(test)]
#[path = "shape_tests.rs"]
mod tests;
