//! Times of the element-wise kernels at yolo26n's shapes (640 pixels, batch 4), on every instruction set:
//! `cargo run --release --example elementwise`, with `RAYON_NUM_THREADS` threads.

use std::time::Instant;
use yolo_train::ops::Activation;
use yolo_train::ops::cpu::attention::{Shape, attend, attend_gradient};
use yolo_train::ops::cpu::isa::Isa;
use yolo_train::ops::cpu::norm::{
    Affine, GradientSums, Moments, gradient_sums_in_place, input_gradient, moments, normalise, tree,
};
use yolo_train::ops::cpu::pool::{Grid, max_pool5, max_pool5_gradient};
use yolo_train::ops::cpu::shape::{
    add_to_channels, concat, slice_channels, upsample2, upsample2_gradient,
};

const IMAGES: usize = 4;

fn main() {
    for isa in Isa::available() {
        println!("{}, {} threads", isa.name(), rayon::current_num_threads());
        let sizes = [
            (320, 16),
            (160, 32),
            (160, 64),
            (160, 8),
            (80, 64),
            (80, 128),
            (40, 128),
            (20, 256),
        ];
        for (side, channels) in sizes {
            norm(isa, side * side, channels);
        }
        attention(isa, 400);
        pool(isa);
    }
    moves();
}

/// Milliseconds, the best of some runs.
fn best(mut f: impl FnMut()) -> f64 {
    f();
    let runs = (0..9).map(|_| {
        let start = Instant::now();
        f();
        start.elapsed().as_secs_f64() * 1e3
    });
    runs.fold(f64::MAX, f64::min)
}

/// Gigabytes a second for `floats` moved in `ms`.
fn rate(floats: usize, ms: f64) -> f64 {
    floats as f64 * 4e-6 / ms
}

fn numbers(len: usize, step: usize) -> Vec<f32> {
    (0..len)
        .map(|i| ((i * step) % 1000) as f32 * 0.004 - 2.0)
        .collect()
}

fn norm(isa: Isa, pixels: usize, c: usize) {
    let len = IMAGES * pixels * c;
    let (y, mut d) = (numbers(len, 7919), numbers(len, 104_729));
    let mut out = vec![0.0; len];
    let lanes: Vec<_> = (0..IMAGES).map(|i| i..i + 1).collect();
    let act = Activation::Silu;
    let read = best(|| {
        std::hint::black_box(moments(isa, &y, pixels, c, &lanes));
    });
    let m = tree(moments(isa, &y, pixels, c, &lanes), Moments::merge).expect("lanes");
    let affine = Affine::of_batch(&m, &vec![1.0; c], &vec![0.0; c], 1e-3);
    let forward = best(|| normalise(isa, &y, &affine, act, &mut out));
    let mut sums = vec![];
    let first =
        best(|| sums = gradient_sums_in_place(isa, &y, &mut d, pixels, &affine, act, &lanes));
    let g = tree(sums, GradientSums::merge)
        .expect("lanes")
        .finish(&affine, Some(m.count));
    let second = best(|| input_gradient(isa, &y, &mut d, &affine, &g));
    let copy = best(|| out.copy_from_slice(&y));
    println!(
        "  norm {pixels:6} x {c:3}: statistics {read:.2} ms {:.0} GB/s, forward {forward:.2} {:.0}, \
         gradient {first:.2} {:.0} and {second:.2} {:.0} (copy on one thread {copy:.2} {:.0})",
        rate(len, read),
        rate(2 * len, forward),
        rate(3 * len, first),
        rate(3 * len, second),
        rate(2 * len, copy),
    );
}

fn attention(isa: Isa, positions: usize) {
    let shape = Shape {
        images: IMAGES,
        positions,
        heads: 2,
        key: 32,
        head: 64,
    };
    let qkv = numbers(IMAGES * positions * shape.channels(), 7919);
    let mut out = vec![0.0; IMAGES * positions * shape.width()];
    let mut values = out.clone();
    let mut d = qkv.clone();
    let mut sums = attend(isa, &qkv, shape, &mut out, &mut values);
    let forward = best(|| sums = attend(isa, &qkv, shape, &mut out, &mut values));
    let backward =
        best(|| attend_gradient(isa, &qkv, &sums, &values, Some(&values), shape, &mut d));
    let square = (IMAGES * shape.heads * positions * positions) as f64;
    println!(
        "  attention {positions}: forward {forward:.2} ms {:.0} GFLOP/s, backward {backward:.2} {:.0}",
        square * 2.0 * 96.0 / forward / 1e6,
        square * 2.0 * 224.0 / backward / 1e6,
    );
}

fn pool(isa: Isa) {
    let grid = Grid {
        images: IMAGES,
        rows: 20,
        cols: 20,
        channels: 128,
    };
    let x = numbers(grid.len(), 7919);
    let mut out = x.clone();
    let mut winners = max_pool5(isa, &x, grid, &mut out);
    let forward = best(|| winners = max_pool5(isa, &x, grid, &mut out));
    let backward = best(|| max_pool5_gradient(isa, &winners, &x, grid, &mut out));
    println!("  pool 20 x 20 x 128: forward {forward:.2} ms, backward {backward:.2}");
}

fn moves() {
    for (side, a, b) in [(160, 32, 16), (80, 64, 128), (40, 128, 256)] {
        let pixels = IMAGES * side * side;
        let (x, y) = (numbers(pixels * a, 7919), numbers(pixels * b, 7919));
        let mut out = vec![0.0; pixels * (a + b)];
        let join = best(|| concat(&[(&x, a), (&y, b)], &mut out));
        let mut part = vec![0.0; x.len()];
        let slice = best(|| slice_channels(&out, a + b, 0, a, &mut part));
        let add = best(|| add_to_channels(&mut out, a + b, 0, a, &part));
        println!(
            "concatenation {side} x {side} x {a} + {b}: {join:.2} ms {:.0} GB/s, slice {slice:.2} {:.0}, add {add:.2} {:.0}",
            rate(2 * out.len(), join),
            rate(2 * part.len(), slice),
            rate(3 * part.len(), add),
        );
    }
    for (side, c) in [(20, 256), (40, 128)] {
        let x = numbers(IMAGES * side * side * c, 7919);
        let (mut out, mut d) = (vec![0.0; 4 * x.len()], x.clone());
        let forward = best(|| upsample2(&x, side, c, &mut out));
        let backward = best(|| upsample2_gradient(&out, side, c, &mut d));
        println!(
            "doubling {side} x {side} x {c}: {forward:.2} ms {:.0} GB/s, gradient {backward:.2} {:.0}",
            rate(5 * x.len(), forward),
            rate(5 * x.len(), backward),
        );
    }
}
