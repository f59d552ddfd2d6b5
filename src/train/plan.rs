//! The resolved plan of a run: what `auto` and the reference batch mean for this data and these options.

use super::engine::StepSize;
use super::error::TrainError;
use super::muon::{CLASS_BOOST, MUON_RATE};
use super::optim::{self, Algorithm};
use super::schedule::Schedule;
use crate::config::{LrScaling, Optimizer, Settings};
use crate::data::sampler::mosaic_off_from;
use crate::gpu::Device;
use crate::model::Layout;
use crate::model::init::NORM_MOMENTUM;
use crate::ops::cpu::lanes::Lanes;

/// Momentum of running statistics that most frameworks have.
const USUAL_NORM_MOMENTUM: f64 = 0.1;

/// `auto` takes AdamW up to this many optimizer steps.
const SHORT_RUN: usize = 10_000;

/// Optimizer, schedule and step size of a run, with the reasons.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub algorithm: Algorithm,
    /// Rate of Muon's part as a factor of the schedule's.
    pub muon_rate: f64,
    pub schedule: Schedule,
    pub size: StepSize,
    /// Momentum of the running statistics of batch norms.
    pub norm_momentum: f64,
    /// First epoch without mosaic.
    pub mosaic_off_from: usize,
    /// Lines to print before step 0.
    pub lines: Vec<String>,
}

impl Plan {
    /// The optimizer of this plan, at its start.
    #[must_use]
    pub fn optimizer(&self, weight_decay: f64, layout: &Layout) -> optim::Optimizer {
        optim::Optimizer {
            muon_rate: self.muon_rate,
            ..optim::Optimizer::new(self.algorithm, weight_decay, layout.param_len)
        }
    }
}

/// Resolves a plan for `images` training images in `batches` micro-batches an epoch and `classes` classes.
#[must_use]
pub fn resolve(s: &Settings, images: usize, batches: usize, classes: usize) -> Plan {
    let mut lines = vec![];
    let accumulate = s
        .accumulate
        .unwrap_or_else(|| ((s.nbs as f64 / s.batch as f64).round() as usize).max(1));
    let size = StepSize {
        reference: s.nbs,
        full: s.batch * accumulate,
    };
    let (algorithm, lr0, momentum, bias) = optimizer(s, images, classes, &mut lines);
    let (k, of_muon) = match s.lr_scaling {
        LrScaling::Auto => (
            algorithm.scaling_exponent(),
            Algorithm::MUON_SCALING_EXPONENT,
        ),
        LrScaling::Linear => (1.0, 1.0),
        LrScaling::Sqrt => (0.5, 0.5),
        LrScaling::None => (0.0, 0.0),
    };
    let longer = size.full as f64 / size.reference as f64;
    let ratio = longer.powf(k);
    let muon_rate = MUON_RATE * longer.powf(of_muon - k);
    let half = s.epochs as f64 / 2.0;
    let warmup_epochs = s.warmup_epochs.min(half);
    if warmup_epochs < s.warmup_epochs {
        lines.push(format!(
            "warm-up: {} epochs instead of {}, half of a run of {}",
            warmup_epochs, s.warmup_epochs, s.epochs
        ));
    }
    let schedule = Schedule {
        epochs: s.epochs,
        batches,
        lr: lr0 * ratio,
        lrf: s.lrf,
        cosine: s.cos_lr,
        momentum,
        warmup: (warmup_epochs * batches as f64).round() as usize,
        warmup_momentum: warmup_momentum(s, algorithm, momentum),
        warmup_bias_lr: bias * ratio,
        accumulate,
    };
    lines.push(format!(
        "batch {} x accumulate {accumulate} = {} images a step (reference {}), {images} images = {batches} batches an epoch",
        s.batch, size.full, size.reference
    ));
    let scaled = if (ratio - 1.0).abs() > 1e-12 {
        format!(
            " x ({} / {})^{k} = {:.6}",
            size.full, size.reference, schedule.lr
        )
    } else {
        String::new()
    };
    lines.push(format!(
        "learning rate {lr0}{scaled}, {} to x{} over {} epochs; momentum {momentum}; weight decay {}; clipping at norm {}",
        if s.cos_lr { "cosine" } else { "linear" },
        s.lrf,
        s.epochs,
        s.weight_decay,
        super::optim::MAX_NORM
    ));
    if algorithm == Algorithm::MuSgd {
        lines.push(format!(
            "Muon's part of the weights: {:.6} ({MUON_RATE} x {lr0} x ({} / {})^{of_muon}); class branches x{CLASS_BOOST}",
            schedule.lr * muon_rate, size.full, size.reference
        ));
    }
    lines.push(format!(
        "warm-up {} batches: rate from 0 (biases {:.6}), momentum from {}, accumulate from 1",
        schedule.warmup, schedule.warmup_bias_lr, schedule.warmup_momentum
    ));
    let norms = norm_momentum(batches);
    if norms > NORM_MOMENTUM {
        lines.push(format!("running statistics move by {norms:.3} a batch instead of {NORM_MOMENTUM}: {batches} batches an epoch are few"));
    }
    let (off, note) = mosaic_off_from(s.epochs, s.close_mosaic);
    lines.extend(note);
    Plan {
        algorithm,
        muon_rate,
        schedule,
        size,
        norm_momentum: norms,
        mosaic_off_from: off,
        lines,
    }
}

/// Lanes that sums over images are formed in, for `ranks` ranks, and a line to print where they are not the usual ones.
/// On GPUs without `--deterministic` there is one for each rank, whatever `--lanes` says.
///
/// # Errors
/// [`TrainError::LanesBelowRanks`].
pub fn lanes(
    s: &Settings,
    ranks: usize,
    device: Device,
) -> Result<(usize, Option<String>), TrainError> {
    if device.is_gpu() && !s.deterministic {
        // nothing depends on them, and a rank's sums cost least in one piece
        return Ok((ranks, None));
    }
    let usual = Lanes::USUAL.total();
    let fits = ranks <= usual && usual.is_multiple_of(ranks);
    match s.lanes {
        Some(lanes) if lanes < ranks => Err(TrainError::LanesBelowRanks { lanes, ranks }),
        Some(lanes) => Ok((lanes, None)),
        None if fits => Ok((usual, None)),
        None => Ok((
            ranks,
            Some(format!(
                "{ranks} lanes, one for each rank: the bits are those of any other number of ranks with --lanes {ranks}"
            )),
        )),
    }
}

/// Running statistics follow the weights within half an epoch, or as fast as is usual (docs/adr/0004).
fn norm_momentum(batches: usize) -> f64 {
    (2.0 / batches.max(1) as f64).clamp(NORM_MOMENTUM, USUAL_NORM_MOMENTUM)
}

/// Adam's first moment is corrected for its start, so its decay is not warmed up unless asked for (docs/adr/0003).
fn warmup_momentum(s: &Settings, algorithm: Algorithm, momentum: f64) -> f64 {
    match algorithm {
        Algorithm::AdamW if !s.is_given("warmup-momentum") => momentum,
        _ => s.warmup_momentum.min(momentum),
    }
}

/// Algorithm, rate, momentum and first bias rate. A value that the user gave is never changed.
fn optimizer(
    s: &Settings,
    images: usize,
    classes: usize,
    lines: &mut Vec<String>,
) -> (Algorithm, f64, f64, f64) {
    let given = |name: &str, value: f64, auto: f64| if s.is_given(name) { value } else { auto };
    match s.optimizer {
        Optimizer::Sgd => {
            lines.push("optimizer SGD (Nesterov)".into());
            (Algorithm::Sgd, s.lr0, s.momentum, s.warmup_bias_lr)
        }
        Optimizer::AdamW => {
            lines.push("optimizer AdamW".into());
            (Algorithm::AdamW, s.lr0, s.momentum, s.warmup_bias_lr)
        }
        Optimizer::MuSgd => {
            lines.push("optimizer MuSGD (Muon and SGD with Nesterov momentum)".into());
            (Algorithm::MuSgd, s.lr0, s.momentum, s.warmup_bias_lr)
        }
        Optimizer::Auto => {
            let steps = images.div_ceil(s.batch.max(s.nbs)) * s.epochs;
            let (algorithm, lr) = if steps > SHORT_RUN {
                lines.push(format!(
                    "optimizer auto: {steps} steps are more than {SHORT_RUN}, so MuSGD at 0.01"
                ));
                (Algorithm::MuSgd, 0.01)
            } else {
                let lr = (0.002 * 5.0 / (4 + classes) as f64 * 1e6).round() / 1e6;
                lines.push(format!(
                    "optimizer auto: {steps} steps are at most {SHORT_RUN}, so AdamW at {lr} = 0.01 / (4 + {classes} classes)"
                ));
                (Algorithm::AdamW, lr)
            };
            let kept: Vec<_> = ["lr0", "momentum", "warmup-bias-lr"]
                .into_iter()
                .filter(|n| s.is_given(n))
                .collect();
            if !kept.is_empty() {
                lines.push(format!("given, so auto leaves it: {}", kept.join(", ")));
            }
            (
                algorithm,
                given("lr0", s.lr0, lr),
                given("momentum", s.momentum, 0.9),
                given("warmup-bias-lr", s.warmup_bias_lr, 0.0),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::settings;

    #[test]
    fn auto_takes_adamw_for_short_runs_and_musgd_for_long_ones_and_says_so() {
        let p = resolve(&settings(&[]), 4, 1, 80);
        assert_eq!((p.algorithm, p.schedule.lr), (Algorithm::AdamW, 0.000_119));
        assert_eq!((p.schedule.momentum, p.schedule.warmup_bias_lr), (0.9, 0.0));
        let p = resolve(&settings(&[]), 118_287, 7393, 80);
        assert_eq!((p.algorithm, p.schedule.lr), (Algorithm::MuSgd, 0.01));
        assert_eq!((p.schedule.momentum, p.schedule.warmup_bias_lr), (0.9, 0.0));
        assert!(
            p.lines
                .iter()
                .any(|l| l.contains("184900 steps are more than 10000, so MuSGD at 0.01"))
        );
    }

    #[test]
    fn auto_never_overrides_a_given_value() {
        let p = resolve(
            &settings(&[
                ("lr0", "0.01"),
                ("momentum", "0.937"),
                ("warmup-bias-lr", "0.1"),
            ]),
            100,
            7,
            3,
        );
        assert_eq!(
            (
                p.schedule.lr,
                p.schedule.momentum,
                p.schedule.warmup_bias_lr
            ),
            (0.01, 0.937, 0.1)
        );
        assert!(
            p.lines
                .iter()
                .any(|l| l.contains("lr0, momentum, warmup-bias-lr"))
        );
    }

    #[test]
    fn the_rate_scales_with_the_images_of_a_step() {
        let lr = |o: &[(&str, &str)]| resolve(&settings(o), 1000, 10, 3).schedule.lr;
        let sgd = ("optimizer", "SGD");
        assert!((lr(&[sgd, ("batch", "256")]) - 0.04).abs() < 1e-12);
        assert!((lr(&[("optimizer", "AdamW"), ("batch", "256")]) - 0.02).abs() < 1e-12);
        assert!((lr(&[sgd, ("batch", "256"), ("lr-scaling", "none")]) - 0.01).abs() < 1e-12);
        assert!((lr(&[sgd, ("batch", "256"), ("lr-scaling", "sqrt")]) - 0.02).abs() < 1e-12);
        assert!((lr(&[sgd, ("batch", "16"), ("accumulate", "8")]) - 0.02).abs() < 1e-12);
    }

    #[test]
    fn muons_part_scales_with_the_root_and_the_rest_of_musgd_linearly_unless_forced() {
        let rates = |scaling: &str| {
            let o = [
                ("optimizer", "MuSGD"),
                ("batch", "256"),
                ("lr-scaling", scaling),
            ];
            let p = resolve(&settings(&o), 1000, 10, 3);
            (p.schedule.lr, p.schedule.lr * p.muon_rate)
        };
        for (scaling, sgd, muon) in [
            ("auto", 0.04, 0.004),
            ("linear", 0.04, 0.008),
            ("sqrt", 0.02, 0.004),
            ("none", 0.01, 0.002),
        ] {
            let got = rates(scaling);
            assert!(
                (got.0 - sgd).abs() < 1e-12 && (got.1 - muon).abs() < 1e-12,
                "{scaling} {got:?}"
            );
        }
        let p = resolve(&settings(&[("optimizer", "MuSGD")]), 1000, 10, 3);
        assert_eq!((p.muon_rate, p.schedule.warmup_momentum), (0.2, 0.8));
        assert!(
            p.lines.iter().any(|l| l.contains("Muon's part")),
            "{:?}",
            p.lines
        );
    }

    #[test]
    fn accumulation_reaches_the_reference_batch_unless_given() {
        let p = |o: &[(&str, &str)]| resolve(&settings(o), 1000, 10, 3);
        assert_eq!(p(&[("batch", "16")]).schedule.accumulate, 4);
        assert_eq!(p(&[("batch", "100")]).schedule.accumulate, 1);
        assert_eq!(
            p(&[("batch", "16"), ("accumulate", "1")]).size,
            StepSize {
                reference: 64,
                full: 16
            }
        );
    }

    #[test]
    fn lanes_are_four_or_as_many_as_ranks() {
        let of = |o: &[(&str, &str)], ranks| lanes(&settings(o), ranks, Device::Cpu);
        for ranks in [1, 2, 4] {
            assert_eq!(of(&[], ranks).unwrap(), (4, None));
        }
        let (three, line) = of(&[], 3).unwrap();
        assert!(three == 3 && line.unwrap().contains("3 lanes"));
        assert_eq!(of(&[], 8).unwrap().0, 8);
        assert_eq!(of(&[("lanes", "4")], 3).unwrap(), (4, None));
        let gpu = |o: &[(&str, &str)]| lanes(&settings(o), 2, Device::Cuda(0)).unwrap().0;
        assert_eq!(gpu(&[]), 2);
        assert_eq!(gpu(&[("lanes", "8")]), 2);
        assert_eq!(gpu(&[("lanes", "8"), ("deterministic", "true")]), 8);
        let e = of(&[("lanes", "2")], 3).unwrap_err().to_string();
        assert!(e.contains("2 lanes") && e.contains("3 ranks"), "{e}");
    }

    #[test]
    fn running_statistics_move_faster_only_where_epochs_are_short() {
        let m = |batches| resolve(&settings(&[]), 1000, batches, 3).norm_momentum;
        assert_eq!(m(1), 0.1);
        assert_eq!(m(13), 0.1);
        assert_eq!(m(40), 0.05);
        assert_eq!(m(7393), 0.03);
    }

    #[test]
    fn adam_keeps_its_momentum_in_warm_up_unless_it_is_given() {
        let m = |o: &[(&str, &str)]| resolve(&settings(o), 1000, 10, 3).schedule.warmup_momentum;
        assert_eq!(m(&[("optimizer", "AdamW")]), 0.937);
        assert_eq!(
            m(&[("optimizer", "AdamW"), ("warmup-momentum", "0.5")]),
            0.5
        );
        assert_eq!(m(&[("optimizer", "SGD")]), 0.8);
    }

    #[test]
    fn warm_up_is_at_most_half_the_run_and_says_so() {
        let p = resolve(&settings(&[("epochs", "4")]), 1000, 10, 3);
        assert_eq!(p.schedule.warmup, 20);
        assert!(p.lines.iter().any(|l| l.contains("2 epochs instead of 3")));
        assert_eq!(resolve(&settings(&[]), 1000, 10, 3).schedule.warmup, 30);
    }
}
