//! What is handed to cuDNN, over the stand-in of `tests/fake-cuda`, which computes convolutions where "device" memory is the
//! host's. Kernels do nothing there, so weights are put into cuDNN's order here.

use super::{DeviceHandle, Op, Server, Sizes, StreamId, T, run};
use crate::ops::cpu::lanes::Lanes;
use crate::ops::extension::{ConvArgs, Record};
use crate::ops::gpu::cudnn_stream::stream_of;
use crate::ops::gpu::{flat, library, precision};
use burn::tensor::{DType, Device};
use std::path::Path;
use std::process::Command;

#[path = "../../../tests/support/fake.rs"]
mod fake;

#[test]
fn convolutions_over_a_stand_in_of_cudnn_are_those_of_plain_loops() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    if !here.join("tests/fake-cuda").exists() {
        println!("skipped: the stand-in's source is not on this machine");
        return;
    }
    let machine = fake::Machine::whole();
    let mut command = Command::new(std::env::current_exe().unwrap());
    machine.apply(&mut command);
    let worker = concat!(module_path!(), "::worker_convolves");
    let worker = worker.split_once("::").unwrap().1;
    let out = command
        .args(["--exact", worker, "--ignored", "--nocapture"])
        .env("YOLO_TRAIN_FAKE_CUDNN", "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(
        out.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&out.stderr)
    );
}

fn drawn(seed: usize, len: usize) -> Vec<f32> {
    // few digits: products and sums are exact in bfloat16's inputs and float32's sums
    let value = |i: usize| ((seed * 7919 + i * 104_729 + 13) % 31) as f32 / 8.0 - 2.0;
    (0..len).map(value).collect()
}

/// Sums of products over `x` `[n, h, w, ci]`, `w` `[co, k, k, ci]`, `y` `[n, oh, ow, co]`.
fn plain(op: Op, s: &Sizes, [x, w, y]: [&[f32]; 3]) -> Vec<f32> {
    let (oh, ow) = (s.out_h(), s.out_w());
    let len = match op {
        Op::Forward | Op::Biased => s.n * oh * ow * s.co,
        Op::Data => s.n * s.h * s.w * s.ci,
        Op::Weight => s.weights(),
    };
    let mut out = vec![0.0; len];
    for n in 0..s.n {
        for (r, c) in (0..oh).flat_map(|r| (0..ow).map(move |c| (r, c))) {
            for (a, b) in (0..s.k).flat_map(|a| (0..s.k).map(move |b| (a, b))) {
                let (i, j) = (r * s.stride + a, c * s.stride + b);
                if i < s.pad() || j < s.pad() || i - s.pad() >= s.h || j - s.pad() >= s.w {
                    continue;
                }
                let (i, j) = (i - s.pad(), j - s.pad());
                for (to, from) in (0..s.co).flat_map(|t| (0..s.ci).map(move |f| (t, f))) {
                    let at_x = ((n * s.h + i) * s.w + j) * s.ci + from;
                    let at_w = ((to * s.k + a) * s.k + b) * s.ci + from;
                    let at_y = ((n * oh + r) * ow + c) * s.co + to;
                    match op {
                        Op::Forward | Op::Biased => out[at_y] += x[at_x] * w[at_w],
                        Op::Data => out[at_x] += y[at_y] * w[at_w],
                        Op::Weight => out[at_w] += x[at_x] * y[at_y],
                    }
                }
            }
        }
    }
    out
}

fn host(t: &T) -> Vec<f32> {
    match t.dtype {
        DType::BF16 => {
            let bits: Vec<u16> = flat::download(t).unwrap();
            let wide = |b: u16| f32::from_bits(u32::from(b) << 16);
            bits.into_iter().map(wide).collect()
        }
        _ => flat::download(t).unwrap(),
    }
}

#[test]
#[ignore = "run by the test above, in a process of its own"]
fn worker_convolves() {
    if std::env::var_os("YOLO_TRAIN_FAKE_CUDNN").is_none() {
        println!("skipped: run by another test, in a process of its own");
        return;
    }
    assert!(super::is_present());
    let device = flat::cube_device(&Device::cuda(0)).unwrap();
    let put = |values: &[f32], shape: [usize; 4], dtype: DType| match dtype {
        DType::BF16 => {
            let bits: Vec<u16> = values.iter().map(|v| (v.to_bits() >> 16) as u16).collect();
            flat::upload(&device, &bits, shape, dtype)
        }
        _ => flat::upload(&device, values, shape, dtype),
    };
    let sizes = |n, [h, w]: [usize; 2], [ci, co]: [usize; 2], k, stride| Sizes {
        n,
        h,
        w,
        ci,
        co,
        k,
        stride,
        groups: 1,
    };
    let close = |got: &[f32], want: &[f32], dtype: DType, what: &str| {
        assert_eq!(got.len(), want.len(), "{what}");
        let bound = if dtype == DType::BF16 {
            1.0 / 128.0
        } else {
            1e-6
        };
        for (g, w) in got.iter().zip(want) {
            assert!((g - w).abs() <= bound * w.abs().max(1.0), "{what}: {g} {w}");
        }
    };
    for (round, s) in [
        sizes(3, [9, 7], [5, 6], 3, 1),
        sizes(2, [8, 8], [4, 3], 1, 1),
        sizes(2, [9, 6], [3, 8], 3, 2),
        // a known shape again: nothing is measured a second time
        sizes(3, [9, 7], [5, 6], 3, 1),
    ]
    .into_iter()
    .enumerate()
    {
        let [x, w, y] = [
            drawn(round, s.n * s.h * s.w * s.ci),
            drawn(10 + round, s.weights()),
            drawn(20 + round, s.n * s.out_h() * s.out_w() * s.co),
        ];
        let shapes = [[s.n, s.h, s.w, s.ci], [s.co, s.k, s.k, s.ci], s.y_shape()];
        for (dtype, tf32) in [
            (DType::F32, false),
            (DType::F32, true),
            (DType::BF16, false),
        ] {
            precision::set_tf32(tf32);
            for op in [Op::Forward, Op::Data, Op::Weight] {
                let on = [&x, &w, &y].map(|v| v.as_slice());
                let [a, b, c] = [0, 1, 2].map(|i| put(on[i], shapes[i], dtype));
                assert!(run(op, [&a, &b, &c], None, &s), "{op:?} {s:?} {dtype:?}");
                let result = match op {
                    Op::Forward | Op::Biased => &c,
                    Op::Data => &a,
                    Op::Weight => &b,
                };
                let what = format!("{op:?} {s:?} {dtype:?} tf32 {tf32}");
                close(&host(result), &plain(op, &s, on), dtype, &what);
            }
        }
    }
    precision::set_tf32(false);
    // with a bias: forward, and its sum
    let s = sizes(2, [5, 4], [6, 3], 1, 1);
    let (x, w) = (drawn(4, 2 * 5 * 4 * 6), drawn(5, s.weights()));
    let bias = [0.5, -2.0, 8.0];
    let mut want = plain(Op::Biased, &s, [&x, &w, &[]]);
    for pixel in want.chunks_exact_mut(3) {
        pixel.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
    }
    for dtype in [DType::F32, DType::BF16] {
        let (x, w) = (put(&x, [2, 5, 4, 6], dtype), put(&w, [3, 1, 1, 6], dtype));
        let (y, b) = (
            flat::empty(&device, s.y_shape(), dtype),
            put(&bias, [1, 1, 1, 3], dtype),
        );
        for _ in 0..2 {
            assert!(run(Op::Biased, [&x, &w, &y], Some(&b), &s));
            close(&host(&y), &want, dtype, "bias");
        }
    }
    // what it refuses is left to the kernels, and asked once
    let s = sizes(1, [4, 4], [2, 2], 1, 1);
    for _ in 0..2 {
        let [x, w, y] = [[1, 4, 4, 2], [2, 1, 1, 2], [1, 4, 4, 2]]
            .map(|shape| flat::empty(&device, shape, DType::F16));
        assert!(
            !run(Op::Forward, [&x, &w, &y], None, &s),
            "float16 is refused"
        );
    }
    // calls go to the runtime's own stream, which its server shows
    let x = flat::empty(&device, [1], DType::F32);
    let handle = DeviceHandle::<Server>::new(x.client.service_id().device);
    let shown = |server: &mut Server| stream_of(server, StreamId::current()).is_some();
    assert!(handle.submit_blocking(shown).unwrap());
    // fixed algorithms, lane by lane, of which one is empty: each call's images lie where they belong
    precision::set_deterministic(true);
    let s = sizes(3, [6, 5], [4, 7], 3, 1);
    let (x, w) = (drawn(1, 3 * 6 * 5 * 4), drawn(2, s.weights()));
    let want = plain(Op::Forward, &s, [&x, &w, &[]]);
    let x = put(&x, [3, 6, 5, 4], DType::F32);
    let of_cudnn = put(&w, [7, 3, 3, 4], DType::F32);
    let a = ConvArgs {
        stride: 1,
        groups: 1,
        lanes: Lanes::whole(4),
        slot: None,
        filters: Record::new(),
    };
    a.filters.keep(vec![of_cudnn.clone()]);
    let bias = put(&[1.5; 7], [1, 1, 1, 7], DType::F32);
    for (bias, more) in [(None, 0.0), (Some(&bias), 1.5)] {
        let y = library::forward(&x, &of_cudnn, bias, &s, &a).expect("nothing is refused");
        let want: Vec<f32> = want.iter().map(|v| v + more).collect();
        close(&host(&y), &want, DType::F32, "lanes");
    }
}
