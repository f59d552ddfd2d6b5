use super::*;
use crate::ops::cpu::testing::{Numbers, assert_close, assert_same, in_threads};

/// Attended values, values and the gradient with respect to `qkv`, in float64.
fn reference(qkv: &[f32], s: Shape, d_out: &[f32], d_values: Option<&[f32]>) -> [Vec<f64>; 3] {
    let (n, c, w) = (s.positions, s.channels(), s.width());
    let mut out = vec![0.0; s.images * n * w];
    let mut values = out.clone();
    let mut d = vec![0.0; qkv.len()];
    let scale = 1.0 / (s.key as f64).sqrt();
    for image in 0..s.images {
        for h in 0..s.heads {
            let [q, k, v] = s.of_head(h);
            let x = |p: usize, i: usize| f64::from(qkv[(image * n + p) * c + i]);
            let at = |p: usize, i: usize| (image * n + p) * w + h * s.head + i;
            for i in 0..n {
                let logits: Vec<f64> = (0..n)
                    .map(|j| (0..s.key).map(|e| x(i, q + e) * x(j, k + e)).sum::<f64>() * scale)
                    .collect();
                let max = logits.iter().copied().fold(f64::MIN, f64::max);
                let exps: Vec<f64> = logits.iter().map(|l| (l - max).exp()).collect();
                let sum: f64 = exps.iter().sum();
                let weights: Vec<f64> = exps.iter().map(|e| e / sum).collect();
                for e in 0..s.head {
                    out[at(i, e)] = (0..n).map(|j| weights[j] * x(j, v + e)).sum();
                    values[at(i, e)] = x(i, v + e);
                }
                let g = |e: usize| f64::from(d_out[at(i, e)]);
                let dw: Vec<f64> = (0..n)
                    .map(|j| (0..s.head).map(|e| g(e) * x(j, v + e)).sum())
                    .collect();
                let mean: f64 = dw.iter().zip(&weights).map(|(a, b)| a * b).sum();
                for j in 0..n {
                    let slope = weights[j] * (dw[j] - mean) * scale;
                    for e in 0..s.key {
                        d[(image * n + i) * c + q + e] += slope * x(j, k + e);
                        d[(image * n + j) * c + k + e] += slope * x(i, q + e);
                    }
                    for e in 0..s.head {
                        d[(image * n + j) * c + v + e] += weights[j] * g(e);
                    }
                }
                if let Some(dv) = d_values {
                    for e in 0..s.head {
                        d[(image * n + i) * c + v + e] += f64::from(dv[at(i, e)]);
                    }
                }
            }
        }
    }
    [out, values, d]
}

const SHAPES: [[usize; 5]; 8] = [
    [1, 1, 1, 1, 1],
    [2, 7, 1, 4, 8],
    [1, 49, 2, 32, 64],
    [2, 100, 2, 32, 64],
    [1, 97, 3, 5, 9],
    [1, 33, 1, 16, 17],
    [3, 48, 1, 32, 48],
    [1, 225, 1, 32, 64],
];

fn shape([images, positions, heads, key, head]: [usize; 5]) -> Shape {
    Shape {
        images,
        positions,
        heads,
        key,
        head,
    }
}

fn run(isa: Isa, s: Shape, qkv: &[f32], d_out: &[f32], d_values: Option<&[f32]>) -> [Vec<f32>; 3] {
    let (mut out, mut values) = (vec![f32::NAN; d_out.len()], vec![f32::NAN; d_out.len()]);
    let sums = attend(isa, qkv, s, &mut out, &mut values);
    let mut d = vec![f32::NAN; qkv.len()];
    attend_gradient(isa, qkv, &sums, d_out, d_values, s, &mut d);
    [out, values, d]
}

#[test]
fn forward_and_gradient_equal_float64_on_every_instruction_set() {
    for isa in Isa::available() {
        for sizes in SHAPES {
            let s = shape(sizes);
            let mut numbers = Numbers::new(s.positions as u64);
            let qkv = numbers.vec(s.images * s.image().0, -2.0, 2.0);
            let d_out = numbers.vec(s.images * s.image().1, -1.0, 1.0);
            let d_values = numbers.vec(d_out.len(), -1.0, 1.0);
            for dv in [None, Some(&d_values[..])] {
                let want = reference(&qkv, s, &d_out, dv);
                let got = run(isa, s, &qkv, &d_out, dv);
                for (i, what) in ["attended", "values", "gradient"].iter().enumerate() {
                    assert_close(
                        &got[i],
                        &want[i],
                        2e-5,
                        &format!("{what} {isa:?} {sizes:?}"),
                    );
                }
            }
        }
    }
}

#[test]
fn large_logits_do_not_overflow() {
    let s = shape([1, 20, 1, 8, 8]);
    let mut numbers = Numbers::new(2);
    let qkv = numbers.vec(s.image().0, -40.0, 40.0);
    let d_out = numbers.vec(s.image().1, -1.0, 1.0);
    let want = reference(&qkv, s, &d_out, None);
    for isa in Isa::available() {
        let got = run(isa, s, &qkv, &d_out, None);
        assert_close(&got[0], &want[0], 1e-3, "attended");
        assert!(got[2].iter().all(|v| v.is_finite()));
    }
}

#[test]
fn threads_and_batch_change_no_byte() {
    for isa in Isa::available() {
        let s = shape([3, 101, 2, 32, 64]);
        let mut numbers = Numbers::new(6);
        let qkv = numbers.vec(s.images * s.image().0, -2.0, 2.0);
        let d_out = numbers.vec(s.images * s.image().1, -1.0, 1.0);
        let all = in_threads(1, || run(isa, s, &qkv, &d_out, Some(&d_out)));
        assert!(all == in_threads(2, || run(isa, s, &qkv, &d_out, Some(&d_out))));
        let one = Shape { images: 1, ..s };
        let (i, o) = s.image();
        for n in 0..s.images {
            let g = &d_out[n * o..(n + 1) * o];
            let alone = run(isa, one, &qkv[n * i..(n + 1) * i], g, Some(g));
            assert_same(&alone[0], &all[0][n * o..(n + 1) * o], "attended alone");
            assert_same(&alone[2], &all[2][n * i..(n + 1) * i], "gradient alone");
        }
    }
}
