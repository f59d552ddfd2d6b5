//! How much of the machine training over ranks gets: training steps of several ranks beside independent runs.
//!
//! Every rank keeps a few batches in memory, so that no data are waited for, and all ways of training take turns, round
//! by round: ratios are those of one round.

use super::bench::Bed;
use super::engine::{Engine, Team, Turn};
use super::error::TrainError;
use super::gradients::Buckets;
use super::precision::Precision;
use super::session::{cores_of_rank, gains};
use super::spread::Spread;
use super::together::agree;
use crate::config::Settings;
use crate::data::batch::Batch;
use crate::data::loader::{Loader, LoaderConfig};
use crate::data::sampler::Shard;
use crate::dist::{Buffer, Call, ProcessGroup};
use crate::eval::micro_batch;
use crate::loss::head_weights;
use crate::model::init;
use crate::ops;
use crate::report::{Console, tables::table};
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Images of a rank where `--batch` is not given.
pub const IMAGES_OF_RANK: usize = 8;
/// Batches that each rank keeps in memory.
const BATCHES: usize = 3;
/// One rank trains with all threads, the others wait.
const LONG: Duration = Duration::from_secs(3600);

/// A way of training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Every rank for itself, at the same time: what the machine can do.
    Independent,
    /// One process with the threads of all ranks and the whole batch.
    OneProcess,
    /// Together.
    Ranks { sync_bn: bool, overlap: bool },
}

impl Way {
    const ALL: [Way; 6] = [
        Way::Independent,
        Way::Ranks {
            sync_bn: true,
            overlap: true,
        },
        Way::Ranks {
            sync_bn: true,
            overlap: false,
        },
        Way::Ranks {
            sync_bn: false,
            overlap: true,
        },
        Way::Ranks {
            sync_bn: false,
            overlap: false,
        },
        Way::OneProcess,
    ];

    fn name(self) -> String {
        match self {
            Self::Independent => "independent runs".into(),
            Self::OneProcess => "one process, all threads".into(),
            Self::Ranks { sync_bn, overlap } => format!(
                "ranks, {}, {}",
                if sync_bn { "SyncBN" } else { "no SyncBN" },
                if overlap { "overlap" } else { "no overlap" }
            ),
        }
    }
}

/// What was found of a way.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    pub way: Way,
    /// Of all ranks together.
    pub images_per_s: Spread,
    /// Throughput over that of the independent runs of the same round.
    pub of_independent: Spread,
    /// Milliseconds of a step that the slowest rank waited for others.
    pub exposed_ms: Spread,
    /// Milliseconds of a step by phases, on the slowest rank each.
    pub phases_ms: PhasesMs,
}

/// Milliseconds of the phases of a step, medians; waiting for other ranks is within them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PhasesMs {
    pub forward: f64,
    pub loss: f64,
    pub backward: f64,
    pub optimizer: f64,
}

/// What the bench found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scaling {
    pub model: String,
    pub imgsz: usize,
    pub ranks: usize,
    pub batch: usize,
    /// Of a rank.
    pub threads: usize,
    pub rounds: usize,
    pub steps: usize,
    pub bucket_mb: f64,
    pub isa: &'static str,
    pub engine: &'static str,
    pub rows: Vec<Row>,
}

/// Times `--steps` steps of every way in each of `rounds` rounds, after one round that is not counted. The result is on
/// rank 0.
///
/// # Errors
/// As training.
pub fn run(
    settings: &Settings,
    group: &Arc<dyn ProcessGroup>,
    rounds: usize,
    console: &Console,
) -> Result<Option<Scaling>, TrainError> {
    let ranks = group.size();
    let mut settings = settings.clone();
    if !settings.is_given("batch") {
        settings.batch = IMAGES_OF_RANK * ranks;
    }
    let settings = &settings;
    let threads = settings.threads_or_default(cores_of_rank(group.sharing()));
    let pool = |threads: usize| {
        rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .map_err(|e| TrainError::Threads {
                threads,
                reason: e.to_string(),
            })
    };
    let (own_pool, whole_pool) = (pool(threads)?, pool(threads * ranks)?);
    // one after the other: the first may have to draw the images
    let first = match group.rank() {
        0 => Some(Bed::new(settings, console)),
        _ => None,
    };
    let first = agree(&**group, "data set", first.transpose())?;
    let bed = first.map_or_else(|| Bed::new(settings, &Console::silent()), Ok);
    let bed = agree(&**group, "labels", bed)?;
    let (lanes, _) = super::plan::lanes(settings, ranks, crate::gpu::assigned())?;
    let shard = Shard {
        index: group.rank(),
        count: ranks,
        lanes,
    };
    let own = batches(settings, &bed, shard)?;
    let whole = match group.rank() {
        0 => batches(settings, &bed, Shard::WHOLE)?,
        _ => vec![],
    };
    let mut engines: Vec<(Way, Engine)> = Way::ALL
        .into_iter()
        .filter(|way| *way != Way::OneProcess || group.rank() == 0)
        .map(|way| {
            let team = match way {
                Way::Ranks { sync_bn, overlap } => Team {
                    group: group.clone(),
                    lanes,
                    sync_norms: sync_bn,
                    buckets: Buckets {
                        overlap,
                        ..Buckets::of(settings)
                    },
                    deterministic: settings.deterministic,
                },
                Way::Independent | Way::OneProcess => Team::alone(lanes),
            };
            Ok((way, engine(settings, &bed, team)?))
        })
        .collect::<Result<_, TrainError>>()?;
    // On devices phases are seconds of theirs only where each is waited for, which slows a step down: in a round of its own.
    let apart = engines.iter().any(|(_, e)| e.is_behind());
    let last = if apart { rounds + 1 } else { rounds };
    let mut found: Vec<Found> = vec![Found::default(); Way::ALL.len()];
    for round in 0..=last {
        if round > rounds {
            engines.iter_mut().for_each(|(_, e)| e.time_phases());
        }
        for (way, found) in Way::ALL.into_iter().zip(&mut found) {
            let here = engines.iter_mut().find(|(w, _)| *w == way);
            let call = Call::latency("ranks begin").within(LONG);
            group.barrier(call).wait()?;
            let start = Instant::now();
            let spent = match (way, here) {
                (Way::OneProcess, None) => Ok(Spent::default()),
                (Way::OneProcess, Some((_, e))) => {
                    whole_pool.install(|| steps(settings, &bed, e, &whole, settings.batch))
                }
                (_, None) => unreachable!("every rank has every other engine"),
                (Way::Independent, Some((_, e))) => own_pool.install(|| {
                    let images = own.first().map_or(0, Batch::len);
                    steps(settings, &bed, e, &own, images)
                }),
                (Way::Ranks { .. }, Some((_, e))) => {
                    own_pool.install(|| steps(settings, &bed, e, &own, settings.batch))
                }
            }?;
            let seconds = start.elapsed().as_secs_f64();
            let figures = [&[seconds][..], &spent].concat();
            let call = Call::latency("figures").within(LONG);
            let all = group.all_gather(call, Buffer::F64(figures)).wait()?;
            let all: Vec<Vec<f64>> = all.into_iter().filter_map(Buffer::into_vec).collect();
            let images = (settings.batch * settings.steps) as f64;
            let rate = match way {
                // each in its own time
                Way::Independent => {
                    let of_rank = |(r, t): (usize, &Vec<f64>)| {
                        let shard = Shard { index: r, ..shard };
                        shard.of(0..settings.batch).len() as f64 * settings.steps as f64 / t[0]
                    };
                    all.iter().enumerate().map(of_rank).sum()
                }
                Way::OneProcess => images / all[0][0],
                Way::Ranks { .. } => images / all.iter().map(|t| t[0]).fold(0.0, f64::max),
            };
            let slowest = |i: usize| all.iter().map(|t| t[i]).fold(0.0, f64::max);
            let ms = |i: usize| slowest(1 + i) * 1e3 / settings.steps as f64;
            if (1..=rounds).contains(&round) {
                found.rates.push(rate);
            }
            if round > 0 && (!apart || round > rounds) {
                found.spent.push(std::array::from_fn(ms));
            }
        }
    }
    if group.rank() != 0 {
        return Ok(None);
    }
    let independent = &found[0].rates;
    let row = |(way, found): (Way, &Found)| {
        let spread = |i: usize| Spread::of(found.spent.iter().map(|s| s[i]).collect());
        let ratios = found.rates.iter().zip(independent).map(|(f, i)| f / i);
        Row {
            way,
            images_per_s: Spread::of(found.rates.clone()),
            of_independent: Spread::of(ratios.collect()),
            exposed_ms: spread(0),
            phases_ms: PhasesMs {
                forward: spread(1).median,
                loss: spread(2).median,
                backward: spread(3).median,
                optimizer: spread(4).median,
            },
        }
    };
    Ok(Some(Scaling {
        model: bed.network.spec.name.clone(),
        imgsz: settings.imgsz,
        ranks,
        batch: settings.batch,
        threads,
        rounds,
        steps: settings.steps,
        bucket_mb: settings.bucket_mb,
        isa: ops::isa().name(),
        engine: group.engine(),
        rows: Way::ALL.into_iter().zip(&found).map(row).collect(),
    }))
}

/// Seconds of a round's steps: waiting for others, then forward, loss, backward, optimizer.
type Spent = [f64; 5];

/// Of a way, by rounds.
#[derive(Debug, Clone, Default)]
struct Found {
    /// Images a second.
    rates: Vec<f64>,
    /// As [`Spent`], in milliseconds of a step.
    spent: Vec<Spent>,
}

/// The first full batches of an epoch, as far as this shard holds them.
fn batches(settings: &Settings, bed: &Bed, shard: Shard) -> Result<Vec<Batch>, TrainError> {
    let config = LoaderConfig {
        shard,
        drop_last: true,
        ..super::session::loader_config(settings, usize::MAX, shard.count)
    };
    let loader = Loader::new(bed.train.clone(), config)?;
    let batches: Result<Vec<Batch>, _> = loader.train_epoch(0, 0).take(BATCHES).collect();
    let batches = batches?;
    if batches.is_empty() {
        return Err(TrainError::NoBatch {
            images: bed.train.images.len(),
            batch: settings.batch,
        });
    }
    Ok(batches)
}

fn engine(settings: &Settings, bed: &Bed, team: Team) -> Result<Engine, TrainError> {
    let network = bed.network.clone();
    let state = init::init(&network, settings.seed);
    let optimizer = bed.plan.optimizer(settings.weight_decay, &network.layout);
    let device = crate::gpu::assigned().burn_device();
    let (precision, _) = Precision::of(settings, &device)?;
    let engine = Engine::new(network, state, optimizer, gains(settings), &device, team);
    Ok(engine.with_precision(precision))
}

/// Trains `--steps` steps to their end.
fn steps(
    settings: &Settings,
    bed: &Bed,
    e: &mut Engine,
    batches: &[Batch],
    images: usize,
) -> Result<Spent, TrainError> {
    let mut spent = Spent::default();
    for step in 0..settings.steps {
        let batch = &batches[step % batches.len()];
        let not_finite = |what| TrainError::NotFinite {
            what,
            epoch: 1,
            batch: step,
            step: step as u64,
            files: vec![],
        };
        let turn = Turn {
            images,
            head_weights: head_weights(e.network.spec.one_to_one, 0, 2),
            ends_step: true,
        };
        e.accumulate(&micro_batch(batch), turn)?
            .ok_or_else(|| not_finite("loss"))?;
        let start = Instant::now();
        let rates = bed.plan.schedule.rates(0, 0);
        let done = e
            .step(&rates, bed.plan.size)?
            .ok_or_else(|| not_finite("gradient"))?;
        let p = e.phases;
        let optimizer = start.elapsed().as_secs_f64();
        let of_step = [
            p.waited + done.waited,
            p.forward,
            p.loss,
            p.backward,
            optimizer,
        ];
        spent.iter_mut().zip(of_step).for_each(|(sum, s)| *sum += s);
    }
    // a device may have work left
    let _ = e.settle()?;
    Ok(spent)
}

impl Scaling {
    /// As a person reads it.
    #[must_use]
    pub fn table(&self) -> String {
        let spread = |s: Spread, digits: usize| {
            format!(
                "{:.digits$} ({:.digits$} to {:.digits$})",
                s.median, s.min, s.max
            )
        };
        let rows: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|r| {
                vec![
                    r.way.name(),
                    spread(r.images_per_s, 2),
                    spread(r.of_independent, 3),
                    spread(r.exposed_ms, 1),
                    [
                        r.phases_ms.forward,
                        r.phases_ms.loss,
                        r.phases_ms.backward,
                        r.phases_ms.optimizer,
                    ]
                    .map(|ms| format!("{ms:.1}"))
                    .join(" "),
                ]
            })
            .collect();
        format!(
            "{}{} {}x{}, {} ranks ({}) of {} thread{}, batch {}, buckets of {} MiB, {}; {} rounds of {} steps, median (least to greatest)\n",
            table(
                &[
                    "way",
                    "images/s",
                    "of independent",
                    "exposed ms",
                    "forward, loss, backward, optimizer ms"
                ],
                &rows
            ),
            self.model,
            self.imgsz,
            self.imgsz,
            self.ranks,
            self.engine,
            self.threads,
            if self.threads == 1 { "" } else { "s" },
            self.batch,
            self.bucket_mb,
            self.isa,
            self.rounds,
            self.steps
        )
    }
}
