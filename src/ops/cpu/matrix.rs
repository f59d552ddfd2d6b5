//! Products of small dense matrices with a fixed order of summation.
//!
//! Element `(i, j)` is `((0 + a_i0 b_0j) + a_i1 b_1j) + ...` with every product and every sum rounded to float32. No
//! fused multiply-add, which some instruction sets lack: the bytes depend neither on the instruction set nor on the
//! number of threads, and equal those of the plain loop.

use super::aligned::Aligned;
use super::isa::{Isa, Kernel};
use super::simd::Simd;
use rayon::prelude::*;

/// Rows of a task.
const TASK: usize = 64;
/// Vectors of a tile's row.
const VECTORS: usize = 2;

/// The left factor `[rows, inner]`: element `(i, k)` lies at `i * row + k * column`.
#[derive(Debug, Clone, Copy)]
pub struct Left<'a> {
    pub data: &'a [f32],
    pub row: usize,
    pub column: usize,
}

/// Which elements of a product are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    All,
    /// The product is known to be symmetric: elements on and above the diagonal are computed, the others are copies.
    Symmetric,
}

/// `c = a b` for `a` `[m, k]`, `b` `[k, n]` and `c` `[m, n]`, both row by row.
///
/// # Panics
/// If lengths do not fit, or a matrix that is called symmetric is not square.
#[allow(clippy::many_single_char_names)]
pub fn product(isa: Isa, a: Left, b: &[f32], [m, k, n]: [usize; 3], wanted: Wanted, c: &mut [f32]) {
    assert!(m > 0 && k > 0 && n > 0, "a product of {m} x {k} x {n}");
    assert!(
        a.data.len() > (m - 1) * a.row + (k - 1) * a.column,
        "left factor of {m} x {k}"
    );
    assert_eq!(b.len(), k * n, "right factor");
    assert_eq!(c.len(), m * n, "product");
    let symmetric = wanted == Wanted::Symmetric;
    assert!(!symmetric || m == n, "a symmetric product is square");
    let width = VECTORS * isa.width();
    let packed = pack(b, k, n, width);
    let tasks = c.par_chunks_mut(TASK * n).enumerate();
    tasks.for_each(|(task, c)| {
        isa.run(Rows {
            a,
            first: task * TASK,
            b: &packed,
            k,
            n,
            symmetric,
            c,
        });
    });
    if symmetric {
        mirror(c, n);
    }
}

/// Copies what is above the diagonal to below it.
fn mirror(c: &mut [f32], n: usize) {
    for i in 1..n {
        let (above, row) = c.split_at_mut(i * n);
        for (j, v) in row[..i].iter_mut().enumerate() {
            *v = above[j * n + i];
        }
    }
}

/// `b` `[k, n]` as panels `[k, width]` one after the other, zeros where it ends.
fn pack(b: &[f32], k: usize, n: usize, width: usize) -> Aligned {
    let mut out = Aligned::zeros(n.div_ceil(width) * k * width);
    for (panel, out) in out.chunks_exact_mut(k * width).enumerate() {
        let first = panel * width;
        let len = width.min(n - first);
        for (row, out) in b.chunks_exact(n).zip(out.chunks_exact_mut(width)) {
            out[..len].copy_from_slice(&row[first..first + len]);
        }
    }
    out
}

/// Rows `first..` of a product.
struct Rows<'a> {
    a: Left<'a>,
    first: usize,
    /// As [`pack`] leaves it.
    b: &'a [f32],
    k: usize,
    n: usize,
    symmetric: bool,
    /// `[rows, n]`
    c: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if S::REGISTERS >= 32 {
            tiles::<S, 8>(s, self);
        } else {
            tiles::<S, 4>(s, self);
        }
    }
}

#[inline(always)]
fn tiles<S: Simd, const M: usize>(s: S, r: Rows) {
    let (k, n, width) = (r.k, r.n, VECTORS * S::N);
    let rows = r.c.len() / n;
    for (panel, b) in r.b.chunks_exact(k * width).enumerate() {
        let column = panel * width;
        for top in (0..rows).step_by(M) {
            if r.symmetric && column + width <= r.first + top {
                continue;
            }
            // a tile that reaches over the end computes the last row again
            let a: [&[f32]; M] = std::array::from_fn(|i| {
                let row = r.first + (top + i).min(rows - 1);
                &r.a.data[row * r.a.row..]
            });
            let sums = tile::<S, M>(s, a, r.a.column, b, k);
            for (i, sums) in sums.into_iter().enumerate().take(rows - top) {
                let out = &mut r.c[(top + i) * n + column..(top + i + 1) * n];
                for (v, sum) in sums.into_iter().enumerate() {
                    let len = out.len().saturating_sub(v * S::N).min(S::N);
                    if len > 0 {
                        // SAFETY: `len` elements from `v * N` lie within `out`.
                        unsafe { s.store_first(out.as_mut_ptr().add(v * S::N), sum, len) };
                    }
                }
            }
        }
    }
}

/// `M` rows of a panel; row `i` of the left factor has its elements `step` apart.
#[inline(always)]
fn tile<S: Simd, const M: usize>(
    s: S,
    a: [&[f32]; M],
    step: usize,
    b: &[f32],
    k: usize,
) -> [[S::V; VECTORS]; M] {
    assert!(b.len() >= k * VECTORS * S::N);
    a.iter().for_each(|a| assert!(a.len() > (k - 1) * step));
    let mut sums = [[s.zero(); VECTORS]; M];
    for t in 0..k {
        // SAFETY: both lengths were checked above.
        unsafe {
            let row = b.as_ptr().add(t * VECTORS * S::N);
            let right: [S::V; VECTORS] = [s.load(row), s.load(row.add(S::N))];
            for (sums, a) in sums.iter_mut().zip(&a) {
                let left = s.splat(*a.as_ptr().add(t * step));
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum = s.add(*sum, s.mul(left, right));
                }
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::cpu::testing::{Numbers, assert_same, in_threads};

    /// The definition.
    fn plain(a: Left, b: &[f32], [m, k, n]: [usize; 3]) -> Vec<f32> {
        let mut c = vec![0.0f32; m * n];
        for i in 0..m {
            for j in 0..n {
                for t in 0..k {
                    c[i * n + j] += a.data[i * a.row + t * a.column] * b[t * n + j];
                }
            }
        }
        c
    }

    #[test]
    fn products_equal_the_plain_loop_to_the_bit_for_all_shapes_sets_and_threads() {
        let shapes = [
            [1, 1, 1],
            [3, 5, 2],
            [8, 4, 32],
            [9, 70, 33],
            [130, 17, 65],
            [64, 64, 64],
        ];
        for (i, [m, k, n]) in shapes.into_iter().enumerate() {
            let mut numbers = Numbers::new(i as u64);
            let (a, b) = (numbers.vec(m * k, -1.0, 1.0), numbers.vec(k * n, -1.0, 1.0));
            for (row, column) in [(k, 1), (1, m)] {
                let left = Left {
                    data: &a,
                    row,
                    column,
                };
                let want = plain(left, &b, [m, k, n]);
                for isa in Isa::available() {
                    for threads in [1, 2] {
                        let mut c = vec![f32::NAN; m * n];
                        in_threads(threads, || {
                            product(isa, left, &b, [m, k, n], Wanted::All, &mut c);
                        });
                        assert_same(&c, &want, &format!("{isa:?} {m} x {k} x {n}"));
                    }
                }
            }
        }
    }

    #[test]
    fn a_symmetric_product_equals_the_whole_one() {
        for (n, k) in [(1, 3), (9, 40), (65, 30), (200, 70)] {
            let b = Numbers::new(n as u64).vec(k * n, -1.0, 1.0);
            let left = Left {
                data: &b,
                row: 1,
                column: n,
            };
            for isa in Isa::available() {
                let run = |wanted| {
                    let mut c = vec![f32::NAN; n * n];
                    product(isa, left, &b, [n, k, n], wanted, &mut c);
                    c
                };
                assert_same(&run(Wanted::Symmetric), &run(Wanted::All), "product");
            }
        }
    }

    /// Not a test: `cargo test --release --lib ops::cpu::matrix::tests::rate -- --ignored --nocapture`.
    #[test]
    #[ignore = "a measurement"]
    fn rate() {
        for n in [64, 128, 256, 512] {
            let a = Numbers::new(1).vec(n * n, -1.0, 1.0);
            let mut c = vec![0.0; n * n];
            let left = Left {
                data: &a,
                row: n,
                column: 1,
            };
            let mut best = f64::MAX;
            for _ in 0..20 {
                let t = std::time::Instant::now();
                product(Isa::best(), left, &a, [n; 3], Wanted::All, &mut c);
                best = best.min(t.elapsed().as_secs_f64());
            }
            let gflops = 2.0 * (n as f64).powi(3) / best / 1e9;
            println!("{n}: {:.3} ms, {gflops:.1} GFLOP/s", best * 1e3);
        }
    }
}
