//! The products of an attention block, `softmax(q k^T / sqrt(key)) v` for each image and head, and their gradient.
//!
//! Only the maximum and the sum of each row of weights are kept for the backward pass, which computes the weights
//! again in blocks of rows: memory grows with the positions, not with their square. Every element of a product is
//! one chain of multiply-adds in the order of the summed index, wherever it lies in a tile, so an image has the same
//! bytes alone and in a batch.

use rayon::prelude::*;

use super::aligned::Aligned;
use super::isa::{Isa, Kernel};
use super::simd::{Simd, exp};

/// Rows of weights that exist at a time.
const BLOCK: usize = 48;
/// Rows of a tile of a product.
const TILE: usize = 6;
/// Columns of blocks are padded to whole cache lines, a multiple of every vector.
const LINE: usize = 16;

/// Shape of `qkv`: `[images, positions, heads * (2 * key + head)]`, per head the channels of query, key and value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub images: usize,
    /// Rows times columns of an image.
    pub positions: usize,
    pub heads: usize,
    /// Channels of a query and of a key.
    pub key: usize,
    /// Channels of a value.
    pub head: usize,
}

impl Shape {
    /// Channels of `qkv`.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.heads * (2 * self.key + self.head)
    }
    /// Channels of the output.
    #[must_use]
    pub fn width(&self) -> usize {
        self.heads * self.head
    }
    fn scale(&self) -> f32 {
        (1.0 / (self.key as f64).sqrt()) as f32
    }
    /// First channels of query, key and value of a head.
    fn of_head(&self, head: usize) -> [usize; 3] {
        let q = head * (2 * self.key + self.head);
        [q, q + self.key, q + 2 * self.key]
    }
    /// Floats of an image in `qkv` and in the output.
    fn image(&self) -> (usize, usize) {
        (
            self.positions * self.channels(),
            self.positions * self.width(),
        )
    }
}

/// What the gradient needs of the forward pass: for each image, head and position the maximum of its row of
/// logits and the reciprocal of the sum of `exp(logit - maximum)`.
#[derive(Debug, Clone, PartialEq)]
pub struct RowSums(Vec<[f32; 2]>);

/// Attended values `out` and the values themselves, both `[images, positions, heads * head]`.
///
/// # Panics
/// If a length is not the shape's.
#[must_use]
pub fn attend(isa: Isa, qkv: &[f32], shape: Shape, out: &mut [f32], values: &mut [f32]) -> RowSums {
    let (input, output) = shape.image();
    assert_eq!(qkv.len(), shape.images * input, "queries, keys and values");
    assert_eq!(out.len(), shape.images * output, "attended values");
    assert_eq!(values.len(), shape.images * output, "values");
    if qkv.is_empty() {
        return RowSums(vec![]);
    }
    let images = out
        .par_chunks_mut(output)
        .zip(values.par_chunks_mut(output))
        .zip(qkv.par_chunks(input));
    let sums = images.map(|((out, values), qkv)| {
        let heads: Vec<_> = (0..shape.heads)
            .into_par_iter()
            .map(|h| head_forward(isa, qkv, shape, h))
            .collect();
        for (h, (attended, _)) in heads.iter().enumerate() {
            let stride = padded(shape.head);
            let rows = out
                .chunks_exact_mut(shape.width())
                .zip(values.chunks_exact_mut(shape.width()));
            for (p, (out, values)) in rows.enumerate() {
                let at = h * shape.head..(h + 1) * shape.head;
                out[at.clone()].copy_from_slice(&attended[p * stride..][..shape.head]);
                let v = p * shape.channels() + shape.of_head(h)[2];
                values[at].copy_from_slice(&qkv[v..][..shape.head]);
            }
        }
        heads.into_iter().flat_map(|h| h.1).collect::<Vec<_>>()
    });
    RowSums(sums.collect::<Vec<_>>().concat())
}

/// Attended values `[positions, padded head]` of a head and the sums of its rows.
fn head_forward(isa: Isa, qkv: &[f32], shape: Shape, h: usize) -> (Aligned, Vec<[f32; 2]>) {
    let n = shape.positions;
    let (wide, deep) = (padded(n), padded(shape.head));
    let [q, k, v] = shape.of_head(h);
    let c = shape.channels();
    let query = rows_of(qkv, c, q, shape.key, shape.scale());
    let key_t = columns_of(qkv, c, k, shape.key, wide);
    let value = rows_of(qkv, c, v, shape.head, 1.0);
    let mut out = Aligned::zeros(n * deep);
    let mut weights = Aligned::zeros(BLOCK.min(n) * wide);
    let mut sums = vec![[0.0; 2]; n];
    let stride = padded(shape.key);
    for (block, sums) in sums.chunks_mut(BLOCK).enumerate() {
        let (first, rows) = (block * BLOCK, sums.len());
        let weights = &mut weights[..rows * wide];
        let q = Left {
            at: &query[first * stride..],
            row: stride,
            col: 1,
        };
        product(isa, q, &key_t, shape.key, rows, weights, wide, false);
        isa.run(Softmax {
            weights,
            positions: n,
            sums,
        });
        let w = Left {
            at: weights,
            row: wide,
            col: 1,
        };
        let out = &mut out[first * deep..][..rows * deep];
        product(isa, w, &value, n, rows, out, deep, false);
        isa.run(ScaleRows { rows: out, sums });
    }
    (out, sums)
}

/// Gradient with respect to `qkv` from those with respect to the attended values and, where something uses them, to
/// the values.
///
/// # Panics
/// If a length is not the shape's.
pub fn attend_gradient(
    isa: Isa,
    qkv: &[f32],
    sums: &RowSums,
    d_out: &[f32],
    d_values: Option<&[f32]>,
    shape: Shape,
    d_qkv: &mut [f32],
) {
    let (input, output) = shape.image();
    assert_eq!(qkv.len(), shape.images * input, "queries, keys and values");
    assert_eq!(
        d_qkv.len(),
        shape.images * input,
        "gradient of queries, keys and values"
    );
    assert_eq!(
        d_out.len(),
        shape.images * output,
        "gradient of attended values"
    );
    assert!(
        d_values.is_none_or(|d| d.len() == d_out.len()),
        "gradient of values"
    );
    assert_eq!(
        sums.0.len(),
        shape.images * shape.heads * shape.positions,
        "sums of rows"
    );
    if qkv.is_empty() {
        return;
    }
    d_qkv
        .par_chunks_mut(input)
        .enumerate()
        .for_each(|(image, d_qkv)| {
            let qkv = &qkv[image * input..][..input];
            let d_out = &d_out[image * output..][..output];
            let d_values = d_values.map(|d| &d[image * output..][..output]);
            let heads: Vec<_> = (0..shape.heads)
                .into_par_iter()
                .map(|h| {
                    let first = (image * shape.heads + h) * shape.positions;
                    head_backward(
                        isa,
                        qkv,
                        &sums.0[first..][..shape.positions],
                        d_out,
                        shape,
                        h,
                    )
                })
                .collect();
            let (narrow, deep) = (padded(shape.key), padded(shape.head));
            for (h, [dq, dk, dv]) in heads.iter().enumerate() {
                let [q, k, v] = shape.of_head(h);
                for (p, d) in d_qkv.chunks_exact_mut(shape.channels()).enumerate() {
                    for (d, g) in d[q..q + shape.key].iter_mut().zip(&dq[p * narrow..]) {
                        *d = g * shape.scale();
                    }
                    d[k..k + shape.key].copy_from_slice(&dk[p * narrow..][..shape.key]);
                    d[v..v + shape.head].copy_from_slice(&dv[p * deep..][..shape.head]);
                    if let Some(g) = d_values {
                        let g = &g[p * shape.width() + h * shape.head..];
                        d[v..v + shape.head]
                            .iter_mut()
                            .zip(g)
                            .for_each(|(d, g)| *d += g);
                    }
                }
            }
        });
}

/// Gradients of the scaled queries, the keys and the values of a head, `[positions, padded channels]` each.
fn head_backward(
    isa: Isa,
    qkv: &[f32],
    sums: &[[f32; 2]],
    d_out: &[f32],
    shape: Shape,
    h: usize,
) -> [Aligned; 3] {
    let n = shape.positions;
    let (wide, narrow, deep) = (padded(n), padded(shape.key), padded(shape.head));
    let [q, k, v] = shape.of_head(h);
    let c = shape.channels();
    let query = rows_of(qkv, c, q, shape.key, shape.scale());
    let key = rows_of(qkv, c, k, shape.key, 1.0);
    let key_t = columns_of(qkv, c, k, shape.key, wide);
    let value_t = columns_of(qkv, c, v, shape.head, wide);
    let d_out = rows_of(d_out, shape.width(), h * shape.head, shape.head, 1.0);
    let mut dq = Aligned::zeros(n * narrow);
    let mut dk = Aligned::zeros(n * narrow);
    let mut dv = Aligned::zeros(n * deep);
    let mut weights = Aligned::zeros(BLOCK.min(n) * wide);
    let mut slopes = Aligned::zeros(BLOCK.min(n) * wide);
    for (block, sums) in sums.chunks(BLOCK).enumerate() {
        let (first, rows) = (block * BLOCK, sums.len());
        let (weights, slopes) = (&mut weights[..rows * wide], &mut slopes[..rows * wide]);
        let query = &query[first * narrow..];
        let d_out = &d_out[first * deep..];
        let left = |at, row| Left { at, row, col: 1 };
        product(
            isa,
            left(query, narrow),
            &key_t,
            shape.key,
            rows,
            weights,
            wide,
            false,
        );
        isa.run(Weights {
            weights,
            positions: n,
            sums,
        });
        product(
            isa,
            left(d_out, deep),
            &value_t,
            shape.head,
            rows,
            slopes,
            wide,
            false,
        );
        isa.run(Slopes {
            weights,
            slopes,
            positions: n,
        });
        product(
            isa,
            left(slopes, wide),
            &key,
            n,
            rows,
            &mut dq[first * narrow..][..rows * narrow],
            narrow,
            false,
        );
        let transposed = |at| Left {
            at,
            row: 1,
            col: wide,
        };
        product(
            isa,
            transposed(weights),
            d_out,
            rows,
            n,
            &mut dv,
            deep,
            true,
        );
        product(
            isa,
            transposed(slopes),
            query,
            rows,
            n,
            &mut dk,
            narrow,
            true,
        );
    }
    [dq, dk, dv]
}

fn padded(n: usize) -> usize {
    n.next_multiple_of(LINE)
}

/// `scale` times channels `first..first + len` of each position, padded: `[positions, padded(len)]`.
fn rows_of(x: &[f32], channels: usize, first: usize, len: usize, scale: f32) -> Aligned {
    let mut rows = Aligned::zeros(x.len() / channels * padded(len));
    for (row, x) in rows
        .chunks_exact_mut(padded(len))
        .zip(x.chunks_exact(channels))
    {
        for (r, x) in row.iter_mut().zip(&x[first..first + len]) {
            *r = x * scale;
        }
    }
    rows
}

/// Channels `first..first + len` of the positions, transposed: `[len, wide]`.
fn columns_of(x: &[f32], channels: usize, first: usize, len: usize, wide: usize) -> Aligned {
    let mut columns = Aligned::zeros(len * wide);
    for (p, x) in x.chunks_exact(channels).enumerate() {
        for (i, x) in x[first..first + len].iter().enumerate() {
            columns[i * wide + p] = *x;
        }
    }
    columns
}

/// The left factor of a product: element `(m, k)` is `at[m * row + k * col]`.
#[derive(Clone, Copy)]
struct Left<'a> {
    at: &'a [f32],
    row: usize,
    col: usize,
}

/// `c [rows, width] (+)= a [rows, depth] * b [depth, width]`, `width` a multiple of `LINE`.
#[allow(clippy::too_many_arguments)]
fn product(
    isa: Isa,
    a: Left,
    b: &[f32],
    depth: usize,
    rows: usize,
    c: &mut [f32],
    width: usize,
    add: bool,
) {
    assert!(
        width.is_multiple_of(LINE) && depth * width <= b.len() && rows * width <= c.len(),
        "factors of a product"
    );
    assert!(
        rows == 0 || depth == 0 || (rows - 1) * a.row + (depth - 1) * a.col < a.at.len(),
        "left factor of a product"
    );
    isa.run(Product {
        a,
        b,
        depth,
        rows,
        c,
        width,
        add,
    });
}

struct Product<'a> {
    a: Left<'a>,
    b: &'a [f32],
    depth: usize,
    rows: usize,
    c: &'a mut [f32],
    width: usize,
    add: bool,
}

impl Kernel for Product<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let vectors = self.width / S::N;
        let mut v = 0;
        while v < vectors {
            let left = vectors - v;
            // the tile's sums, a row of `b` and an element of `a` fit the registers
            if left >= 4 && S::REGISTERS >= 32 {
                self.columns::<S, 4>(s, v);
                v += 4;
            } else if left >= 2 {
                self.columns::<S, 2>(s, v);
                v += 2;
            } else {
                self.columns::<S, 1>(s, v);
                v += 1;
            }
        }
    }
}

impl Product<'_> {
    #[inline(always)]
    fn columns<S: Simd, const V: usize>(&self, s: S, v: usize) {
        let mut m = 0;
        while m < self.rows {
            m += match self.rows - m {
                1 => self.tile::<S, 1, V>(s, m, v),
                2 => self.tile::<S, 2, V>(s, m, v),
                3..TILE => self.tile::<S, 3, V>(s, m, v),
                _ => self.tile::<S, TILE, V>(s, m, v),
            };
        }
    }

    /// Rows `m..m + M` of `V` vectors from the `v`th on; returns `M`.
    #[inline(always)]
    fn tile<S: Simd, const M: usize, const V: usize>(&self, s: S, m: usize, v: usize) -> usize {
        let w = self.width;
        // SAFETY: `m + M <= rows`, `(v + V) * N <= width`; `product` has checked the three slices for these.
        unsafe {
            let c = self.c.as_ptr().cast_mut().add(m * w + v * S::N);
            let mut b = self.b.as_ptr().add(v * S::N);
            let mut a = self.a.at.as_ptr().add(m * self.a.row);
            let mut sum = [[s.zero(); V]; M];
            if self.add {
                for (i, row) in sum.iter_mut().enumerate() {
                    for (j, x) in row.iter_mut().enumerate() {
                        *x = s.load(c.add(i * w + j * S::N));
                    }
                }
            }
            for _ in 0..self.depth {
                let mut right = [s.zero(); V];
                for (j, r) in right.iter_mut().enumerate() {
                    *r = s.load(b.add(j * S::N));
                }
                for (i, row) in sum.iter_mut().enumerate() {
                    let x = s.splat(*a.add(i * self.a.row));
                    for (x_b, r) in row.iter_mut().zip(right) {
                        *x_b = s.fma(x, r, *x_b);
                    }
                }
                a = a.wrapping_add(self.a.col);
                b = b.wrapping_add(w);
            }
            for (i, row) in sum.iter().enumerate() {
                for (j, x) in row.iter().enumerate() {
                    s.store(c.add(i * w + j * S::N), *x);
                }
            }
        }
        M
    }
}

/// Turns rows of logits into `exp(logit - maximum)`, zeros behind the positions, and notes maximum and 1 / sum.
struct Softmax<'a> {
    weights: &'a mut [f32],
    positions: usize,
    sums: &'a mut [[f32; 2]],
}

impl Kernel for Softmax<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let rows = self.weights.chunks_exact_mut(padded(self.positions));
        for (row, sums) in rows.zip(self.sums) {
            row[self.positions..].fill(f32::NEG_INFINITY);
            let mut max = s.splat(f32::NEG_INFINITY);
            let mut sum = s.zero();
            // SAFETY: a row is whole vectors, for every instruction set.
            unsafe {
                for x in row.chunks_exact(S::N) {
                    max = s.max(max, s.load(x.as_ptr()));
                }
            }
            let max = s.reduce_max(max);
            exponentials(s, row, self.positions, max, 1.0);
            // SAFETY: as above.
            unsafe {
                for x in row.chunks_exact(S::N) {
                    sum = s.add(sum, s.load(x.as_ptr()));
                }
            }
            *sums = [max, 1.0 / s.reduce_add(sum)];
        }
    }
}

/// `row = exp(row - max) * scale`, zeros behind the positions.
#[inline(always)]
fn exponentials<S: Simd>(s: S, row: &mut [f32], positions: usize, max: f32, scale: f32) {
    let (max, scale) = (s.splat(max), s.splat(scale));
    for x in row.chunks_exact_mut(S::N) {
        let x = x.as_mut_ptr();
        // SAFETY: the chunk is a vector.
        unsafe { s.store(x, s.mul(exp(s, s.sub(s.load(x), max)), scale)) };
    }
    row[positions..].fill(0.0);
}

/// Turns rows of logits into weights, as the forward pass had them.
struct Weights<'a> {
    weights: &'a mut [f32],
    positions: usize,
    sums: &'a [[f32; 2]],
}

impl Kernel for Weights<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let rows = self.weights.chunks_exact_mut(padded(self.positions));
        for (row, &[max, scale]) in rows.zip(self.sums) {
            exponentials(s, row, self.positions, max, scale);
        }
    }
}

/// Turns gradients with respect to weights into those with respect to logits: `w (g - sum(w g))` in each row.
struct Slopes<'a> {
    weights: &'a [f32],
    slopes: &'a mut [f32],
    positions: usize,
}

impl Kernel for Slopes<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let wide = padded(self.positions);
        for (w, g) in self
            .weights
            .chunks_exact(wide)
            .zip(self.slopes.chunks_exact_mut(wide))
        {
            let mut sum = s.zero();
            // SAFETY: rows are whole vectors, for every instruction set.
            unsafe {
                for (w, g) in w.chunks_exact(S::N).zip(g.chunks_exact(S::N)) {
                    sum = s.fma(s.load(w.as_ptr()), s.load(g.as_ptr()), sum);
                }
                let sum = s.splat(s.reduce_add(sum));
                for (w, g) in w.chunks_exact(S::N).zip(g.chunks_exact_mut(S::N)) {
                    let g = g.as_mut_ptr();
                    s.store(g, s.mul(s.load(w.as_ptr()), s.sub(s.load(g), sum)));
                }
            }
        }
    }
}

/// Divides rows by their sums.
struct ScaleRows<'a> {
    rows: &'a mut [f32],
    sums: &'a [[f32; 2]],
}

impl Kernel for ScaleRows<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let width = self.rows.len() / self.sums.len().max(1);
        for (row, sums) in self.rows.chunks_exact_mut(width.max(1)).zip(self.sums) {
            row.iter_mut().for_each(|x| *x *= sums[1]);
        }
    }
}

#[cfg(test)]
#[path = "attention_tests.rs"]
mod tests;
