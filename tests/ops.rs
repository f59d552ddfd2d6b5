//! Every operation as the network calls it, in float32 on the kernels, against its reference in float64: values and the
//! gradients of all inputs, over random shapes.

// programs for GPUs are built without the reference
#![cfg(not(feature = "gpu"))]

#[path = "support/isa.rs"]
mod isa;

use burn::tensor::{DType, Device, Tensor, TensorData};
use yolo_train::model::init::{hash_name, uniform};
use yolo_train::ops::cpu::lanes::Lanes;
use yolo_train::ops::{self, Activation, ConvNorm, Norm};

fn drawn(name: &str, dims: [usize; 4]) -> Vec<f64> {
    let n = dims.iter().product::<usize>();
    // rounded to float32, so that both see the same numbers
    (0..n)
        .map(|i| f64::from((2.0 * uniform(hash_name(name), i as u64) - 1.0) as f32))
        .collect()
}

fn leaf(name: &str, dims: [usize; 4], dtype: DType) -> Tensor<4> {
    let data = TensorData::new(drawn(name, dims), dims).convert_dtype(dtype);
    Tensor::from_data(data, (&Device::flex().autodiff(), dtype)).require_grad()
}

fn host(t: Tensor<4>) -> Vec<f64> {
    t.inner().into_data().convert::<f64>().try_to_vec().unwrap()
}

/// Value and gradients of `sum(f(inputs) * drawn)`.
fn run(
    name: &str,
    inputs: &[[usize; 4]],
    dtype: DType,
    f: &dyn Fn(&[Tensor<4>]) -> Tensor<4>,
) -> Vec<Vec<f64>> {
    let leaves: Vec<_> = inputs
        .iter()
        .enumerate()
        .map(|(i, &d)| leaf(&format!("{name} {i}"), d, dtype))
        .collect();
    let y = f(&leaves);
    let weights = leaf(&format!("{name} cotangent"), y.dims(), dtype).detach();
    let grads = (y.clone() * weights).sum().backward();
    let mut out = vec![host(y)];
    out.extend(
        leaves
            .iter()
            .map(|l| host(l.grad(&grads).unwrap_or_else(|| l.zeros_like()))),
    );
    out
}

fn check(name: &str, inputs: &[[usize; 4]], f: impl Fn(&[Tensor<4>]) -> Tensor<4>) {
    let reference = run(name, inputs, DType::F64, &f);
    let kernels = run(name, inputs, DType::F32, &f);
    for (i, (a, b)) in kernels.iter().zip(&reference).enumerate() {
        let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
        let d = norm(&mut a.iter().zip(b).map(|(a, b)| a - b));
        let n = norm(&mut b.iter().copied());
        let what = if i == 0 {
            "value".into()
        } else {
            format!("gradient of input {}", i - 1)
        };
        assert!(
            d <= 2e-5 * n + 1e-9,
            "{name} {inputs:?}: {what} differs by {d:.2e} of {n:.2e}"
        );
        assert!(
            n > 0.0,
            "{name} {inputs:?}: {what} is zero, nothing was compared"
        );
    }
}

fn vector(t: &Tensor<4>) -> Tensor<1> {
    let n = t.dims().iter().product::<usize>();
    t.clone().reshape([n])
}

/// Sizes with odd ones, one image, more images than lanes.
const SIZES: [[usize; 3]; 4] = [[1, 7, 9], [2, 8, 5], [5, 6, 6], [3, 1, 13]];

#[test]
fn convolutions_equal_their_float64_reference() {
    for [n, h, w] in SIZES {
        for (k, stride, groups, ci, co) in [
            (1, 1, 1, 5, 7),
            (1, 1, 1, 32, 48),
            (1, 2, 1, 6, 4),
            (3, 1, 1, 3, 16),
            (3, 1, 1, 17, 9),
            (3, 2, 1, 3, 16),
            (3, 2, 1, 16, 24),
            (5, 1, 1, 4, 6),
            (3, 1, 12, 12, 12),
            (3, 1, 33, 33, 33),
            (3, 2, 8, 8, 8),
            (3, 1, 2, 8, 6),
        ] {
            let inputs = [[n, h, w, ci], [k, k, ci / groups, co]];
            check(&format!("conv k{k} s{stride} g{groups}"), &inputs, |t| {
                ops::conv(t[0].clone(), t[1].clone(), stride, groups, &Lanes::USUAL)
            });
        }
        check(
            "conv with bias",
            &[[n, h, w, 9], [1, 1, 9, 5], [1, 1, 1, 5]],
            |t| ops::conv_bias(t[0].clone(), t[1].clone(), vector(&t[2]), &Lanes::USUAL),
        );
    }
}

#[test]
fn batch_norms_equal_their_float64_reference() {
    for [n, h, w] in SIZES {
        for c in [1, 5, 16, 37] {
            for act in [Activation::Silu, Activation::Identity] {
                let inputs = [[n, h, w, c], [1, 1, 1, c], [1, 1, 1, c]];
                check(&format!("norm {act:?} of the batch"), &inputs, |t| {
                    ops::norm_act(
                        t[0].clone() * 3.0 + 1.5,
                        vector(&t[1]),
                        vector(&t[2]),
                        Norm::Batch,
                        act,
                        &Lanes::USUAL,
                    )
                    .0
                });
                let fixed = Norm::Fixed((vec![0.25; c], vec![0.5; c]).into());
                check(&format!("norm {act:?} of fixed statistics"), &inputs, |t| {
                    ops::norm_act(
                        t[0].clone(),
                        vector(&t[1]),
                        vector(&t[2]),
                        fixed.clone(),
                        act,
                        &Lanes::USUAL,
                    )
                    .0
                });
            }
        }
    }
}

#[test]
fn folded_inference_equals_convolution_and_norm_in_float64() {
    for (k, stride, groups, ci, co) in [(1, 1, 1, 6, 10), (3, 2, 1, 3, 16), (3, 1, 12, 12, 12)] {
        let run = |dtype: DType| {
            let device = Device::flex();
            let t = |name: &str, dims: [usize; 4]| {
                Tensor::<4>::from_data(
                    TensorData::new(drawn(name, dims), dims).convert_dtype(dtype),
                    (&device, dtype),
                )
            };
            let p = ConvNorm {
                weight: t("w", [k, k, ci / groups, co]).into(),
                gamma: vector(&t("gamma", [1, 1, 1, co])).into(),
                beta: vector(&t("beta", [1, 1, 1, co])).into(),
                stride,
                groups,
                norm: Norm::Fixed((vec![0.1; co], vec![0.3; co]).into()),
                running: None,
                act: Activation::Silu,
                lanes: Lanes::USUAL,
            };
            host(ops::conv_norm_act(t("x", [2, 9, 7, ci]), p).0)
        };
        for (a, b) in run(DType::F32).iter().zip(run(DType::F64)) {
            assert!(
                (a - b).abs() < 2e-5 * b.abs().max(0.1),
                "k{k} s{stride} g{groups}: {a} against {b}"
            );
        }
    }
}

#[test]
fn moves_and_pools_equal_their_float64_reference() {
    for [n, h, w] in SIZES {
        for c in [1, 6, 16, 35] {
            check("pool", &[[n, h, w, c]], |t| ops::max_pool5(t[0].clone()));
            check("upsample", &[[n, h, w, c]], |t| {
                ops::upsample2(t[0].clone())
            });
            check("add", &[[n, h, w, c], [n, h, w, c]], |t| {
                ops::add(t[0].clone(), t[1].clone())
            });
            check("the same added twice", &[[n, h, w, c]], |t| {
                ops::add(t[0].clone(), t[0].clone())
            });
            for parts in 2..=7 {
                let inputs: Vec<_> = (0..parts).map(|i| [n, h, w, c + i]).collect();
                check("concat", &inputs, |t| ops::concat(t.to_vec()));
            }
            check("part and whole", &[[n, h, w, 2 * c]], |t| {
                // as in the network, what is split is the result of another operation
                let whole = ops::upsample2(t[0].clone());
                let half = ops::part(whole.clone(), c, c);
                ops::concat(vec![whole, half * 2.0])
            });
            check("split", &[[n, h, w, 2 * c]], |t| {
                ops::add(
                    ops::split_channels(t[0].clone(), 0, c),
                    ops::split_channels(t[0].clone(), c, c),
                )
            });
        }
    }
}

#[test]
fn attention_equals_its_float64_reference() {
    for [n, h, w] in SIZES {
        for (heads, key, head) in [(1, 4, 8), (2, 16, 32), (3, 5, 7)] {
            let channels = heads * (2 * key + head);
            check("attention", &[[n, h, w, channels]], |t| {
                let (attended, values) = ops::attend(t[0].clone() * 2.0, heads, key, head);
                ops::add(attended, values * 0.5)
            });
        }
    }
}

#[test]
fn the_same_holds_under_every_instruction_set() {
    isa::under_every_other_isa("float64");
}
