use super::*;
use crate::config::model::ModelSpec;
use crate::model::Network;
use crate::model::init::{self, State};
use crate::ops::cpu::isa::Isa;
use crate::ops::cpu::testing::Numbers;
use crate::ops::gpu::flat::testing::{device, read, tensor};
use crate::ops::gpu::flat::upload_f32;
use crate::train::optim::{MAX_NORM, clip_factor};
use crate::train::{ema, flat};
use burn::backend::Backend;
use burn::tensor::DType;

const WARM_UP: Rates = Rates {
    lr: 0.0,
    bias_lr: 0.1,
    momentum: 0.8,
};
const RATES: Rates = Rates {
    lr: 0.01,
    bias_lr: 0.04,
    momentum: 0.9,
};
/// Target scores of four lanes of both heads, the second below 1.
const SCORES: [[f32; 2]; 4] = [[2.0, 0.1], [1.5, 0.05], [0.0, 0.0], [3.5, 0.15]];
const FACTOR: f64 = 1.7;
const DECAY: f64 = 0.25;

struct Host {
    layout: Layout,
    state: State,
    average: State,
    optimizer: Optimizer,
}

fn host(model: &str, algorithm: Algorithm) -> Host {
    let network = Network::new(ModelSpec::resolve(model).unwrap(), 3);
    let state = init::init(&network, 0);
    Host {
        optimizer: Optimizer::new(algorithm, 5e-4, network.layout.param_len),
        average: state.clone(),
        state,
        layout: network.layout,
    }
}

impl Host {
    fn step(&mut self, gradient: &[f32], rates: &Rates, bound: f64) -> f64 {
        let scale = flat::GradientScale {
            normalisers: [0, 1].map(|h| SCORES.iter().map(|s| f64::from(s[h])).sum()),
            factor: FACTOR,
        };
        let mut gradient = gradient.to_vec();
        let norm = flat::gradient_norm(Isa::best(), &self.layout, &gradient, scale);
        if !norm.is_finite() {
            return norm;
        }
        let flat = flat::Flat {
            params: &mut self.state.params,
            average: &mut self.average.params,
            gradient: &mut gradient,
        };
        let clip = clip_factor(norm, bound);
        let optimizer = &mut self.optimizer;
        flat::step(
            Isa::best(),
            &self.layout,
            optimizer,
            flat,
            rates,
            scale,
            clip,
            DECAY,
        );
        norm
    }
}

struct OnDevice {
    device: CubeDevice,
    params: CubeTensor,
    average: CubeTensor,
    optimizer: DeviceOptimizer,
    totals: Totals,
}

impl OnDevice {
    fn new(h: &Host, device: &CubeDevice) -> Self {
        let totals = Totals::new(4, device);
        for one in [false, true] {
            let sums: Vec<f32> = SCORES
                .iter()
                .flat_map(|s| [0.5, 0.5, 0.5, s[usize::from(one)]])
                .collect();
            totals.add(tensor(device, &sums, &[4, 4], DType::F32), one);
        }
        Self {
            params: upload_f32(device, &h.state.params),
            average: upload_f32(device, &h.average.params),
            optimizer: DeviceOptimizer::new(&h.layout, &h.optimizer, device),
            device: device.clone(),
            totals,
        }
    }

    fn step(
        &mut self,
        gradient: &[f32],
        rates: &Rates,
        factor: f64,
        bound: f64,
    ) -> (Status, Vec<f32>) {
        let gradient = upload_f32(&self.device, gradient);
        let flat = Flat {
            params: &self.params,
            average: &self.average,
            gradient: &gradient,
        };
        let size = StepFactor {
            factor,
            bound,
            average_decay: DECAY,
        };
        let status = self.optimizer.step(flat, rates, &self.totals, size);
        assert!(
            read(&gradient).iter().all(|&g| g == 0.0),
            "the gradient is cleared"
        );
        let numbers = read(&status.numbers);
        (status, numbers)
    }

    fn arrays(&self) -> Vec<Vec<f32>> {
        let mut all = vec![read(&self.params), read(&self.average)];
        all.extend(self.optimizer.buffers().iter().map(|(_, b)| read(b)));
        all
    }
}

/// Within `tolerance` of what moved since `before`, and a few units of the last place.
fn close(got: &[f32], want: &[f32], before: Option<&[f32]>, tolerance: f32, what: &str) {
    let moved = |i: usize| want[i] - before.map_or(0.0, |b| b[i]);
    let scale = (0..want.len()).fold(0.0f32, |a, i| a.max(moved(i).abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let off = (g - w).abs();
        assert!(
            off <= tolerance * scale + 3e-7 * w.abs(),
            "{what} [{i}]: {g} for {w}, moved by up to {scale}"
        );
    }
}

fn gradient(n: usize, i: usize) -> Vec<f32> {
    // small at first, then such as must be clipped
    let size = [1e-3, 1.0, 30.0, 1e-2][i];
    Numbers::new(i as u64).vec(n, -size, size)
}

#[test]
fn steps_are_those_of_the_host_for_every_algorithm_with_warm_up_and_clipping() {
    let Some(device) = device() else { return };
    for algorithm in [Algorithm::Sgd, Algorithm::AdamW, Algorithm::MuSgd] {
        for model in ["yolo26n", "yolov8n"] {
            // software takes long for the products
            if algorithm == Algorithm::MuSgd && model != "yolo26n" {
                continue;
            }
            let mut h = host(model, algorithm);
            // something that is not trained, beside the constant of yolov8n
            for p in &mut h.layout.params[..9] {
                p.frozen = true;
            }
            let mut d = OnDevice::new(&h, &device);
            let before = h.state.params.clone();
            for (i, rates) in [WARM_UP, RATES, RATES, RATES].iter().enumerate() {
                let g = gradient(h.layout.param_len, i);
                // clipping is off in the last
                let bound = if i == 3 { f64::INFINITY } else { MAX_NORM };
                let norm = h.step(&g, rates, bound);
                let (_, numbers) = d.step(&g, rates, FACTOR, bound);
                assert!(
                    (f64::from(numbers[0]) / norm - 1.0).abs() < 1e-5,
                    "{} {norm}",
                    numbers[0]
                );
                let clip = clip_factor(norm, bound);
                assert!((numbers[1] / clip - 1.0).abs() < 1e-5 && numbers[2] == 1.0);
            }
            let what = format!("{model} {algorithm:?}");
            let got = d.arrays();
            // the iteration magnifies rounding of small singular values
            let tolerance = if algorithm == Algorithm::MuSgd {
                2e-3
            } else {
                2e-5
            };
            close(
                &got[0],
                &h.state.params,
                Some(&before),
                tolerance,
                &format!("{what} parameters"),
            );
            close(
                &got[1],
                &h.average.params,
                Some(&before),
                tolerance,
                &format!("{what} average"),
            );
            for ((name, want), got) in h.optimizer.buffers().iter().zip(&got[2..]) {
                close(got, want, None, tolerance, &format!("{what} {name}"));
            }
            assert_eq!(d.optimizer.steps(), h.optimizer.steps);
            for p in h.layout.params.iter().filter(|p| !p.trained()) {
                assert_eq!(
                    got[0][p.range()],
                    before[p.range()],
                    "{} does not move",
                    p.name
                );
                assert_eq!(got[1][p.range()], before[p.range()], "{}'s average", p.name);
            }
        }
    }
}

#[test]
fn a_gradient_or_a_loss_that_is_not_finite_changes_nothing() {
    let Some(device) = device() else { return };
    for algorithm in [Algorithm::Sgd, Algorithm::AdamW, Algorithm::MuSgd] {
        let h = host("yolo26n", algorithm);
        let mut d = OnDevice::new(&h, &device);
        let n = h.layout.param_len;
        d.step(&gradient(n, 1), &RATES, FACTOR, MAX_NORM);
        let before = d.arrays();
        for bad in [f32::NAN, f32::INFINITY] {
            let mut g = gradient(n, 1);
            g[n - 1] = bad;
            let (status, numbers) = d.step(&g, &RATES, FACTOR, MAX_NORM);
            assert_eq!(numbers[2], 0.0);
            d.optimizer.skipped();
            let (average, values) = ([0.5; 8], [1.0; 8]);
            let [average, values] = [average, values].map(|v| upload_f32(&device, &v));
            let frozen = Groups::new(&[(0..8, 0)], &device);
            blend_statistics(&frozen, &status, &average, &values, 0.5);
            assert_eq!(read(&average), [0.5; 8]);
        }
        let bad = tensor(&device, &[f32::NAN; 16], &[4, 4], DType::F32);
        d.totals.add(bad, false);
        let (_, numbers) = d.step(&gradient(n, 1), &RATES, FACTOR, MAX_NORM);
        assert_eq!(
            numbers[2], 0.0,
            "a loss that is not a number stops the step"
        );
        assert_eq!(d.optimizer.steps(), 2);
        assert!(d.arrays() == before, "{algorithm:?}");
    }
}

#[test]
fn a_loss_scale_is_taken_back_by_the_factor() {
    let Some(device) = device() else { return };
    let h = host("yolo26n", Algorithm::Sgd);
    let g = gradient(h.layout.param_len, 1);
    let run = |scale: f32| {
        let mut d = OnDevice::new(&h, &device);
        let g: Vec<f32> = g.iter().map(|g| g * scale).collect();
        d.step(&g, &RATES, FACTOR / f64::from(scale), MAX_NORM);
        d.arrays()
    };
    // powers of two change no rounding
    assert!(run(1.0) == run(1024.0));
}

#[test]
fn the_average_of_statistics_follows_but_for_frozen_norms() {
    let Some(device) = device() else { return };
    let mut h = host("yolo26n", Algorithm::Sgd);
    for norm in h.layout.norms.iter_mut().take(5) {
        norm.frozen = true;
    }
    let mut d = OnDevice::new(&h, &device);
    let (status, _) = d.step(&gradient(h.layout.param_len, 0), &RATES, FACTOR, MAX_NORM);
    let n = h.layout.buffer_len;
    let (values, average) = (
        Numbers::new(1).vec(n, 0.0, 2.0),
        Numbers::new(2).vec(n, 0.0, 2.0),
    );
    let mut want = average.clone();
    ema::blend_statistics(&h.layout, &mut want, &values, 0.7);
    let [values, average] = [values, average].map(|v| upload_f32(&device, &v));
    d.optimizer
        .blend_statistics(&status, &average, &values, 0.7);
    close(&read(&average), &want, None, 1e-6, "statistics");
    let norm = &h.layout.norms[0];
    let at = norm.mean().start..norm.var().end;
    assert_eq!(read(&average)[at.clone()], read(&values)[at]);
}

#[test]
fn a_step_has_the_same_bytes_again_and_flat_memory_may_have_any_length() {
    let Some(device) = device() else { return };
    let run = |len: usize| {
        let groups = Groups::new(&[(0..len / 2, 0), (len / 2..len, 1)], &device);
        let rule = |one_to_one: bool| Rule {
            rate: 0.1,
            decay: 0.01,
            one_to_one,
            ..Rule::default()
        };
        let totals = Totals::new(3, &device);
        let upload = |seed: u64| upload_f32(&device, &Numbers::new(seed).vec(len, -1.0, 1.0));
        let (params, average, gradient, first) = (upload(1), upload(2), upload(3), upload(4));
        let status = gradient_norm(
            &gradient,
            &groups,
            &[rule(false), rule(true)],
            &totals,
            1.0,
            1.0,
        );
        let want = read(&gradient).iter().map(|g| g * g).sum::<f32>().sqrt();
        assert!((read(&status.numbers)[0] / want - 1.0).abs() < 1e-4);
        let flat = Flat {
            params: &params,
            average: &average,
            gradient: &gradient,
        };
        optim::sgd(&groups, &status, flat, &first, 0.9, 0.5);
        [&params, &average, &first].map(read)
    };
    for len in [1, 3, 4099, 70_002] {
        assert!(run(len) == run(len));
    }
}

/// Says nothing of values: with a stand-in for a driver it shows that the compiler takes the kernels.
#[test]
fn kernels_of_every_algorithm_are_accepted_by_the_device() {
    let Some(device) = device() else { return };
    for algorithm in [Algorithm::Sgd, Algorithm::AdamW, Algorithm::MuSgd] {
        let h = host("yolo26n", algorithm);
        let mut d = OnDevice::new(&h, &device);
        let gradient = upload_f32(&device, &gradient(h.layout.param_len, 1));
        let flat = Flat {
            params: &d.params,
            average: &d.average,
            gradient: &gradient,
        };
        let size = StepFactor {
            factor: 1.0,
            bound: 1.0,
            average_decay: DECAY,
        };
        let status = d.optimizer.step(flat, &RATES, &d.totals, size);
        let statistics = vec![1.0; h.layout.buffer_len];
        let [average, values] = [0; 2].map(|_| upload_f32(&device, &statistics));
        d.optimizer
            .blend_statistics(&status, &average, &values, 0.5);
        assert_eq!(d.arrays()[0].len(), h.layout.param_len);
        assert_eq!(read(&average).len(), statistics.len());
    }
    let params = upload_f32(&device, &[1.0, 0.1, -3.3]);
    for dtype in [DType::F16, DType::BF16] {
        if burn_cubecl::CubeBackend::supports_dtype(&device, dtype) {
            assert_eq!(read(&optim::cast(&params, dtype)).len(), 3);
        }
    }
}

#[test]
fn parameters_are_copied_to_half_precision() {
    let Some(device) = device() else { return };
    if !burn_cubecl::CubeBackend::supports_dtype(&device, DType::F16) {
        eprintln!("skipped: the adapter has no f16");
        return;
    }
    let params = upload_f32(&device, &[1.0, 0.1, -3.3]);
    let half = optim::cast(&params, DType::F16);
    assert_eq!(half.dtype, DType::F16);
    let want = [1.0, 0.1, -3.3].map(|v| half::f16::from_f32(v).to_f32());
    assert_eq!(read(&half), want);
}

/// Not a test: `YOLO_TRAIN_TEST_DEVICE=cuda cargo test --release --features cuda --lib train::device_optim::tests::rate -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn rate() {
    let Some(device) = device() else { return };
    for model in ["yolo26n", "yolo26s", "yolo26m"] {
        for algorithm in [Algorithm::Sgd, Algorithm::AdamW, Algorithm::MuSgd] {
            let h = host(model, algorithm);
            let mut d = OnDevice::new(&h, &device);
            let n = h.layout.param_len;
            let gradient = upload_f32(&device, &gradient(n, 1));
            let mut run = |times: usize| {
                let start = std::time::Instant::now();
                for _ in 0..times {
                    let flat = Flat {
                        params: &d.params,
                        average: &d.average,
                        gradient: &gradient,
                    };
                    let size = StepFactor {
                        factor: 1.0,
                        bound: 10.0,
                        average_decay: 0.999,
                    };
                    let _ = d.optimizer.step(flat, &RATES, &d.totals, size);
                }
                read(&d.totals.sums);
                read(&gradient);
                start.elapsed().as_secs_f64() * 1e3 / times as f64
            };
            run(3);
            println!("{model} {algorithm:?}, {n} parameters: {:.3} ms", run(20));
        }
    }
}
