//! The products of an attention block, `softmax(q k^T / sqrt(key)) v` for each image and head, and their gradient.
//!
//! Each product is one launch over all images and heads, which reads and writes the channels of `qkv` where they lie.
//! Weights are float32 and are computed again in the backward pass.

use super::gemm::{TN, multiply};
use super::launch::{T, UNITS, arg, cube_dim, cubes, dims4, elem, empty, len};
use super::sums::fold;
use crate::ops::extension::AttendArgs;
use burn::tensor::DType;
use cubecl::prelude::*;

/// Edge of a tile of a product, and its depth.
const TILE: usize = 64;
const DEPTH: usize = 16;

/// A matrix of each image and head: where its first element lies, and the steps along both axes.
#[derive(CubeLaunch, CubeType, Clone, Copy)]
struct Place {
    start: u32,
    image: u32,
    head: u32,
    row: u32,
    column: u32,
}

/// `c = factor a b` for each image and head, `[m, k]` by `[k, n]`.
#[cube(launch_unchecked)]
fn product_kernel<A: Float, B: Float, C: Float>(
    a: &[A],
    b: &[B],
    c: &mut [C],
    at_a: &Place,
    at_b: &Place,
    at_c: &Place,
    m: u32,
    n: u32,
    k: u32,
    heads: u32,
    batch: u32,
    factor: f32,
    #[comptime] a_by_row: bool,
    #[comptime] b_by_row: bool,
    #[comptime] tile: usize,
    #[comptime] depth: usize,
    #[comptime] units: usize,
    #[define(A, B, C)] _dtypes: [ElemType; 3],
) {
    let edge = comptime!(tile as u32);
    let tiles_n = n.div_ceil(edge);
    let tiles_m = m.div_ceil(edge);
    let cube = CUBE_POS as u32;
    let tile_n = cube % tiles_n * edge;
    let tile_m = cube / tiles_n % tiles_m * edge;
    let pair = cube / tiles_n / tiles_m;
    if pair >= batch {
        terminate!();
    }
    let (image, head) = (pair / heads, pair % heads);
    let start_a = at_a.start + image * at_a.image + head * at_a.head;
    let start_b = at_b.start + image * at_b.image + head * at_b.head;
    let start_c = at_c.start + image * at_c.image + head * at_c.head;
    let pitch = comptime!(tile + 4);
    let mut a_tile = Shared::<[f32]>::new_aligned_slice(comptime!(pitch * depth), 16usize);
    let mut b_tile = Shared::<[f32]>::new_aligned_slice(comptime!(tile * depth), 16usize);
    let unit = UNIT_POS as usize;
    let loads = comptime!(tile * depth / units);
    let mut acc = Array::<f32>::new(comptime!(TN * TN));
    #[unroll]
    for i in 0..comptime!(TN * TN) {
        acc[i] = f32::new(0.0f32);
    }
    let across = comptime!(tile / TN);
    let (tx, ty) = (unit % across, unit / across);
    for s in 0..k.div_ceil(comptime!(depth as u32)) {
        let from = s * comptime!(depth as u32);
        #[unroll]
        for it in 0..loads {
            let index = unit + it * units;
            // neighbouring units read neighbouring elements
            let mut row = index / depth;
            let mut column = index % depth;
            if !a_by_row {
                row = index % tile;
                column = index / tile;
            }
            let (r, c) = (tile_m + row as u32, from + column as u32);
            let mut value = f32::new(0.0f32);
            if r < m && c < k {
                value = f32::cast_from(a[(start_a + r * at_a.row + c * at_a.column) as usize]);
            }
            a_tile[column * pitch + row] = value;
        }
        #[unroll]
        for it in 0..loads {
            let index = unit + it * units;
            let mut row = index / tile;
            let mut column = index % tile;
            if !b_by_row {
                row = index % depth;
                column = index / depth;
            }
            let (r, c) = (from + row as u32, tile_n + column as u32);
            let mut value = f32::new(0.0f32);
            if r < k && c < n {
                value = f32::cast_from(b[(start_b + r * at_b.row + c * at_b.column) as usize]);
            }
            b_tile[row * tile + column] = value;
        }
        sync_cube();
        multiply(&a_tile, &b_tile, &mut acc, ty, tx, pitch, tile, depth, TN);
        sync_cube();
    }
    #[unroll]
    for i in 0..TN {
        let r = tile_m + (ty * TN + i) as u32;
        #[unroll]
        for j in 0..TN {
            let column = tile_n + (tx * TN + j) as u32;
            if r < m && column < n {
                let at = start_c + r * at_c.row + column * at_c.column;
                c[at as usize] = C::cast_from(acc[i * TN + j] * factor);
            }
        }
    }
}

/// Softmax of each row, in place.
#[cube(launch_unchecked)]
fn softmax_kernel(x: &mut [f32], rows: usize, width: usize, #[comptime] units: usize) {
    if CUBE_POS >= rows {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let start = CUBE_POS * width;
    let mut shared = Shared::<[f32]>::new_slice(units);
    let mut top = x[start];
    for i in range_stepped(unit, width, units) {
        top = max(top, x[start + i]);
    }
    shared[unit] = top;
    let mut half = (units / 2).runtime();
    while half > 0 {
        sync_cube();
        if unit < half {
            shared[unit] = max(shared[unit], shared[unit + half]);
        }
        half /= 2;
    }
    sync_cube();
    let top = shared[0];
    sync_cube();
    let mut sum = f32::new(0.0f32);
    for i in range_stepped(unit, width, units) {
        let e = (x[start + i] - top).exp();
        x[start + i] = e;
        sum += e;
    }
    shared[unit] = sum;
    fold(&mut shared, unit, 1usize, units.runtime());
    let inverse = f32::new(1.0f32) / shared[0];
    for i in range_stepped(unit, width, units) {
        x[start + i] *= inverse;
    }
}

/// `d = w (d - sum(d w))` for each row: the gradient with respect to what softmax made `w` of, in place.
#[cube(launch_unchecked)]
fn softmax_gradient_kernel(
    w: &[f32],
    d: &mut [f32],
    rows: usize,
    width: usize,
    #[comptime] units: usize,
) {
    if CUBE_POS >= rows {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let start = CUBE_POS * width;
    let mut shared = Shared::<[f32]>::new_slice(units);
    let mut sum = f32::new(0.0f32);
    for i in range_stepped(unit, width, units) {
        sum = fma(d[start + i], w[start + i], sum);
    }
    shared[unit] = sum;
    fold(&mut shared, unit, 1usize, units.runtime());
    let sum = shared[0];
    for i in range_stepped(unit, width, units) {
        d[start + i] = w[start + i] * (d[start + i] - sum);
    }
}

/// Units that share a row of weights.
const ROW_UNITS: usize = 128;

/// A matrix as a product takes it.
#[derive(Clone, Copy)]
struct Matrix<'a> {
    tensor: &'a T,
    start: usize,
    image: usize,
    head: usize,
    row: usize,
    column: usize,
}

impl Matrix<'_> {
    fn turned(self) -> Self {
        Self {
            row: self.column,
            column: self.row,
            ..self
        }
    }
    fn launch(&self) -> PlaceLaunch {
        let [start, image, head, row, column] =
            [self.start, self.image, self.head, self.row, self.column].map(|v| v as u32);
        PlaceLaunch::new(start, image, head, row, column)
    }
}

/// Sizes of an attention block.
struct Block {
    images: usize,
    positions: usize,
    heads: usize,
    key: usize,
    head: usize,
}

impl Block {
    fn new(qkv: &T, a: &AttendArgs) -> Self {
        let [images, h, w, _] = dims4(qkv);
        Self {
            images,
            positions: h * w,
            heads: a.heads,
            key: a.key,
            head: a.head,
        }
    }
    /// Queries, keys and values in a tensor of the shape of `qkv`.
    fn split<'a>(&self, qkv: &'a T) -> [Matrix<'a>; 3] {
        let each = 2 * self.key + self.head;
        let width = self.heads * each;
        [0, self.key, 2 * self.key].map(|start| Matrix {
            tensor: qkv,
            start,
            image: self.positions * width,
            head: each,
            row: width,
            column: 1,
        })
    }
    /// Attended values.
    fn values<'a>(&self, tensor: &'a T) -> Matrix<'a> {
        let width = self.heads * self.head;
        Matrix {
            tensor,
            start: 0,
            image: self.positions * width,
            head: self.head,
            row: width,
            column: 1,
        }
    }
    /// Weights of positions, `[images, heads, positions, positions]`.
    fn weights<'a>(&self, tensor: &'a T) -> Matrix<'a> {
        let square = self.positions * self.positions;
        Matrix {
            tensor,
            start: 0,
            image: self.heads * square,
            head: square,
            row: self.positions,
            column: 1,
        }
    }
    fn empty_weights(&self, like: &T) -> T {
        let shape = [self.images, self.heads, self.positions, self.positions];
        empty(like, shape, DType::F32)
    }
    fn product(&self, a: Matrix, b: Matrix, c: Matrix, [m, n, k]: [usize; 3], factor: f32) {
        let batch = self.images * self.heads;
        let client = &a.tensor.client;
        let tiles = m.div_ceil(TILE) * n.div_ceil(TILE);
        // SAFETY: reads and writes are masked by the sizes of the matrices.
        unsafe {
            product_kernel::launch_unchecked(
                client,
                cubes(batch * tiles),
                cube_dim(),
                arg(a.tensor, 1),
                arg(b.tensor, 1),
                arg(c.tensor, 1),
                a.launch(),
                b.launch(),
                c.launch(),
                m as u32,
                n as u32,
                k as u32,
                self.heads as u32,
                batch as u32,
                factor,
                a.column == 1,
                b.column == 1,
                TILE,
                DEPTH,
                UNITS,
                [a.tensor, b.tensor, c.tensor].map(|t| elem(t.dtype)),
            );
        }
    }
    fn scale(&self) -> f32 {
        1.0 / (self.key as f32).sqrt()
    }
    /// `softmax(q k^T / sqrt(key))`
    fn attention(&self, qkv: &T) -> T {
        let [q, k, _] = self.split(qkv);
        let weights = self.empty_weights(qkv);
        let p = self.positions;
        let w = self.weights(&weights);
        self.product(q, k.turned(), w, [p, p, self.key], self.scale());
        let rows = self.images * self.heads * p;
        let client = &qkv.client;
        // SAFETY: a cube for each row.
        unsafe {
            softmax_kernel::launch_unchecked(
                client,
                cubes(rows),
                CubeDim::new_1d(ROW_UNITS as u32),
                arg(&weights, 1),
                rows,
                p,
                ROW_UNITS,
            );
        }
        weights
    }
}

/// `[n, h, w, heads * head]`
pub(super) fn attended(qkv: &T, a: &AttendArgs) -> T {
    let b = Block::new(qkv, a);
    let [n, h, w, _] = dims4(qkv);
    let out = empty(qkv, [n, h, w, b.heads * b.head], qkv.dtype);
    if len(&out) == 0 {
        return out;
    }
    let weights = b.attention(qkv);
    let [_, _, v] = b.split(qkv);
    let p = b.positions;
    b.product(b.weights(&weights), v, b.values(&out), [p, b.head, p], 1.0);
    out
}

pub(super) fn attended_dqkv(d: &T, qkv: &T, a: &AttendArgs) -> T {
    let b = Block::new(qkv, a);
    let out = empty(qkv, qkv.meta.shape().clone(), qkv.dtype);
    if len(qkv) == 0 {
        return out;
    }
    let p = b.positions;
    let weights = b.attention(qkv);
    let gradient = b.empty_weights(qkv);
    let (w, g) = (b.weights(&weights), b.weights(&gradient));
    let ([q, k, v], [dq, dk, dv]) = (b.split(qkv), b.split(&out));
    let d = b.values(d);
    b.product(d, v.turned(), g, [p, p, b.head], 1.0);
    b.product(w.turned(), d, dv, [p, b.head, p], 1.0);
    let rows = b.images * b.heads * p;
    let client = &qkv.client;
    // SAFETY: a cube for each row.
    unsafe {
        softmax_gradient_kernel::launch_unchecked(
            client,
            cubes(rows),
            CubeDim::new_1d(ROW_UNITS as u32),
            arg(&weights, 1),
            arg(&gradient, 1),
            rows,
            p,
            ROW_UNITS,
        );
    }
    b.product(g, k, dq, [p, b.key, p], b.scale());
    b.product(g.turned(), q, dk, [p, b.key, p], b.scale());
    out
}
