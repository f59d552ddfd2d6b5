use super::*;
use crate::ops::Activation;
use crate::ops::cpu::testing::{Numbers, assert_close, assert_same, in_threads, quarters};

const EPS: f64 = 1e-3;

/// Forward and gradients in float64.
struct Reference {
    mean: Vec<f64>,
    var: Vec<f64>,
    out: Vec<f64>,
    dy: Vec<f64>,
    dgamma: Vec<f64>,
    dbeta: Vec<f64>,
}

fn reference(
    y: &[f32],
    da: &[f32],
    gamma: &[f32],
    beta: &[f32],
    act: Activation,
    fixed: Option<(&[f32], &[f32])>,
) -> Reference {
    let c = gamma.len();
    let n = (y.len() / c) as f64;
    let at = |v: &[f32], i: usize| f64::from(v[i]);
    let mut r = Reference {
        mean: vec![0.0; c],
        var: vec![0.0; c],
        out: vec![0.0; y.len()],
        dy: vec![0.0; y.len()],
        dgamma: vec![0.0; c],
        dbeta: vec![0.0; c],
    };
    for (i, &v) in y.iter().enumerate() {
        r.mean[i % c] += f64::from(v) / n;
    }
    for (i, &v) in y.iter().enumerate() {
        r.var[i % c] += (f64::from(v) - r.mean[i % c]).powi(2) / n;
    }
    if let Some((mean, var)) = fixed {
        r.mean = (0..c).map(|i| at(mean, i)).collect();
        r.var = (0..c).map(|i| at(var, i)).collect();
    }
    let inverse: Vec<f64> = r.var.iter().map(|v| 1.0 / (v + EPS).sqrt()).collect();
    let hat = |i: usize| (at(y, i) - r.mean[i % c]) * inverse[i % c];
    let mut dz = vec![0.0; y.len()];
    for (i, dz) in dz.iter_mut().enumerate() {
        let z = hat(i) * at(gamma, i % c) + at(beta, i % c);
        let g = 1.0 / (1.0 + (-z).exp());
        let (a, slope) = match act {
            Activation::Silu => (z * g, g * (1.0 + z * (1.0 - g))),
            Activation::Identity => (z, 1.0),
        };
        r.out[i] = a;
        *dz = at(da, i) * slope;
        r.dgamma[i % c] += *dz * hat(i);
        r.dbeta[i % c] += *dz;
    }
    for (i, dz) in dz.iter().enumerate() {
        let k = i % c;
        let through = if fixed.is_some() {
            0.0
        } else {
            (r.dbeta[k] + hat(i) * r.dgamma[k]) / n
        };
        r.dy[i] = at(gamma, k) * inverse[k] * (dz - through);
    }
    r
}

/// (images, pixels, channels): whole vectors, parts of them, odd everything, more than one task.
const SHAPES: [(usize, usize, usize); 12] = [
    (1, 5, 1),
    (2, 3, 1),
    (5, 7, 3),
    (4, 100, 8),
    (4, 1601, 16),
    (3, 37, 17),
    (1, 9, 24),
    (4, 49, 64),
    (2, 5, 255),
    (2, 3, 512),
    (3, 11, 80),
    (2, 30011, 4),
];

#[test]
fn forward_and_gradients_equal_float64_on_every_instruction_set() {
    for isa in Isa::available() {
        for (images, pixels, c) in SHAPES {
            let mut numbers = Numbers::new((images * pixels + c) as u64);
            let len = images * pixels * c;
            let mut y = numbers.vec(len, -3.0, 3.0);
            // channels with means of their own
            y.iter_mut()
                .enumerate()
                .for_each(|(i, y)| *y += (i % c % 7) as f32);
            let da = numbers.vec(len, -1.0, 1.0);
            let (gamma, beta) = (numbers.vec(c, 0.5, 1.5), numbers.vec(c, -1.0, 1.0));
            let lanes = quarters(images);
            for act in [Activation::Silu, Activation::Identity] {
                for fixed in [false, true] {
                    let (mean, var) = (numbers.vec(c, -1.0, 1.0), numbers.vec(c, 0.5, 2.0));
                    let given = fixed.then_some((&mean[..], &var[..]));
                    let want = reference(&y, &da, &gamma, &beta, act, given);
                    let m = tree(moments(isa, &y, pixels, c, &lanes), Moments::merge).unwrap();
                    let affine = match given {
                        Some((mean, var)) => Affine::fixed(mean, var, &gamma, &beta, EPS),
                        None => {
                            assert_eq!(m.count, (images * pixels) as f64);
                            assert_close(&m.mean, &want.mean, 1e-5, "mean");
                            assert_close(&m.variance(), &want.var, 1e-5, "variance");
                            Affine::of_batch(&m, &gamma, &beta, EPS)
                        }
                    };
                    let mut out = vec![f32::NAN; len];
                    normalise(isa, &y, &affine, act, &mut out);
                    assert_close(&out, &want.out, 2e-5, "out");
                    let mut same = y.clone();
                    normalise_in_place(isa, &mut same, &affine, act);
                    assert_same(&same, &out, "in place");

                    let mut dy = vec![f32::NAN; len];
                    let sums = gradient_sums(isa, &y, &da, pixels, &affine, act, &lanes, &mut dy);
                    let mut same = da.clone();
                    assert_eq!(
                        gradient_sums_in_place(isa, &y, &mut same, pixels, &affine, act, &lanes),
                        sums
                    );
                    assert_same(&same, &dy, "in place");
                    let sums = tree(sums, GradientSums::merge).unwrap();
                    let g = sums.finish(&affine, (!fixed).then_some(m.count));
                    assert_close(&g.beta, &want.dbeta, 2e-5, "gradient of beta");
                    assert_close(&g.gamma, &want.dgamma, 2e-5, "gradient of gamma");
                    input_gradient(isa, &y, &mut dy, &affine, &g);
                    assert_close(&dy, &want.dy, 2e-5, "gradient of the input");
                }
            }
        }
    }
}

#[test]
fn a_mean_far_from_zero_costs_no_precision() {
    for isa in Isa::available() {
        for (pixels, c) in [(3000, 16), (777, 5), (40000, 1)] {
            let mut numbers = Numbers::new(5);
            let mut y = numbers.vec(4 * pixels * c, -0.01732, 0.01732);
            y.iter_mut().for_each(|y| *y += 1e3);
            // a border, as padding makes it, far from everything else
            for image in y.chunks_mut(pixels * c) {
                image[..3 * c].fill(1001.0);
            }
            let da = numbers.vec(y.len(), -1.0, 1.0);
            let (gamma, beta) = (vec![1.0; c], vec![0.5; c]);
            let want = reference(&y, &da, &gamma, &beta, Activation::Silu, None);
            let m = tree(moments(isa, &y, pixels, c, &quarters(4)), Moments::merge).unwrap();
            for (got, want) in m.variance().iter().zip(&want.var) {
                assert!((got / want - 1.0).abs() < 1e-5, "{isa:?} {got} for {want}");
            }
            let affine = Affine::of_batch(&m, &gamma, &beta, EPS);
            let mut out = vec![0.0; y.len()];
            normalise(isa, &y, &affine, Activation::Silu, &mut out);
            assert_close(&out, &want.out, 1e-5, "out");
            let mut dy = vec![0.0; y.len()];
            let sums = gradient_sums(
                isa,
                &y,
                &da,
                pixels,
                &affine,
                Activation::Silu,
                &quarters(4),
                &mut dy,
            );
            let g = tree(sums, GradientSums::merge)
                .unwrap()
                .finish(&affine, Some(m.count));
            assert_close(&g.gamma, &want.dgamma, 1e-4, "gradient of gamma");
            input_gradient(isa, &y, &mut dy, &affine, &g);
            assert_close(&dy, &want.dy, 1e-4, "gradient of the input");
        }
    }
}

#[test]
fn lanes_have_the_same_bytes_alone_and_two_ranks_merge_to_the_bytes_of_one() {
    for isa in Isa::available() {
        for (images, pixels, c) in [(6, 901, 16), (5, 77, 9), (3, 50, 20), (1, 4, 3)] {
            let mut numbers = Numbers::new(8);
            let image = pixels * c;
            let (y, da) = (
                numbers.vec(images * image, 0.0, 2.0),
                numbers.vec(images * image, -1.0, 1.0),
            );
            let affine = Affine::fixed(
                &vec![0.5; c],
                &vec![1.5; c],
                &vec![1.0; c],
                &vec![0.0; c],
                EPS,
            );
            let lanes = quarters(images);
            let act = Activation::Silu;
            let all = moments(isa, &y, pixels, c, &lanes);
            let all_g =
                gradient_sums_in_place(isa, &y, &mut da.clone(), pixels, &affine, act, &lanes);
            let mut alone = vec![];
            for (i, lane) in lanes.iter().enumerate() {
                let at = lane.start * image..lane.end * image;
                let own = std::slice::from_ref(&(0..lane.len())).to_vec();
                let m = moments(isa, &y[at.clone()], pixels, c, &own);
                assert_eq!(m[0], all[i]);
                let mut dz = da[at.clone()].to_vec();
                let g = gradient_sums_in_place(isa, &y[at], &mut dz, pixels, &affine, act, &own);
                assert_eq!(g[0], all_g[i]);
                alone.extend(m);
            }
            let ranks = alone
                .chunks(2)
                .map(|r| tree(r.to_vec(), Moments::merge).unwrap())
                .collect();
            assert_eq!(tree(ranks, Moments::merge), tree(all, Moments::merge));
        }
    }
}

#[test]
fn the_number_of_threads_and_the_batch_change_no_byte() {
    for isa in Isa::available() {
        let (images, pixels, c) = (3, 5003, 12);
        let image = pixels * c;
        let mut numbers = Numbers::new(3);
        let (y, da) = (
            numbers.vec(images * image, -2.0, 2.0),
            numbers.vec(images * image, -1.0, 1.0),
        );
        let (gamma, beta) = (numbers.vec(c, 0.5, 1.5), numbers.vec(c, -1.0, 1.0));
        let (mean, var) = (numbers.vec(c, -1.0, 1.0), numbers.vec(c, 0.5, 1.5));
        let affine = Affine::fixed(&mean, &var, &gamma, &beta, EPS);
        let act = Activation::Silu;
        let run = |y: &[f32], da: &[f32]| {
            let lanes = quarters(y.len() / image);
            let m = moments(isa, y, pixels, c, &lanes);
            let (mut out, mut dy) = (vec![0.0; y.len()], vec![0.0; y.len()]);
            let sums = gradient_sums(isa, y, da, pixels, &affine, act, &lanes, &mut dy);
            let g = tree(sums.clone(), GradientSums::merge)
                .unwrap()
                .finish(&affine, None);
            normalise(isa, y, &affine, act, &mut out);
            input_gradient(isa, y, &mut dy, &affine, &g);
            (m, sums, out, dy)
        };
        let one = in_threads(1, || run(&y, &da));
        assert!(one == in_threads(2, || run(&y, &da)));
        for i in 0..images {
            let at = i * image..(i + 1) * image;
            let alone = run(&y[at.clone()], &da[at.clone()]);
            assert_same(&alone.2, &one.2[at.clone()], "output alone");
            assert_same(&alone.3, &one.3[at], "gradient alone");
        }
    }
}

#[test]
fn what_is_not_a_number_stays_visible() {
    for isa in Isa::available() {
        let mut y = vec![1.0f32; 64];
        y[7] = f32::NAN;
        let m = tree(moments(isa, &y, 16, 4, &quarters(1)), Moments::merge).unwrap();
        assert!(m.variance()[3].is_nan() && m.variance()[0] == 0.0);
        let affine = Affine::of_batch(&m, &[1.0; 4], &[0.0; 4], EPS);
        normalise_in_place(isa, &mut y, &affine, Activation::Silu);
        assert!(
            y.iter()
                .enumerate()
                .all(|(i, v)| v.is_nan() == (i % 4 == 3))
        );
    }
}

#[test]
fn a_tree_of_lanes_is_made_of_neighbours() {
    let join = |a: String, b: String| format!("({a}{b})");
    let of = |n: usize| tree((0..n).map(|i| i.to_string()).collect(), join);
    assert_eq!(of(0), None);
    assert_eq!(of(3).as_deref(), Some("((01)2)"));
    assert_eq!(of(4).as_deref(), Some("((01)(23))"));
}
