//! Muon (Jordan et al. 2024): the momentum of a weight matrix is replaced by a matrix with the same singular vectors and
//! singular values near 1, by five steps of a Newton-Schulz iteration.
//!
//! With `A_i = X_i X_i'` (the smaller side) a step is `X_(i+1) = P_i X_i`, `P_i = a + b A_i + c A_i^2`, and therefore
//! `A_(i+1) = P_i A_i P_i`: only small symmetric matrices are iterated, and `X_5 = (P_4 ... P_0) X_0` is one product at the
//! end. In float32, each product summed in a fixed order: the same bytes on every machine and with any number of threads.

use crate::model::ParamKind;
use crate::model::layout::ParamInfo;
use crate::ops::cpu::isa::Isa;
use crate::ops::cpu::matrix::{Left, Wanted, product};

/// Part of the rate that Muon's update has, and that of the SGD update which follows on the same parameter.
pub const MUON_RATE: f64 = 0.2;
/// Factor of the rates of class branches.
pub const CLASS_BOOST: f64 = 3.0;

const STEPS: usize = 5;
/// Coefficients of a step: they lift small singular values as fast as can be, to within about 0.3 of 1.
const A: f32 = 3.4445;
const B: f32 = -4.775;
const C: f32 = 2.0315;
/// Added to the norm that the matrix is divided by.
const NORM_EPS: f64 = 1e-7;
/// Sums of squares that run side by side.
const SUMS: usize = 16;

/// Whether Muon moves a parameter: weights of convolutions, not vectors.
pub(super) fn applies(p: &ParamInfo) -> bool {
    p.kind == ParamKind::Weight && p.shape.len() > 1
}

/// A weight as a matrix: `[kernel height x kernel width x input channels, output channels]` in memory, which is the
/// `[out, in x k x k]` of checkpoints turned over; the update commutes with turning and with the order of rows.
pub(super) fn matrix(p: &ParamInfo) -> [usize; 2] {
    let outputs = p.shape.last().copied().unwrap_or(1);
    [p.len() / outputs.max(1), outputs]
}

/// How products are computed.
pub(super) trait Products {
    /// As [`product`].
    fn product(&self, a: Left, b: &[f32], size: [usize; 3], wanted: Wanted, c: &mut [f32]);
}

impl Products for Isa {
    fn product(&self, a: Left, b: &[f32], size: [usize; 3], wanted: Wanted, c: &mut [f32]) {
        product(*self, a, b, size, wanted, c);
    }
}

/// The plain loop: the reference.
pub(super) struct Plain;

impl Products for Plain {
    fn product(&self, a: Left, b: &[f32], [m, k, n]: [usize; 3], wanted: Wanted, c: &mut [f32]) {
        c.fill(0.0);
        let symmetric = wanted == Wanted::Symmetric;
        for i in 0..m {
            let c = &mut c[i * n..(i + 1) * n];
            for t in 0..k {
                let left = a.data[i * a.row + t * a.column];
                for (c, b) in c.iter_mut().zip(&b[t * n..(t + 1) * n]) {
                    *c += left * b;
                }
            }
        }
        for i in 0..if symmetric { n } else { 0 } {
            for j in 0..i {
                c[i * n + j] = c[j * n + i];
            }
        }
    }
}

fn rows(data: &[f32], n: usize) -> Left<'_> {
    Left {
        data,
        row: n,
        column: 1,
    }
}

/// Frobenius norm, in a fixed order.
fn norm(x: &[f32]) -> f64 {
    let mut sums = [0.0f64; SUMS];
    for part in x.chunks(SUMS) {
        for (s, v) in sums.iter_mut().zip(part) {
            *s += f64::from(*v) * f64::from(*v);
        }
    }
    sums.iter().sum::<f64>().sqrt()
}

/// Replaces `x`, a matrix `[m, n]` row by row, by its approximately orthogonal factor.
pub(super) fn orthogonalise(products: &impl Products, x: &mut [f32], [m, n]: [usize; 2]) {
    let scale = (1.0 / (norm(x) + NORM_EPS)) as f32;
    x.iter_mut().for_each(|v| *v *= scale);
    let s = m.min(n);
    let mut gram = vec![0.0; s * s];
    if n <= m {
        // X' X
        let left = Left {
            data: x,
            row: 1,
            column: n,
        };
        products.product(left, x, [n, m, n], Wanted::Symmetric, &mut gram);
    } else {
        let mut turned = vec![0.0; x.len()];
        for (i, row) in x.chunks_exact(n).enumerate() {
            for (j, v) in row.iter().enumerate() {
                turned[j * m + i] = *v;
            }
        }
        products.product(rows(x, n), &turned, [m, n, m], Wanted::Symmetric, &mut gram);
    }
    let factor = factor(products, gram, s);
    let mut out = vec![0.0; x.len()];
    if n <= m {
        products.product(rows(x, n), &factor, [m, n, n], Wanted::All, &mut out);
    } else {
        products.product(rows(&factor, m), x, [m, m, n], Wanted::All, &mut out);
    }
    x.copy_from_slice(&out);
}

/// `P_4 P_3 P_2 P_1 P_0` for `A_0 = gram` `[s, s]`.
fn factor(products: &impl Products, mut gram: Vec<f32>, s: usize) -> Vec<f32> {
    let size = [s; 3];
    let times = |a: &[f32], b: &[f32], c: &mut [f32]| {
        products.product(rows(a, s), b, size, Wanted::Symmetric, c);
    };
    let (mut square, mut spare) = (vec![0.0; s * s], vec![0.0; s * s]);
    let mut all: Vec<f32> = vec![];
    for step in 0..STEPS {
        times(&gram, &gram, &mut square);
        // P in the place of A^2
        for (p, a) in square.iter_mut().zip(&gram) {
            *p = B * a + C * *p;
        }
        square.iter_mut().step_by(s + 1).for_each(|p| *p += A);
        if step == 0 {
            all.clone_from(&square);
        } else {
            times(&square, &all, &mut spare);
            std::mem::swap(&mut all, &mut spare);
        }
        if step + 1 < STEPS {
            times(&square, &gram, &mut spare);
            times(&spare, &square, &mut gram);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::cpu::testing::{Numbers, assert_same, in_threads};

    const SHAPES: [[usize; 2]; 8] = [
        [27, 16],
        [9, 64],
        [144, 32],
        [64, 128],
        [1, 5],
        [16, 1],
        [100, 100],
        [288, 24],
    ];

    /// `a b` for `a` `[m, k]`, `b` `[k, n]`, in float64.
    fn times(a: &[f64], b: &[f64], [m, k, n]: [usize; 3]) -> Vec<f64> {
        let mut c = vec![0.0; m * n];
        for i in 0..m {
            for t in 0..k {
                for j in 0..n {
                    c[i * n + j] += a[i * k + t] * b[t * n + j];
                }
            }
        }
        c
    }

    fn turned(a: &[f64], m: usize, n: usize) -> Vec<f64> {
        (0..n * m).map(|i| a[i % m * n + i / m]).collect()
    }

    /// The iteration as it is published: X <- a X + (b A + c A^2) X with A = X X', in float64, for m <= n.
    fn textbook(x: &[f32], [m, n]: [usize; 2]) -> Vec<f64> {
        let mut x: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
        if m > n {
            let y: Vec<f32> = turned(&x, m, n).into_iter().map(|v| v as f32).collect();
            return turned(&textbook(&y, [n, m]), n, m);
        }
        let norm = x.iter().map(|v| v * v).sum::<f64>().sqrt() + 1e-7;
        x.iter_mut().for_each(|v| *v /= norm);
        for _ in 0..5 {
            let a = times(&x, &turned(&x, m, n), [m, n, m]);
            let a2 = times(&a, &a, [m; 3]);
            let b: Vec<f64> = a
                .iter()
                .zip(&a2)
                .map(|(a, a2)| -4.7750 * a + 2.0315 * a2)
                .collect();
            let y = times(&b, &x, [m, m, n]);
            x = x.iter().zip(&y).map(|(x, y)| 3.4445 * x + y).collect();
        }
        x
    }

    /// Eigenvalues of a symmetric matrix by Jacobi's rotations.
    fn eigenvalues(mut a: Vec<f64>, n: usize) -> Vec<f64> {
        for _ in 0..60 {
            for p in 0..n {
                for q in p + 1..n {
                    if a[p * n + q].abs() < 1e-15 {
                        continue;
                    }
                    let theta = (a[q * n + q] - a[p * n + p]) / (2.0 * a[p * n + q]);
                    let t = theta.signum() / (theta.abs() + (theta * theta + 1.0).sqrt());
                    let c = 1.0 / (t * t + 1.0).sqrt();
                    let s = t * c;
                    for k in 0..n {
                        let (x, y) = (a[k * n + p], a[k * n + q]);
                        (a[k * n + p], a[k * n + q]) = (c * x - s * y, s * x + c * y);
                    }
                    for k in 0..n {
                        let (x, y) = (a[p * n + k], a[q * n + k]);
                        (a[p * n + k], a[q * n + k]) = (c * x - s * y, s * x + c * y);
                    }
                }
            }
        }
        (0..n).map(|i| a[i * n + i]).collect()
    }

    #[test]
    fn the_update_equals_the_published_iteration_in_float64() {
        for (i, size) in SHAPES.into_iter().enumerate() {
            let x = Numbers::new(i as u64).vec(size[0] * size[1], -1.0, 1.0);
            let want = textbook(&x, size);
            let mut got = x.clone();
            orthogonalise(&Plain, &mut got, size);
            let error: f64 = got
                .iter()
                .zip(&want)
                .map(|(g, w)| (f64::from(*g) - w).powi(2))
                .sum();
            let all: f64 = want.iter().map(|w| w * w).sum();
            let error = (error / all).sqrt();
            assert!(error < 2e-3, "{size:?}: {error:e}");
        }
    }

    #[test]
    fn singular_values_are_near_one_and_directions_are_kept() {
        for (i, [m, n]) in [[27, 16], [9, 64], [144, 32], [32, 96]]
            .into_iter()
            .enumerate()
        {
            let x = Numbers::new(i as u64).vec(m * n, -1.0, 1.0);
            let mut o = x.clone();
            orthogonalise(&Isa::best(), &mut o, [m, n]);
            let wide: Vec<f64> = o.iter().map(|&v| f64::from(v)).collect();
            let (s, gram) = if m <= n {
                (m, times(&wide, &turned(&wide, m, n), [m, n, m]))
            } else {
                (n, times(&turned(&wide, m, n), &wide, [n, m, n]))
            };
            for v in eigenvalues(gram, s) {
                let v = v.sqrt();
                assert!((0.6..1.3).contains(&v), "{m} x {n}: singular value {v}");
            }
            let along: f64 = x.iter().zip(&wide).map(|(x, o)| f64::from(*x) * o).sum();
            assert!(along > 0.0, "the update points along the momentum");
        }
    }

    #[test]
    fn the_kernels_give_the_bytes_of_the_plain_loops() {
        for (i, size) in SHAPES.into_iter().enumerate() {
            let x = Numbers::new(7 + i as u64).vec(size[0] * size[1], -1e-3, 1e-3);
            let mut want = x.clone();
            orthogonalise(&Plain, &mut want, size);
            for isa in Isa::available() {
                for threads in [1, 2] {
                    let mut got = x.clone();
                    in_threads(threads, || orthogonalise(&isa, &mut got, size));
                    assert_same(&got, &want, &format!("{isa:?} {size:?}"));
                }
            }
        }
    }

    #[test]
    fn nothing_moves_without_a_gradient_and_matrices_of_low_rank_stay_finite() {
        let mut zero = vec![0.0; 32];
        orthogonalise(&Plain, &mut zero, [4, 8]);
        assert!(zero.iter().all(|&v| v == 0.0));
        // rank one: u v' becomes u v' / |u v'| times something near 1
        let mut one: Vec<f32> = (0..64 * 64).map(|i| ((i / 64) * (i % 64)) as f32).collect();
        orthogonalise(&Plain, &mut one, [64, 64]);
        let norm = norm(&one);
        assert!((0.6..1.3).contains(&norm), "{norm}");
    }
}
