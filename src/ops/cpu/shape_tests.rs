use super::*;
use crate::ops::cpu::testing::{Numbers, assert_same};

#[test]
fn concatenation_and_slices_move_every_element_to_its_place() {
    for (pixels, channels) in [
        (1, vec![1, 1]),
        (7, vec![3, 0, 5]),
        (4001, vec![16, 8, 24]),
        (300, vec![128, 1, 300, 64, 7]),
    ] {
        let mut numbers = Numbers::new(pixels as u64);
        let parts: Vec<Vec<f32>> = channels
            .iter()
            .map(|c| numbers.vec(pixels * c, -1.0, 1.0))
            .collect();
        let total: usize = channels.iter().sum();
        let mut want = vec![];
        for p in 0..pixels {
            for (x, c) in parts.iter().zip(&channels) {
                want.extend_from_slice(&x[p * c..(p + 1) * c]);
            }
        }
        let mut out = vec![f32::NAN; pixels * total];
        let given: Vec<_> = parts
            .iter()
            .zip(&channels)
            .map(|(x, &c)| (&x[..], c))
            .collect();
        concat(&given, &mut out);
        assert_same(&out, &want, "moved");
        let mut sum = out.clone();
        let mut first = 0;
        for (x, &c) in parts.iter().zip(&channels) {
            let mut back = vec![f32::NAN; x.len()];
            slice_channels(&out, total, first, c, &mut back);
            assert_same(&back, x, "slice");
            if c > 0 {
                add_to_channels(&mut sum, total, first, c, x);
            }
            first += c;
        }
        assert!(sum.iter().zip(&out).all(|(s, o)| *s == o + o));
    }
}

#[test]
fn doubling_repeats_pixels_and_its_gradient_sums_the_copies() {
    for (images, rows, cols, c) in [(1, 1, 1, 1), (2, 3, 5, 7), (3, 20, 20, 64)] {
        let len = images * rows * cols * c;
        let mut numbers = Numbers::new(len as u64);
        let x = numbers.vec(len, -1.0, 1.0);
        let g = numbers.vec(4 * len, -1.0, 1.0);
        let small =
            |n: usize, y: usize, x: usize, k: usize| ((n * rows + y / 2) * cols + x / 2) * c + k;
        let mut want = vec![];
        let mut sums = vec![0.0f64; len];
        for n in 0..images {
            for y in 0..2 * rows {
                for i in 0..2 * cols {
                    for k in 0..c {
                        sums[small(n, y, i, k)] += f64::from(g[want.len()]);
                        want.push(x[small(n, y, i, k)]);
                    }
                }
            }
        }
        let mut out = vec![f32::NAN; 4 * len];
        upsample2(&x, cols, c, &mut out);
        assert_same(&out, &want, "moved");
        let mut dx = vec![f32::NAN; len];
        upsample2_gradient(&g, cols, c, &mut dx);
        assert!(
            dx.iter()
                .zip(&sums)
                .all(|(a, b)| (f64::from(*a) - b).abs() < 1e-6)
        );

        // as a part of a concatenation
        let total = c + 5;
        let mut wide = vec![7.0; 4 * len / c * total];
        upsample2_into(&x, cols, c, &mut wide, total, 2);
        assert!(
            wide.chunks(total)
                .zip(out.chunks(c))
                .all(|(w, o)| w[2..2 + c] == *o && w[..2] == [7.0; 2] && w[2 + c..] == [7.0; 3])
        );
        let mut all = vec![7.0; wide.len()];
        all.chunks_mut(total)
            .zip(g.chunks(c))
            .for_each(|(a, g)| a[2..2 + c].copy_from_slice(g));
        let mut again = vec![f32::NAN; len];
        upsample2_gradient_from(&all, total, 2, cols, c, &mut again);
        assert_same(&again, &dx, "gradient in a concatenation");
    }
}

#[test]
fn sums_and_pixels_are_those_of_their_elements() {
    let mut numbers = Numbers::new(4);
    let (a, b) = (numbers.vec(70001, -1.0, 1.0), numbers.vec(70001, -1.0, 1.0));
    let mut out = vec![0.0; a.len()];
    add(&a, &b, &mut out);
    let mut acc = a.clone();
    add_to(&mut acc, &b);
    assert_same(&out, &acc, "sum");
    assert!(
        out.iter()
            .zip(a.iter().zip(&b))
            .all(|(o, (a, b))| *o == a + b)
    );
    let pixels: Vec<u8> = (0..=255).collect();
    let mut out = vec![0.0; 256];
    unit_pixels(&pixels, &mut out);
    assert!(
        out.iter()
            .zip(&pixels)
            .all(|(o, &p)| *o == f32::from(p) / 255.0)
    );
}
