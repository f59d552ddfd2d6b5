//! Every operation on a GPU against the CPU's kernels: values and the gradients of all inputs.

use super::testing::device;
use crate::model::init::{hash_name, uniform};
use crate::ops::cpu::lanes::Lanes;
use crate::ops::ranks::Running;
use crate::ops::{self, Activation, ConvNorm, Norm};
use burn::tensor::{DType, Device, Tensor, TensorData};
use std::sync::Arc;

pub(super) fn drawn(name: &str, n: usize) -> Vec<f32> {
    let v = |i| 2.0 * uniform(hash_name(name), i as u64) - 1.0;
    (0..n).map(|i| v(i) as f32).collect()
}

pub(super) fn leaf(name: &str, dims: [usize; 4], device: &Device) -> Tensor<4> {
    let data = TensorData::new(drawn(name, dims.iter().product()), dims);
    Tensor::from_data(data, (&device.clone().autodiff(), DType::F32)).require_grad()
}

pub(super) fn host<const D: usize>(t: Tensor<D>) -> Vec<f32> {
    t.inner().into_data().convert::<f32>().try_to_vec().unwrap()
}

type Op<'a> = &'a dyn Fn(&[Tensor<4>]) -> Tensor<4>;

/// Value and gradients of `sum(f(inputs) * drawn)`.
fn run(name: &str, inputs: &[[usize; 4]], device: &Device, f: Op) -> Vec<Vec<f32>> {
    let leaves: Vec<_> = inputs
        .iter()
        .enumerate()
        .map(|(i, &d)| leaf(&format!("{name} {i}"), d, device))
        .collect();
    let y = f(&leaves);
    let weights = leaf(&format!("{name} cotangent"), y.dims(), device).detach();
    let grads = (y.clone() * weights).sum().backward();
    let mut out = vec![host(y)];
    out.extend(leaves.iter().map(|l| {
        host(
            l.grad(&grads)
                .unwrap_or_else(|| l.clone().inner().zeros_like()),
        )
    }));
    out
}

fn compare(what: &str, got: &[f32], want: &[f32], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    let d = norm(&mut got.iter().zip(want).map(|(a, b)| f64::from(a - b)));
    let n = norm(&mut want.iter().map(|&v| f64::from(v)));
    assert!(
        d <= tolerance * n + 1e-7,
        "{what} differs by {d:.2e} of {n:.2e}"
    );
}

fn check(device: &Device, name: &str, inputs: &[[usize; 4]], f: Op) {
    check_within(device, name, inputs, 2e-5, f);
}

fn check_within(device: &Device, name: &str, inputs: &[[usize; 4]], tolerance: f64, f: Op) {
    let reference = run(name, inputs, &Device::flex(), f);
    let kernels = run(name, inputs, device, f);
    for (i, (a, b)) in kernels.iter().zip(&reference).enumerate() {
        let what = match i {
            0 => "value".into(),
            i => format!("gradient of input {}", i - 1),
        };
        compare(&format!("{name} {inputs:?}: {what}"), a, b, tolerance);
    }
}

pub(super) fn vector(t: &Tensor<4>) -> Tensor<1> {
    let n = t.dims().iter().product::<usize>();
    t.clone().reshape([n])
}

#[test]
fn convolutions_equal_those_of_the_cpu() {
    let Some(device) = device() else { return };
    for (k, stride, groups, ci, co, [n, h, w]) in [
        (1, 1, 1, 5, 7, [5, 7, 9]),
        (1, 1, 1, 32, 48, [2, 8, 5]),
        (1, 2, 1, 6, 4, [3, 7, 9]),
        (3, 1, 1, 3, 16, [2, 9, 20]),
        (3, 1, 1, 17, 9, [5, 6, 6]),
        (3, 2, 1, 3, 16, [1, 7, 9]),
        (3, 2, 1, 16, 24, [2, 8, 6]),
        (3, 1, 1, 24, 70, [3, 5, 5]),
        (3, 1, 1, 128, 160, [1, 3, 3]),
        (5, 1, 1, 4, 6, [1, 7, 9]),
        (1, 1, 1, 8, 8, [2, 40, 40]),
        (1, 1, 1, 8, 8, [0, 4, 4]),
        (3, 1, 1, 128, 160, [0, 3, 3]),
        (3, 1, 2, 8, 6, [2, 5, 4]),
    ] {
        let inputs = [[n, h, w, ci], [k, k, ci / groups, co]];
        check(
            &device,
            &format!("conv k{k} s{stride} g{groups}"),
            &inputs,
            &|t| ops::conv(t[0].clone(), t[1].clone(), stride, groups, &Lanes::USUAL),
        );
    }
}

#[test]
fn depthwise_convolutions_equal_those_of_the_cpu() {
    let Some(device) = device() else { return };
    for (stride, c, [n, h, w]) in [
        (1, 12, [5, 7, 9]),
        (1, 33, [1, 8, 5]),
        (2, 8, [3, 7, 6]),
        (2, 6, [1, 6, 9]),
        (1, 16, [0, 4, 4]),
    ] {
        let inputs = [[n, h, w, c], [3, 3, 1, c]];
        check(&device, &format!("depthwise s{stride}"), &inputs, &|t| {
            ops::conv(t[0].clone(), t[1].clone(), stride, c, &Lanes::USUAL)
        });
    }
}

#[test]
fn biases_equal_those_of_the_cpu() {
    let Some(device) = device() else { return };
    for (n, co) in [(5, 5), (1, 80), (0, 4)] {
        let inputs = [[n, 7, 9, 9], [1, 1, 9, co], [1, 1, 1, co]];
        check(&device, "conv with bias", &inputs, &|t| {
            ops::conv_bias(t[0].clone(), t[1].clone(), vector(&t[2]), &Lanes::USUAL)
        });
    }
}

#[test]
fn batch_norms_equal_those_of_the_cpu() {
    let Some(device) = device() else { return };
    for ([n, h, w], c, act) in [
        ([5, 7, 9], 5, Activation::Silu),
        ([2, 8, 5], 16, Activation::Silu),
        ([1, 40, 33], 6, Activation::Identity),
        ([3, 2, 2], 272, Activation::Silu),
        ([1, 2, 2], 1037, Activation::Silu),
        ([4, 1, 1], 1, Activation::Silu),
    ] {
        let inputs = [[n, h, w, c], [1, 1, 1, c], [1, 1, 1, c]];
        let run = |t: &[Tensor<4>], norm| {
            let (gamma, beta) = (vector(&t[1]), vector(&t[2]));
            ops::norm_act(t[0].clone(), gamma, beta, norm, act, &Lanes::USUAL).0
        };
        check(
            &device,
            &format!("norm {act:?} of the batch"),
            &inputs,
            &|t| {
                let x = t[0].clone() * 3.0 + 1.5;
                run(&[x, t[1].clone(), t[2].clone()], Norm::Batch)
            },
        );
        let fixed = Norm::Fixed((vec![0.25; c], vec![0.5; c]).into());
        check(
            &device,
            &format!("norm {act:?} of fixed statistics"),
            &inputs,
            &|t| run(t, fixed.clone()),
        );
    }
}

#[test]
fn a_norm_of_a_mean_far_from_zero_keeps_its_digits() {
    let Some(device) = device() else { return };
    let inputs = [[2, 30, 30, 8], [1, 1, 1, 8], [1, 1, 1, 8]];
    // the mean itself is rounded to float32, which is 1e-4 of the deviation here
    check_within(&device, "norm far from zero", &inputs, 2e-4, &|t| {
        // representable without rounding on top of the mean
        let x = (t[0].clone() * 64.0).round() / 64.0 + 1000.0;
        let (gamma, beta) = (vector(&t[1]), vector(&t[2]));
        ops::norm_act(x, gamma, beta, Norm::Batch, Activation::Silu, &Lanes::USUAL).0
    });
}

#[test]
fn moves_and_pools_equal_those_of_the_cpu() {
    let Some(device) = device() else { return };
    for ([n, h, w], c) in [
        ([5, 6, 6], 6),
        ([2, 7, 3], 16),
        ([1, 1, 13], 35),
        ([0, 4, 4], 8),
    ] {
        let check = |name: &str, inputs: &[[usize; 4]], f: Op| check(&device, name, inputs, f);
        check("pool", &[[n, h, w, c]], &|t| ops::max_pool5(t[0].clone()));
        check("upsample", &[[n, h, w, c]], &|t| {
            ops::upsample2(t[0].clone())
        });
        check("add", &[[n, h, w, c], [n, h, w, c]], &|t| {
            ops::add(t[0].clone(), t[1].clone())
        });
        check("the same added twice", &[[n, h, w, c]], &|t| {
            ops::add(t[0].clone(), t[0].clone())
        });
        for parts in [2, 3, 4, 6] {
            let inputs: Vec<_> = (0..parts).map(|i| [n, h, w, c + i]).collect();
            check("concat", &inputs, &|t| ops::concat(t.to_vec()));
        }
        check("part and whole", &[[n, h, w, 2 * c]], &|t| {
            // as in the network, what is split is the result of another operation
            let whole = ops::upsample2(t[0].clone());
            let half = ops::part(whole.clone(), c, c);
            ops::concat(vec![whole, half * 2.0])
        });
        check("split", &[[n, h, w, 2 * c]], &|t| {
            ops::add(
                ops::split_channels(t[0].clone(), 0, c),
                ops::split_channels(t[0].clone(), c, c),
            )
        });
        check("join of rows", &[[n, h, w, c], [n, h + 1, w, c]], &|t| {
            ops::join(t.to_vec(), 1)
        });
    }
}

#[test]
fn of_equal_values_the_first_in_row_order_wins() {
    let Some(device) = device() else { return };
    check(&device, "pool of few values", &[[2, 9, 8, 4]], &|t| {
        ops::max_pool5((t[0].clone() * 2.0).round())
    });
    let inputs = |d: &Device| leaf("coarse", [2, 9, 8, 4], d);
    let gradient = |d: &Device| {
        let x = Tensor::<4>::from_inner((inputs(d).inner() * 2.0).round()).require_grad();
        let y = ops::max_pool5(x.clone());
        let weights = leaf("weights", [2, 9, 8, 4], d).detach();
        host(x.grad(&(y * weights).sum().backward()).unwrap())
    };
    compare(
        "winners",
        &gradient(&device),
        &gradient(&Device::flex()),
        1e-6,
    );
}

#[test]
fn attention_equals_that_of_the_cpu() {
    let Some(device) = device() else { return };
    for ([n, h, w], [heads, key, head]) in [
        ([2, 8, 5], [1, 4, 8]),
        ([1, 9, 9], [2, 16, 32]),
        ([3, 1, 13], [3, 5, 7]),
        ([0, 4, 4], [1, 4, 8]),
    ] {
        let channels = heads * (2 * key + head);
        check(&device, "attention", &[[n, h, w, channels]], &|t| {
            let (attended, values) = ops::attend(t[0].clone() * 2.0, heads, key, head);
            ops::add(attended, values * 0.5)
        });
    }
}

#[test]
fn inference_equals_that_of_the_cpu() {
    let Some(device) = device() else { return };
    let (ci, co) = (6, 10);
    let run = |device: &Device, running: Option<Running>| {
        let t = |name: &str, dims: [usize; 4]| leaf(name, dims, device).inner();
        let p = ConvNorm {
            weight: t("w", [3, 3, ci, co]).into(),
            gamma: vector(&t("gamma", [1, 1, 1, co])).into(),
            beta: vector(&t("beta", [1, 1, 1, co])).into(),
            stride: 2,
            groups: 1,
            norm: Norm::Fixed((vec![0.1; co], vec![0.3; co]).into()),
            running,
            act: Activation::Silu,
            lanes: Lanes::USUAL,
        };
        let y = ops::conv_norm_act(t("x", [2, 9, 7, ci]), p).0;
        y.into_data().try_to_vec::<f32>().unwrap()
    };
    let want = run(&Device::flex(), None);
    compare("host's statistics", &run(&device, None), &want, 2e-5);
    let mut flat = vec![0.0f32; 3 + 2 * co];
    flat[3..3 + co].fill(0.1);
    flat[3 + co..].fill(0.3);
    let running = Running {
        flat: Tensor::from_data(flat.as_slice(), (&device, DType::F32)),
        mean: 3,
        var: 3 + co,
        momentum: 0.03,
        rows: Arc::default(),
    };
    compare(
        "device's statistics",
        &run(&device, Some(running)),
        &want,
        2e-5,
    );
}

#[test]
fn running_statistics_move_as_the_caller_moves_them_on_the_cpu() {
    let Some(device) = device() else { return };
    let (c, at) = (6, 5);
    let before: Vec<f32> = drawn("running", at + 2 * c);
    let batch = |device: &Device, running: Option<Running>| {
        let t = |name: &str, dims: [usize; 4]| leaf(name, dims, device).inner();
        let p = ConvNorm {
            weight: t("w", [1, 1, 3, c]).into(),
            gamma: vector(&t("gamma", [1, 1, 1, c])).into(),
            beta: vector(&t("beta", [1, 1, 1, c])).into(),
            stride: 1,
            groups: 1,
            norm: Norm::Batch,
            running,
            act: Activation::Silu,
            lanes: Lanes::USUAL,
        };
        ops::conv_norm_act(t("x", [3, 9, 7, 3]), p).1
    };
    let s = batch(&Device::flex(), None).unwrap();
    let mut want = before.clone();
    let unbias = s.count as f64 / (s.count as f64 - 1.0);
    for i in 0..c {
        let moved = |old: f32, new: f64| (0.9 * f64::from(old) + 0.1 * new) as f32;
        want[at + i] = moved(before[at + i], s.mean[i]);
        want[at + c + i] = moved(before[at + c + i], s.var[i] * unbias);
    }
    let flat: Tensor<1> = Tensor::from_data(before.as_slice(), (&device, DType::F32));
    let running = Running {
        flat: flat.clone(),
        mean: at,
        var: at + c,
        momentum: 0.1,
        rows: Arc::default(),
    };
    assert!(
        batch(&device, Some(running)).is_none(),
        "it stays on the device"
    );
    compare("running statistics", &host(flat), &want, 1e-6);
}

#[test]
fn images_travel_as_bytes_and_are_resized_as_on_the_cpu() {
    let Some(device) = device() else { return };
    for shape in [[2, 5, 7, 3], [1, 8, 8, 3], [0, 4, 4, 3]] {
        let len = shape.iter().product::<usize>();
        let pixels: Vec<u8> = (0..len).map(|i| (i * 37 % 256) as u8).collect();
        for to in [[shape[1], shape[2]], [10, 14], [3, 4], [9, 5]] {
            let run = |d: &Device| host(ops::image(&pixels, shape, to, d, DType::F32));
            let (a, b) = (run(&device), run(&Device::flex()));
            assert_eq!(a.len(), shape[0] * to[0] * to[1] * 3);
            assert!(
                a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-5),
                "{shape:?} {to:?}"
            );
        }
    }
}

#[test]
fn half_precision_is_near_float32() {
    let Some(device) = device() else { return };
    if !device.supports_dtype(DType::F16) {
        eprintln!("skipped: the adapter has no float16");
        return;
    }
    let run = |dtype: DType| {
        let x = leaf("x", [2, 9, 9, 8], &device).inner().cast(dtype);
        let x = Tensor::<4>::from_inner(x).require_grad();
        let w = Tensor::from_inner(leaf("w", [3, 3, 8, 16], &device).inner().cast(dtype));
        let w = w.require_grad();
        let y = ops::conv(x.clone(), w.clone(), 2, 1, &Lanes::USUAL);
        let t = |name| vector(&leaf(name, [1, 1, 1, 16], &device));
        let act = Activation::Silu;
        let (y, _) = ops::norm_act(y, t("gamma"), t("beta"), Norm::Batch, act, &Lanes::USUAL);
        let y = ops::max_pool5(ops::upsample2(y));
        let y = ops::concat(vec![y.clone(), y]);
        assert_eq!(y.dtype(), dtype);
        let weights = leaf("weights", y.dims(), &device).inner().cast(dtype);
        let grads = (y.clone() * Tensor::from_inner(weights)).sum().backward();
        [
            host(y),
            host(x.grad(&grads).unwrap()),
            host(w.grad(&grads).unwrap()),
        ]
    };
    let (half, full) = (run(DType::F16), run(DType::F32));
    for (i, (h, f)) in half.iter().zip(&full).enumerate() {
        compare(&format!("float16 {i}"), h, f, 2e-2);
    }
}
