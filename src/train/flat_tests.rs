use super::*;
use crate::config::model::ModelSpec;
use crate::model::Network;
use crate::model::init::{self, State};
use crate::ops::cpu::testing::{Numbers, in_threads};
use crate::train::ema;
use crate::train::optim::{MAX_NORM, clip_factor, finish_gradient};

const RATES: Rates = Rates {
    lr: 0.01,
    bias_lr: 0.04,
    momentum: 0.9,
};

struct Run {
    state: State,
    average: State,
    optimizer: Optimizer,
    norms: Vec<f64>,
}

fn start(model: &str, algorithm: Algorithm) -> (Layout, Run) {
    let network = Network::new(ModelSpec::resolve(model).unwrap(), 3);
    let state = init::init(&network, 0);
    let optimizer = Optimizer::new(algorithm, 5e-4, network.layout.param_len);
    (
        network.layout,
        Run {
            average: state.clone(),
            state,
            optimizer,
            norms: vec![],
        },
    )
}

/// Gradients: small at first, then such as must be clipped.
fn gradient(n: usize, i: usize) -> Vec<f32> {
    let size = [1e-3, 1.0, 30.0][i];
    Numbers::new(i as u64).vec(n, -size, size)
}

const SCALE: GradientScale = GradientScale {
    normalisers: [7.0, 0.3],
    factor: 1.7,
};

fn reference(model: &str, algorithm: Algorithm) -> Run {
    let (l, mut r) = start(model, algorithm);
    for i in 0..3 {
        let mut g = gradient(l.param_len, i);
        r.norms.push(finish_gradient(
            &l,
            &mut g,
            SCALE.normalisers,
            SCALE.factor,
            MAX_NORM,
        ));
        r.optimizer.step(&l, &mut r.state.params, &g, &RATES);
        ema::blend(&mut r.average.params, &r.state.params, 0.25);
    }
    r
}

fn fast(isa: Isa, model: &str, algorithm: Algorithm) -> Run {
    let (l, mut r) = start(model, algorithm);
    for i in 0..3 {
        let mut g = gradient(l.param_len, i);
        let norm = gradient_norm(isa, &l, &g, SCALE);
        r.norms.push(norm);
        let (params, average) = (&mut r.state.params[..], &mut r.average.params[..]);
        let flat = Flat {
            params,
            average,
            gradient: &mut g,
        };
        step(
            isa,
            &l,
            &mut r.optimizer,
            flat,
            &RATES,
            SCALE,
            clip_factor(norm, MAX_NORM),
            0.25,
        );
        assert!(g.iter().all(|&g| g == 0.0));
    }
    r
}

#[test]
fn steps_equal_the_plain_optimizer_and_average_on_every_instruction_set_and_any_number_of_threads()
{
    for model in ["yolo26n", "yolov8n"] {
        for algorithm in [Algorithm::Sgd, Algorithm::AdamW, Algorithm::MuSgd] {
            // the plain products take long
            if algorithm == Algorithm::MuSgd && model != "yolo26n" {
                continue;
            }
            let want = reference(model, algorithm);
            assert!(want.norms[0] < MAX_NORM && want.norms[2] > MAX_NORM);
            for isa in Isa::available() {
                for threads in [1, 2] {
                    let got = in_threads(threads, || fast(isa, model, algorithm));
                    for (g, w) in got.norms.iter().zip(&want.norms) {
                        assert!((g / w - 1.0).abs() < 1e-12, "{g} for {w}");
                    }
                    assert!(got.state.params == want.state.params, "parameters, {isa:?}");
                    assert!(
                        got.average.params == want.average.params,
                        "average, {isa:?}"
                    );
                    assert!(got.optimizer == want.optimizer, "optimizer, {isa:?}");
                }
            }
        }
    }
}

#[test]
fn frozen_parameters_and_their_average_keep_their_bytes() {
    for algorithm in [Algorithm::Sgd, Algorithm::AdamW, Algorithm::MuSgd] {
        let (mut l, mut r) = start("yolov8n", algorithm);
        for p in &mut l.params[..30] {
            p.frozen = true;
        }
        let before = r.state.params.clone();
        let mut g = gradient(l.param_len, 1);
        let flat = Flat {
            params: &mut r.state.params,
            average: &mut r.average.params,
            gradient: &mut g,
        };
        // a decay for which the average of equal numbers is not always theirs
        step(
            Isa::best(),
            &l,
            &mut r.optimizer,
            flat,
            &RATES,
            SCALE,
            1.0,
            0.7,
        );
        for p in &l.params {
            let same = |v: &[f32]| {
                let pairs = v[p.range()].iter().zip(&before[p.range()]);
                pairs.into_iter().all(|(a, b)| a.to_bits() == b.to_bits())
            };
            assert_eq!(same(&r.state.params), !p.trained(), "{}", p.name);
            assert_eq!(same(&r.average.params), !p.trained(), "{}", p.name);
        }
    }
}

#[test]
fn a_gradient_that_is_not_finite_has_such_a_norm() {
    let (l, _) = start("yolo26n", Algorithm::Sgd);
    let mut g = vec![1.0; l.param_len];
    *g.last_mut().unwrap() = f32::NAN;
    assert!(gradient_norm(Isa::best(), &l, &g, SCALE).is_nan());
}

/// Not a test: `cargo test --release --lib train::flat::tests::rate -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn rate() {
    for (model, algorithm) in [
        ("yolo26n", Algorithm::Sgd),
        ("yolo26n", Algorithm::AdamW),
        ("yolo26n", Algorithm::MuSgd),
        ("yolo26s", Algorithm::MuSgd),
    ] {
        let (l, mut r) = start(model, algorithm);
        // the plain products of Muon take too long: not a number
        let (mut plain, mut fused) = (f64::NAN, f64::MAX);
        for _ in 0..8 {
            let mut g = gradient(l.param_len, 1);
            let t = std::time::Instant::now();
            if algorithm != Algorithm::MuSgd {
                finish_gradient(&l, &mut g, SCALE.normalisers, SCALE.factor, MAX_NORM);
                r.optimizer.step(&l, &mut r.state.params, &g, &RATES);
                ema::blend(&mut r.average.params, &r.state.params, 0.25);
                plain = plain.min(t.elapsed().as_secs_f64() * 1e3);
            }
            let mut g = gradient(l.param_len, 1);
            let t = std::time::Instant::now();
            let norm = gradient_norm(Isa::best(), &l, &g, SCALE);
            let (params, average) = (&mut r.state.params[..], &mut r.average.params[..]);
            let flat = Flat {
                params,
                average,
                gradient: &mut g,
            };
            step(
                Isa::best(),
                &l,
                &mut r.optimizer,
                flat,
                &RATES,
                SCALE,
                clip_factor(norm, MAX_NORM),
                0.25,
            );
            fused = fused.min(t.elapsed().as_secs_f64() * 1e3);
        }
        println!(
            "{model} {algorithm:?}, {} parameters: plain {plain:.2} ms, fused {fused:.2} ms",
            l.param_len
        );
    }
}
