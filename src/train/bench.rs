//! Times training steps as a run does them.

use super::engine::{Engine, Phases, Team, Turn};
use super::error::TrainError;
use super::plan::{self, Plan};
use super::precision::Precision;
use super::session::{Data, compute_pool, gains, loader_config};
use super::spread::Spread;
use crate::config::Settings;
use crate::config::dataset::SplitName;
use crate::config::model::ModelSpec;
use crate::data::Split;
use crate::data::loader::Loader;
use crate::eval::micro_batch;
use crate::loss::head_weights;
use crate::model::{Network, init};
use crate::ops;
use crate::ops::cpu::peak::peak_flops;
use crate::report::{Console, peak_memory, tables::table};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Median and least of a phase, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Milliseconds {
    pub median: f64,
    pub min: f64,
}

/// What a bench found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bench {
    pub model: String,
    pub imgsz: usize,
    pub batch: usize,
    pub threads: usize,
    pub steps: usize,
    /// `cpu`, `cuda:0`, …
    pub device: String,
    /// Kernels of the CPU.
    pub isa: &'static str,
    pub precision: Precision,
    /// Of the median step, data included.
    pub images_per_s: f64,
    pub data_ms: Milliseconds,
    pub forward_ms: Milliseconds,
    pub loss_ms: Milliseconds,
    pub backward_ms: Milliseconds,
    pub optimizer_ms: Milliseconds,
    pub step_ms: Milliseconds,
    /// From the start of the process's work to the end of the first step.
    pub first_step_s: f64,
    pub peak_memory_bytes: Option<u64>,
    /// Convolutions and matrix products, forward and both gradients, in the median step.
    pub gflops: f64,
    /// Of all threads of the CPU in multiply-adds that touch no memory, where it trains.
    pub peak_gflops: Option<f64>,
    pub share_of_peak: Option<f64>,
}

fn milliseconds(seconds: Vec<f64>) -> Milliseconds {
    let Spread { median, min, .. } = Spread::of(seconds);
    Milliseconds {
        median: median * 1e3,
        min: min * 1e3,
    }
}

/// What is trained in a bench.
pub(super) struct Bed {
    pub train: Arc<Split>,
    pub network: Network,
    pub plan: Plan,
}

impl Bed {
    /// Reads the training images of `--data`, builds `--model`.
    ///
    /// # Errors
    /// As training.
    pub fn new(settings: &Settings, console: &Console) -> Result<Self, TrainError> {
        let spec = ModelSpec::resolve(&settings.model)?;
        let interrupted = AtomicBool::new(false);
        let splits = [SplitName::Train];
        let mut data = Data::open(settings, "bench", &splits, &interrupted, console)?;
        let train = Arc::new(data.split(SplitName::Train, None, console)?);
        let network = Network::new(spec, train.names.len());
        let images = train.images.len();
        let batches = images.div_ceil(settings.batch);
        let plan = plan::resolve(settings, images, batches, train.names.len());
        Ok(Self {
            train,
            network,
            plan,
        })
    }
}

/// Steps that are not counted: first uses of memory, and of a GPU's kernels.
const WARM: usize = 2;
const WARM_GPU: usize = 5;
/// Steps on a GPU whose phases are waited for, after those that are timed as a run does them.
const PHASES: usize = 5;

/// Trains `--steps` steps of one micro-batch each, after some that are not counted.
///
/// # Errors
/// As training.
pub fn run(settings: &Settings, console: &Console) -> Result<Bench, TrainError> {
    let start = Instant::now();
    let pool = compute_pool(settings, 1)?;
    pool.install(|| {
        let Bed {
            train,
            network,
            plan,
        } = Bed::new(settings, console)?;
        let flops: u64 = network.table(settings.imgsz).iter().map(|r| r.flops).sum();
        let state = init::init(&network, settings.seed);
        let loader = Loader::new(train, loader_config(settings, usize::MAX, 1))?;
        let batches = loader.batches_per_epoch();
        let optimizer = plan.optimizer(settings.weight_decay, &network.layout);
        let weights = head_weights(network.spec.one_to_one, 0, 2);
        let team = Team::alone(plan::lanes(settings, 1, crate::gpu::assigned())?.0);
        let device = crate::gpu::assigned().burn_device();
        let (precision, _) = Precision::of(settings, &device)?;
        let mut engine = Engine::new(network, state, optimizer, gains(settings), &device, team)
            .with_precision(precision);
        let behind = engine.is_behind();
        let warm = if behind { WARM_GPU } else { WARM };
        let timed = warm..warm + settings.steps;
        let end = timed.end + if behind { PHASES } else { 0 };
        let (mut phases, mut waits, mut optimizer_s, mut all) = (vec![], vec![], vec![], vec![]);
        let mut first_step_s = 0.0;
        let mut epoch = 0;
        let mut stream = loader.train_epoch(epoch, 0);
        while all.len() < end {
            if behind && all.len() == timed.end {
                let _ = engine.settle()?;
                engine.time_phases();
            }
            let begin = Instant::now();
            let batch = match stream.next() {
                Some(batch) => batch?,
                None => {
                    epoch += 1;
                    stream = loader.train_epoch(epoch, 0);
                    continue;
                }
            };
            // a shorter batch at an epoch's end would be another amount of work
            if batch.len() < settings.batch && all.len() < batches.saturating_sub(1) {
                continue;
            }
            waits.push(begin.elapsed().as_secs_f64());
            let micro = micro_batch(&batch);
            let not_finite = |what| TrainError::NotFinite {
                what,
                epoch,
                batch: all.len(),
                step: 0,
                files: vec![],
            };
            let turn = Turn {
                images: batch.len(),
                head_weights: weights,
                ends_step: true,
            };
            engine
                .accumulate(&micro, turn)?
                .ok_or_else(|| not_finite("loss"))?;
            phases.push(engine.phases);
            let stepped = Instant::now();
            let rates = plan.schedule.rates(0, 0);
            engine
                .step(&rates, plan.size)?
                .ok_or_else(|| not_finite("gradient"))?;
            optimizer_s.push(stepped.elapsed().as_secs_f64());
            all.push(begin.elapsed().as_secs_f64());
            if all.len() == 1 {
                first_step_s = start.elapsed().as_secs_f64();
            }
        }
        let of_phases = if behind {
            timed.end..end
        } else {
            timed.clone()
        };
        let of =
            |f: fn(&Phases) -> f64| milliseconds(phases[of_phases.clone()].iter().map(f).collect());
        let step_ms = milliseconds(all[timed.clone()].to_vec());
        let seconds = step_ms.median / 1e3;
        let gflops = 3.0 * flops as f64 * settings.batch as f64 / seconds / 1e9;
        let peak_gflops = (!behind).then(|| peak_flops(ops::isa()) / 1e9);
        Ok(Bench {
            model: engine.network.spec.name.clone(),
            imgsz: settings.imgsz,
            batch: settings.batch,
            threads: rayon::current_num_threads(),
            steps: settings.steps,
            device: crate::gpu::assigned().to_string(),
            isa: ops::isa().name(),
            precision,
            images_per_s: settings.batch as f64 / seconds,
            data_ms: milliseconds(waits[timed].to_vec()),
            forward_ms: of(|p| p.forward),
            loss_ms: of(|p| p.loss),
            backward_ms: of(|p| p.backward),
            optimizer_ms: milliseconds(optimizer_s[of_phases.clone()].to_vec()),
            step_ms,
            first_step_s,
            peak_memory_bytes: peak_memory(),
            gflops,
            peak_gflops,
            share_of_peak: peak_gflops.map(|p| gflops / p),
        })
    })
}

impl Bench {
    /// As a person reads it.
    #[must_use]
    pub fn table(&self) -> String {
        let row = |name: &str, m: Milliseconds| {
            vec![
                name.into(),
                format!("{:.2}", m.median),
                format!("{:.2}", m.min),
            ]
        };
        let rows = [
            row("data (waiting)", self.data_ms),
            row("forward", self.forward_ms),
            row("loss", self.loss_ms),
            row("backward", self.backward_ms),
            row("optimizer", self.optimizer_ms),
            row("step", self.step_ms),
        ];
        let memory = self.peak_memory_bytes.map_or("-".into(), |m| {
            format!("{:.0} MiB", m as f64 / f64::from(1 << 20))
        });
        let peak = match (self.share_of_peak, self.peak_gflops) {
            (Some(share), Some(peak)) => format!(
                ", {:.1} % of {peak:.1} (multiply-adds without memory)",
                100.0 * share
            ),
            _ => String::new(),
        };
        let kernels = match self.device.as_str() {
            "cpu" => format!("{} threads, {}", self.threads, self.isa),
            device => format!("{device}, {:?}", self.precision),
        };
        format!(
            "{}{} {}x{}, batch {}, {kernels}: {:.2} images/s\n{:.1} GFLOP/s{peak}\n\
             peak memory {memory}, first step after {:.2} s\n",
            table(&["milliseconds", "median", "min"], &rows),
            self.model,
            self.imgsz,
            self.imgsz,
            self.batch,
            self.images_per_s,
            self.gflops,
            self.first_step_s,
        )
    }
}
