use super::*;
use crate::ops::cpu::testing::{Numbers, assert_close, assert_same, in_threads};

/// Maxima and, for each, the first element of the window (in row order) that has it.
fn reference(x: &[f32], s: Grid) -> (Vec<f32>, Vec<usize>) {
    let at =
        |n: usize, y: usize, x: usize, c: usize| ((n * s.rows + y) * s.cols + x) * s.channels + c;
    let (mut max, mut winner) = (vec![0.0; x.len()], vec![0; x.len()]);
    for n in 0..s.images {
        for oy in 0..s.rows {
            for ox in 0..s.cols {
                for c in 0..s.channels {
                    let mut best: Option<usize> = None;
                    for y in oy.saturating_sub(2)..(oy + 3).min(s.rows) {
                        for i in ox.saturating_sub(2)..(ox + 3).min(s.cols) {
                            let i = at(n, y, i, c);
                            if best.is_none_or(|b| x[i] > x[b]) {
                                best = Some(i);
                            }
                        }
                    }
                    let o = at(n, oy, ox, c);
                    winner[o] = best.unwrap();
                    max[o] = x[winner[o]];
                }
            }
        }
    }
    (max, winner)
}

const SHAPES: [[usize; 4]; 8] = [
    [1, 1, 1, 1],
    [2, 3, 4, 5],
    [1, 2, 9, 16],
    [3, 7, 5, 33],
    [1, 20, 20, 128],
    [2, 6, 1, 3],
    [1, 1, 6, 70],
    [2, 9, 11, 8],
];

fn grid([images, rows, cols, channels]: [usize; 4]) -> Grid {
    Grid {
        images,
        rows,
        cols,
        channels,
    }
}

#[test]
fn maxima_winners_and_gradients_equal_the_definition_also_with_ties() {
    for isa in Isa::available() {
        for shape in SHAPES {
            for ties in [false, true] {
                let s = grid(shape);
                let mut numbers = Numbers::new(s.len() as u64);
                let mut x = numbers.vec(s.len(), -2.0, 2.0);
                if ties {
                    x.iter_mut().for_each(|x| *x = x.round());
                }
                let g = numbers.vec(s.len(), -1.0, 1.0);
                let (max, winner) = reference(&x, s);
                let mut out = vec![f32::NAN; s.len()];
                let winners = max_pool5(isa, &x, s, &mut out);
                assert_same(&out, &max, "maxima");
                let mut want = vec![0.0; s.len()];
                for (w, &g) in winner.iter().zip(&g) {
                    want[*w] += f64::from(g);
                }
                let mut dx = vec![f32::NAN; s.len()];
                max_pool5_gradient(isa, &winners, &g, s, &mut dx);
                assert_close(&dx, &want, 1e-6, "gradient of a pool");
            }
        }
    }
}

#[test]
fn threads_and_batch_change_no_byte() {
    for isa in Isa::available() {
        let s = grid([3, 9, 13, 21]);
        let mut numbers = Numbers::new(1);
        let (x, g) = (
            numbers.vec(s.len(), -1.0, 1.0),
            numbers.vec(s.len(), -1.0, 1.0),
        );
        let run = |x: &[f32], g: &[f32], s: Grid| {
            let (mut out, mut dx) = (vec![0.0; s.len()], vec![0.0; s.len()]);
            let w = max_pool5(isa, x, s, &mut out);
            max_pool5_gradient(isa, &w, g, s, &mut dx);
            (out, dx)
        };
        let all = in_threads(1, || run(&x, &g, s));
        assert!(all == in_threads(2, || run(&x, &g, s)));
        let one = Grid { images: 1, ..s };
        for i in 0..s.images {
            let at = i * one.len()..(i + 1) * one.len();
            let alone = run(&x[at.clone()], &g[at.clone()], one);
            assert_same(&alone.0, &all.0[at.clone()], "maxima alone");
            assert_same(&alone.1, &all.1[at], "gradient alone");
        }
    }
}

#[test]
fn what_is_not_a_number_stays_visible() {
    let s = grid([1, 5, 5, 2]);
    let mut x = vec![1.0; s.len()];
    x[24] = f32::NAN;
    let mut out = vec![0.0; s.len()];
    let _ = max_pool5(Isa::best(), &x, s, &mut out);
    assert!(
        out.iter()
            .enumerate()
            .all(|(i, v)| v.is_nan() == (i % 2 == 0))
    );
}
