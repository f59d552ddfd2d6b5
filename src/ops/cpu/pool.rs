//! Maximum over 5x5 windows, stride 1, padding 2: rows first, then columns.
//!
//! Of equal values the first in row order wins, as in the reference: the column pass takes the first row that has
//! the maximum, the row pass the first pixel in it. A value that is not a number wins over every number.

use rayon::prelude::*;

use super::isa::{Isa, Kernel};
use super::simd::Simd;

/// Where each window's maximum is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Winners {
    /// For each pixel and channel, which of the 5 pixels around it in its row is the row's maximum (2 is itself).
    in_row: Vec<u8>,
    /// Which of the 5 rows around it has the window's maximum.
    row: Vec<u8>,
}

/// Shape of an activation `[images, rows, cols, channels]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    pub images: usize,
    pub rows: usize,
    pub cols: usize,
    pub channels: usize,
}

impl Grid {
    /// Floats of a row of pixels.
    fn row(&self) -> usize {
        self.cols * self.channels
    }
    /// Floats altogether.
    #[must_use]
    pub fn len(&self) -> usize {
        self.images * self.rows * self.row()
    }
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Maxima of `x` into `out`, both of shape `grid`, and where they are.
///
/// # Panics
/// If a length is not the shape's.
#[must_use]
pub fn max_pool5(isa: Isa, x: &[f32], grid: Grid, out: &mut [f32]) -> Winners {
    assert_eq!(x.len(), grid.len(), "input of a pool");
    assert_eq!(out.len(), grid.len(), "output of a pool");
    let mut winners = Winners {
        in_row: vec![0; grid.len()],
        row: vec![0; grid.len()],
    };
    if grid.is_empty() {
        return winners;
    }
    let (row, c) = (grid.row(), grid.channels);
    let mut of_rows = vec![0.0f32; grid.len()];
    let tasks = of_rows
        .par_chunks_mut(row)
        .zip(winners.in_row.par_chunks_mut(row));
    tasks.zip(x.par_chunks(row)).for_each(|((max, code), x)| {
        isa.run(Maxima {
            x,
            max,
            code,
            step: c,
            at: None,
        });
    });
    let tasks = out.par_chunks_mut(row).zip(winners.row.par_chunks_mut(row));
    tasks.enumerate().for_each(|(r, (max, code))| {
        let (image, at) = (r / grid.rows, r % grid.rows);
        let x = &of_rows[image * grid.rows * row..][..grid.rows * row];
        isa.run(Maxima {
            x,
            max,
            code,
            step: row,
            at: Some(at),
        });
    });
    winners
}

/// Maxima over 5 lines of `step` floats of `x`. With `at`, of the lines around that one; without, of those around
/// each of the lines in turn.
struct Maxima<'a> {
    x: &'a [f32],
    max: &'a mut [f32],
    code: &'a mut [u8],
    step: usize,
    at: Option<usize>,
}

impl Kernel for Maxima<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let step = self.step;
        let n = self.x.len() / step;
        let lines = self
            .max
            .chunks_exact_mut(step)
            .zip(self.code.chunks_exact_mut(step));
        for (i, (max, code)) in lines.enumerate() {
            let at = self.at.unwrap_or(i);
            let first = at.saturating_sub(2);
            max.copy_from_slice(&self.x[first * step..][..step]);
            code.fill((first + 2 - at) as u8);
            for from in first + 1..(at + 3).min(n) {
                let k = (from + 2 - at) as u8;
                let x = &self.x[from * step..][..step];
                for ((max, code), &x) in max.iter_mut().zip(&mut *code).zip(x) {
                    let wins = (x > *max) | x.is_nan();
                    *max = if wins { x } else { *max };
                    *code = if wins { k } else { *code };
                }
            }
        }
    }
}

/// Gradient with respect to the input from that with respect to the output, both of shape `grid`.
///
/// # Panics
/// If a length is not the shape's.
pub fn max_pool5_gradient(isa: Isa, winners: &Winners, g: &[f32], grid: Grid, out: &mut [f32]) {
    assert_eq!(g.len(), grid.len(), "gradient of a pool's output");
    assert_eq!(out.len(), grid.len(), "gradient of a pool's input");
    assert_eq!(winners.row.len(), grid.len(), "winners of a pool");
    if grid.is_empty() {
        return;
    }
    let (row, c) = (grid.row(), grid.channels);
    let image = grid.rows * row;
    let mut of_rows = vec![0.0f32; grid.len()];
    of_rows
        .par_chunks_mut(row)
        .enumerate()
        .for_each(|(r, sum)| {
            let first = r / grid.rows * image;
            let (g, code) = (&g[first..][..image], &winners.row[first..][..image]);
            isa.run(Sums {
                g,
                code,
                sum,
                step: row,
                at: Some(r % grid.rows),
            });
        });
    let tasks = out.par_chunks_mut(row).zip(winners.in_row.par_chunks(row));
    tasks
        .zip(of_rows.par_chunks(row))
        .for_each(|((sum, code), g)| {
            isa.run(Sums {
                g,
                code,
                sum,
                step: c,
                at: None,
            });
        });
}

/// For a line (or each in turn), the sum of the gradients of the windows around it whose maximum it is.
struct Sums<'a> {
    g: &'a [f32],
    code: &'a [u8],
    sum: &'a mut [f32],
    step: usize,
    at: Option<usize>,
}

impl Kernel for Sums<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let step = self.step;
        let n = self.g.len() / step;
        for (i, sum) in self.sum.chunks_exact_mut(step).enumerate() {
            let at = self.at.unwrap_or(i);
            sum.fill(0.0);
            for from in at.saturating_sub(2)..(at + 3).min(n) {
                let k = (at + 2 - from) as u8;
                let (g, code) = (
                    &self.g[from * step..][..step],
                    &self.code[from * step..][..step],
                );
                for ((sum, &g), &code) in sum.iter_mut().zip(g).zip(code) {
                    *sum += if code == k { g } else { 0.0 };
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
