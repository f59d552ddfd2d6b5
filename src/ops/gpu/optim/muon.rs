//! Muon's part of a step (see [`crate::train`]'s `muon`): the Newton-Schulz iteration of all weight matrices at once.
//!
//! A product of the iteration is one launch over the tiles of all matrices, whatever their sizes: a network has many
//! small ones, and a launch for each would cost more than its work. With `A_0 = X'X` (the smaller side) and
//! `P_i = a + b A_i + c A_i^2` a step is `A_(i+1) = P_i A_i P_i`, and the update is `X P_4 ... P_0`, one product at the
//! end. Each product is summed in one order, in float32. The trace of `X'X` is the squared norm that X is divided by.

use super::super::flat;
use super::super::launch::cubes;
use super::super::loss::sums::tree;
use super::groups::{Groups, MUON, RULE, SCALE, TURNS, group};
use super::norm::Status;
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// Iterations.
const STEPS: usize = 5;
/// Coefficients of an iteration.
const A: f32 = 3.4445;
const B: f32 = -4.775;
const C: f32 = 2.0315;
/// Added to the norm that a matrix is divided by.
const NORM_EPS: f32 = 1e-7;

/// Rows and columns of a tile of a product.
const TILE: usize = 64;
/// Inner elements that a tile takes at a time.
const DEPTH: usize = 16;
/// Units of a cube: 16 x 16, each with 4 x 4 elements of the tile.
const UNITS: usize = 256;
const MICRO: usize = 4;
/// Elements of a stored row of the left factor: one more than a tile's, so that no two units meet in a bank of memory.
const PITCH: usize = TILE + 1;

/// Numbers of a matrix: first element in flat memory, rows, columns, first element of its square ones, group.
const MATRIX: usize = 5;
/// Numbers of a tile: matrix, first row, first column.
const PLACE: usize = 3;

/// A weight that Muon moves, as a matrix in flat memory, row by row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Matrix {
    /// First element.
    pub offset: usize,
    pub rows: usize,
    pub columns: usize,
    /// Its group in [`Groups`].
    pub group: usize,
}

/// All weights that Muon moves.
#[derive(Debug, Clone)]
pub struct Matrices {
    /// `[matrices, MATRIX]`
    table: CubeTensor,
    count: usize,
    /// Elements of all square ones.
    squares: usize,
    square_tiles: Tiles,
    /// Of the last product, of matrices that are at least as tall as wide, and of the others.
    tall: Tiles,
    wide: Tiles,
}

/// Tiles of a product, `[count, PLACE]`.
#[derive(Debug, Clone)]
struct Tiles {
    places: CubeTensor,
    count: usize,
}

impl Matrices {
    /// Of `groups`' flat memory.
    ///
    /// # Panics
    /// If a matrix does not lie in it.
    #[must_use]
    pub fn new(matrices: &[Matrix], groups: &Groups) -> Self {
        let (mut table, mut squares) = (vec![], 0);
        let (mut square_tiles, mut tall, mut wide) = (vec![], vec![], vec![]);
        for (i, m) in matrices.iter().enumerate() {
            let end = m.offset + m.rows * m.columns;
            assert!(
                end <= groups.len && m.group < groups.count,
                "{m:?} of {} elements",
                groups.len
            );
            let numbers = [m.offset, m.rows, m.columns, squares, m.group];
            table.extend(numbers.map(|v| v as u32));
            let small = m.rows.min(m.columns);
            squares += small * small;
            tiles(i, small, small, &mut square_tiles);
            let last = if m.columns <= m.rows {
                &mut tall
            } else {
                &mut wide
            };
            tiles(i, m.rows, m.columns, last);
        }
        let device = &groups.device;
        let upload = |places: &[u32]| Tiles {
            places: flat::upload_u32(device, places),
            count: places.len() / PLACE,
        };
        Self {
            table: flat::upload_u32(device, &table),
            count: matrices.len(),
            squares,
            square_tiles: upload(&square_tiles),
            tall: upload(&tall),
            wide: upload(&wide),
        }
    }
}

fn tiles(matrix: usize, rows: usize, columns: usize, to: &mut Vec<u32>) {
    for row in (0..rows).step_by(TILE) {
        for column in (0..columns).step_by(TILE) {
            to.extend([matrix, row, column].map(|v| v as u32));
        }
    }
}

/// What a launch of products computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Product {
    /// `X'X` of tall matrices, `XX'` of wide ones.
    Gram,
    /// Of two square ones.
    Square,
    /// `a + b A + c A A`.
    Polynomial,
    /// `W -= rate X P / norm`.
    Tall,
    /// `W -= rate P X / norm`.
    Wide,
}

/// Moves `momentum_state` (`m <- beta m + (1 - beta) g`) and the parameters, by their groups' Muon rates times the
/// orthogonal factor of `beta m + (1 - beta) g`. The gradient stays: SGD follows.
///
/// # Panics
/// If something has not the groups' length.
pub fn muon(
    matrices: &Matrices,
    groups: &Groups,
    status: &Status,
    params: &CubeTensor,
    gradient: &CubeTensor,
    momentum_state: &CubeTensor,
    momentum: f64,
) {
    for t in [params, gradient, momentum_state] {
        assert_eq!(
            t.meta.num_elements(),
            groups.len,
            "flat memory of all parameters"
        );
    }
    if matrices.count == 0 {
        return;
    }
    let (device, client) = (&groups.device, groups.device.client());
    let floats = |n: usize| flat::empty(device, [n], DType::F32);
    let update = floats(groups.len);
    let size = groups.vector_size();
    let vectors = groups.len / size;
    momentum_kernel::launch(
        &client,
        cubes(vectors.div_ceil(UNITS)),
        CubeDim::new_1d(UNITS as u32),
        size,
        gradient.clone().into_buffer_arg(),
        momentum_state.clone().into_buffer_arg(),
        update.clone().into_buffer_arg(),
        groups.words.clone().into_buffer_arg(),
        status.rules.clone().into_buffer_arg(),
        vectors as u32,
        momentum as f32,
        (1.0 - momentum) as f32,
    );
    let factors = floats(matrices.count);
    let run =
        |a: &CubeTensor, b: &CubeTensor, out: &CubeTensor, tiles: &Tiles, product: Product| {
            if tiles.count == 0 {
                return;
            }
            product_kernel::launch(
                &client,
                cubes(tiles.count),
                CubeDim::new_1d(UNITS as u32),
                a.clone().into_buffer_arg(),
                b.clone().into_buffer_arg(),
                out.clone().into_buffer_arg(),
                matrices.table.clone().into_buffer_arg(),
                tiles.places.clone().into_buffer_arg(),
                factors.clone().into_buffer_arg(),
                status.rules.clone().into_buffer_arg(),
                tiles.count as u32,
                product,
            );
        };
    let square = |a: &CubeTensor, b: &CubeTensor, out: &CubeTensor, product: Product| {
        run(a, b, out, &matrices.square_tiles, product);
    };
    let [mut gram, mut p, mut all, mut spare] = [0; 4].map(|_| floats(matrices.squares));
    square(&update, &update, &gram, Product::Gram);
    norm_kernel::launch(
        &client,
        cubes(matrices.count),
        CubeDim::new_1d(UNITS as u32),
        gram.clone().into_buffer_arg(),
        matrices.table.clone().into_buffer_arg(),
        factors.clone().into_buffer_arg(),
        matrices.count as u32,
    );
    for step in 0..STEPS {
        square(&gram, &gram, &p, Product::Polynomial);
        if step + 1 < STEPS {
            let next = floats(matrices.squares);
            square(&p, &gram, &spare, Product::Square);
            square(&spare, &p, &next, Product::Square);
            gram = next;
        }
        if step == 0 {
            std::mem::swap(&mut all, &mut p);
        } else {
            square(&p, &all, &spare, Product::Square);
            std::mem::swap(&mut all, &mut spare);
        }
    }
    run(&update, &all, params, &matrices.tall, Product::Tall);
    run(&all, &update, params, &matrices.wide, Product::Wide);
}

/// Momentum of what Muon moves, and the direction that is to be orthogonalised (elsewhere 0).
#[cube(launch)]
fn momentum_kernel<N: Size>(
    gradient: &[Vector<f32, N>],
    state: &mut [Vector<f32, N>],
    update: &mut [Vector<f32, N>],
    words: &[u32],
    rules: &[f32],
    vectors: u32,
    keep: f32,
    rest: f32,
) {
    let at = ABSOLUTE_POS;
    if at >= vectors as usize {
        terminate!();
    }
    let size = N::value();
    let grads = gradient[at];
    let mut ms = state[at];
    let mut ahead = Vector::<f32, N>::zeroed();
    #[unroll]
    for j in 0..size {
        let row = group(words, at * size + j) * RULE;
        if rules[row + TURNS] > 0.5f32 {
            let g = grads.extract(j) * rules[row + SCALE];
            let m = keep * ms.extract(j) + rest * g;
            ms.insert(j, m);
            ahead.insert(j, keep * m + rest * g);
        }
    }
    state[at] = ms;
    update[at] = ahead;
}

/// Divides a matrix's Gram matrix by its trace's root (plus a little) squared, and leaves what the matrix is to be
/// multiplied by. A cube for each matrix.
#[cube(launch)]
fn norm_kernel(gram: &mut [f32], table: &[u32], factors: &mut [f32], count: u32) {
    let matrix = CUBE_POS;
    if matrix >= count as usize {
        terminate!();
    }
    let rows = table[matrix * MATRIX + 1];
    let columns = table[matrix * MATRIX + 2];
    let first = table[matrix * MATRIX + 3];
    let n = u32::min(rows, columns);
    let units = comptime!(UNITS as u32);
    let mut trace = 0.0f32;
    let mut i = UNIT_POS;
    while i < n {
        trace += gram[(first + i * (n + 1)) as usize];
        i += units;
    }
    let factor = 1.0f32 / (f32::sqrt(tree(trace, UNITS)) + NORM_EPS);
    if UNIT_POS == 0 {
        factors[matrix] = factor;
    }
    let mut i = UNIT_POS;
    while i < n * n {
        // one after the other: the square of a large factor may be infinite
        let v = gram[(first + i) as usize];
        gram[(first + i) as usize] = v * factor * factor;
        i += units;
    }
}

/// Products of all matrices, a cube for each tile of their results.
#[cube(launch)]
fn product_kernel(
    a: &[f32],
    b: &[f32],
    out: &mut [f32],
    table: &[u32],
    places: &[u32],
    factors: &[f32],
    rules: &[f32],
    tiles: u32,
    #[comptime] product: Product,
) {
    let tile = CUBE_POS;
    if tile >= tiles as usize {
        terminate!();
    }
    let matrix = places[tile * PLACE] as usize;
    let row0 = places[tile * PLACE + 1];
    let column0 = places[tile * PLACE + 2];
    let offset = table[matrix * MATRIX];
    let rows = table[matrix * MATRIX + 1];
    let columns = table[matrix * MATRIX + 2];
    let square = table[matrix * MATRIX + 3];
    let small = u32::min(rows, columns);
    let tall = columns <= rows;

    // element (i, k) of the left factor is at a_first + i a_row + k a_column, and so for the others
    let gram = comptime!(product == Product::Gram);
    let last = comptime!(product == Product::Tall || product == Product::Wide);
    let left_is_weight = comptime!(product == Product::Tall || product == Product::Gram);
    let right_is_weight = comptime!(product == Product::Wide || product == Product::Gram);
    let a_first = if left_is_weight { offset } else { square };
    let b_first = if right_is_weight { offset } else { square };
    let out_first = if last { offset } else { square };
    let (m, n) = if last {
        (rows, columns)
    } else {
        (small, small)
    };
    let depth = if gram { u32::max(rows, columns) } else { small };
    let (a_row, a_column) = if gram {
        (select(tall, 1u32, columns), select(tall, columns, 1u32))
    } else if left_is_weight {
        (columns, 1u32)
    } else {
        (small, 1u32)
    };
    let (b_row, b_column) = if gram {
        (select(tall, columns, 1u32), select(tall, 1u32, columns))
    } else if right_is_weight {
        (columns, 1u32)
    } else {
        (small, 1u32)
    };

    let mut left = Shared::<[f32]>::new_slice(comptime!(DEPTH * PITCH));
    let mut right = Shared::<[f32]>::new_slice(comptime!(DEPTH * PITCH));
    let ty = UNIT_POS / 16;
    let tx = UNIT_POS % 16;
    let mut sums = Array::<f32>::new(comptime!(MICRO * MICRO));
    #[unroll]
    for i in 0..comptime!(MICRO * MICRO) {
        sums[i] = 0.0f32;
    }
    let mut k0 = 0u32;
    while k0 < depth {
        #[unroll]
        for l in 0..comptime!(TILE * DEPTH / UNITS) {
            let e = UNIT_POS + comptime!((l * UNITS) as u32);
            // neighbouring units read neighbouring elements
            let by_depth = a_column == 1;
            let i = select(
                by_depth,
                e / comptime!(DEPTH as u32),
                e % comptime!(TILE as u32),
            );
            let k = select(
                by_depth,
                e % comptime!(DEPTH as u32),
                e / comptime!(TILE as u32),
            );
            let mut v = 0.0f32;
            if row0 + i < m && k0 + k < depth {
                v = a[(a_first + (row0 + i) * a_row + (k0 + k) * a_column) as usize];
            }
            left[(k * comptime!(PITCH as u32) + i) as usize] = v;
            let by_column = b_column == 1;
            let j = select(
                by_column,
                e % comptime!(TILE as u32),
                e / comptime!(DEPTH as u32),
            );
            let k = select(
                by_column,
                e / comptime!(TILE as u32),
                e % comptime!(DEPTH as u32),
            );
            let mut v = 0.0f32;
            if column0 + j < n && k0 + k < depth {
                v = b[(b_first + (k0 + k) * b_row + (column0 + j) * b_column) as usize];
            }
            right[(k * comptime!(PITCH as u32) + j) as usize] = v;
        }
        sync_cube();
        for k in 0..DEPTH {
            let mut x = Array::<f32>::new(MICRO);
            let mut y = Array::<f32>::new(MICRO);
            #[unroll]
            for i in 0..MICRO {
                x[i] = left[k * PITCH + (ty * comptime!(MICRO as u32)) as usize + i];
                y[i] = right[k * PITCH + tx as usize + comptime!(i * 16)];
            }
            #[unroll]
            for i in 0..MICRO {
                #[unroll]
                for j in 0..MICRO {
                    sums[comptime!(i * MICRO + j)] += x[i] * y[j];
                }
            }
        }
        sync_cube();
        k0 += comptime!(DEPTH as u32);
    }
    let group = table[matrix * MATRIX + 4] as usize;
    #[unroll]
    for i in 0..MICRO {
        #[unroll]
        for j in 0..MICRO {
            let row = row0 + ty * comptime!(MICRO as u32) + comptime!(i as u32);
            let column = column0 + tx + comptime!(j as u32 * 16);
            if row < m && column < n {
                let at = (out_first + row * n + column) as usize;
                let sum = sums[comptime!(i * MICRO + j)];
                if last {
                    let rate = rules[group * RULE + MUON];
                    out[at] -= rate * (sum * factors[matrix]);
                } else if comptime!(product == Product::Polynomial) {
                    let diagonal = select(row == column, A, 0.0f32);
                    out[at] = B * b[at] + C * sum + diagonal;
                } else {
                    out[at] = sum;
                }
            }
        }
    }
}
