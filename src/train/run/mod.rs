//! The training loop.

mod epoch;
mod files;
mod restore;
mod validation;

use crate::config::Settings;
use crate::data::Split;
use crate::data::loader::{Loader, LoaderConfig};
use crate::data::sampler::Shard;
use crate::dist::{DistError, ProcessGroup};
use crate::eval::ValidateError;
use crate::loss::ShownLoss;
use crate::model::Network;
use crate::model::weights::Metadata;
use crate::report::Console;
use crate::report::events::EventLog;
use crate::report::results_csv::{ResultsCsv, ResultsRow, ThirdLoss, ValidationResults};
use crate::train::checkpoint::{Best, Position};
use crate::train::checkpoints::Saver;
use crate::train::engine::{Engine, Team};
use crate::train::error::TrainError;
use crate::train::gradients::Buckets;
use crate::train::plan::Plan;
use crate::train::precision::Precision;
use crate::train::prepare::{Prepared, prepare};
use crate::train::rank_stats::RankStats;
use crate::train::resume::{Resumed, RunLock};
use crate::train::session::{compute_pool, gains, loader_config};
use crate::train::start::Start;
use crate::train::status::Monitor;
use crate::train::together::{agree, leads};
use crate::train::{checkpoints, plots, resume, watch};
use burn::tensor::Device;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Which attempt of a run this is, and who wants to know of it.
pub struct Attempt<'a> {
    /// How often the run was started again after a failure.
    pub restarts: usize,
    /// What ended the attempt before.
    pub fault: String,
    /// Gets the run's folder on rank 0, once it can go on from there.
    pub began: &'a (dyn Fn(&Path) -> Result<(), DistError> + Sync),
}

/// Trains as `settings` say, or goes on with the run of `--resume`, as one rank of `group`; every rank calls it. Rank 0
/// writes and prints. The result is the run's folder.
///
/// # Errors
/// [`TrainError`], on every rank where one fails. `Interrupted` and unreadable images leave a checkpoint of the very
/// batch; whatever the error, the last checkpoint is whole.
pub fn run(
    settings: &Settings,
    group: &Arc<dyn ProcessGroup>,
    interrupted: &AtomicBool,
    console: &Console,
    attempt: &Attempt,
) -> Result<PathBuf, TrainError> {
    let silent = Console::silent();
    let console = if leads(&**group) { console } else { &silent };
    let resumed = match settings.resume.as_deref() {
        None | Some("false") => None,
        Some(word) => Some(resume::find(settings, word, &**group, console)?),
    };
    let settings = resumed.as_ref().map_or(settings, |r| &r.settings).clone();
    group.set_deadline(Duration::from_secs_f64(settings.timeout));
    let pool = compute_pool(&settings, group.sharing())?;
    let work = || {
        let run = Run::start(
            settings.clone(),
            resumed,
            group,
            interrupted,
            console,
            attempt,
        )?;
        let folder = run.folder.clone();
        let end = run.train();
        let drawn = match leads(&**group) {
            true => plots::draw_results(&settings, &folder, console),
            false => Ok(()),
        };
        end.and_then(|folder| drawn.map(|()| folder))
    };
    watch::panics(&**group, || pool.install(work))
}

/// The work of getting the next batch.
const BATCH: &str = "batch";

/// Networks without bins regress distances directly.
fn third_loss(network: &Network) -> ThirdLoss {
    if network.spec.reg_max == 1 {
        ThirdLoss::L1
    } else {
        ThirdLoss::Dfl
    }
}

struct Run<'a> {
    settings: Settings,
    interrupted: &'a AtomicBool,
    console: &'a Console,
    folder: PathBuf,
    plan: Plan,
    engine: Engine,
    device: Device,
    train: Loader,
    /// Training images, for messages.
    images: Arc<Split>,
    val: Option<(Arc<Split>, Loader)>,
    metadata: Metadata,
    csv: ResultsCsv,
    started: Instant,
    /// Seconds of training before this process.
    before: f64,
    position: Position,
    /// Loss of the epoch's part that is done.
    shown: ShownLoss,
    /// Images of the batch before, whose losses a device may still owe.
    behind: Vec<String>,
    best: Option<Best>,
    /// Hash of the data set.
    data: String,
    group: Arc<dyn ProcessGroup>,
    stats: RankStats,
    monitor: Monitor,
    events: EventLog,
    /// Of rank 0.
    saver: Option<Saver>,
    _lock: Option<RunLock>,
}

impl<'a> Run<'a> {
    fn start(
        mut settings: Settings,
        resumed: Option<Resumed>,
        group: &Arc<dyn ProcessGroup>,
        interrupted: &'a AtomicBool,
        console: &'a Console,
        attempt: &Attempt,
    ) -> Result<Self, TrainError> {
        let started = Instant::now();
        let g = &**group;
        let Prepared {
            data,
            train,
            val,
            hash,
            start:
                Start {
                    network,
                    state,
                    licence,
                },
            class_weights,
            plan,
            lanes,
        } = prepare(&settings, resumed.as_ref(), g, interrupted, console)?;
        // a run keeps its lanes, on whatever ranks it goes on
        settings.lanes = Some(lanes);
        let config = LoaderConfig {
            shard: Shard {
                index: g.rank(),
                count: g.size(),
                lanes,
            },
            ..loader_config(&settings, plan.mosaic_off_from, g.sharing())
        };
        let loader = Loader::new(train.clone(), config.clone())?;
        let val = match val {
            Some(v) => Some((v.clone(), Loader::new(v, config)?)),
            None => None,
        };
        let (folder, saver) = files::folder(&settings, &data, g)?;

        let third = third_loss(&network);
        let metadata = Metadata {
            category_ids: train.category_ids.clone(),
            imgsz: settings.imgsz,
            licence,
            model: network.spec.name.clone(),
            names: train.names.clone(),
            spec: network.spec.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
        };
        let device = crate::gpu::assigned().burn_device();
        let (precision, numbers) = Precision::of(&settings, &device)?;
        let optimizer = plan.optimizer(settings.weight_decay, &network.layout);
        let team = Team {
            group: group.clone(),
            lanes,
            sync_norms: settings.sync_bn,
            buckets: Buckets::of(&settings),
            deterministic: settings.deterministic,
        };
        let mut engine = Engine::new(network, state, optimizer, gains(&settings), &device, team);
        engine = engine.with_precision(precision);
        engine.norm_momentum = plan.norm_momentum;
        engine.class_weights = class_weights;
        let (lock, checkpoint, epochs) = match resumed {
            Some(r) => (r.lock, Some(r.checkpoint), r.epochs),
            None if leads(g) => (Some(RunLock::take(&folder)?), None, settings.epochs),
            None => (None, None, settings.epochs),
        };
        let events = match settings.json_log && leads(g) {
            true => watch::events(&folder, console)?,
            false => EventLog::none(),
        };
        let mut run = Self {
            monitor: Monitor::new(&folder, group, settings.timeout),
            events,
            csv: ResultsCsv::new(&folder.join("results.csv"), third, plan.algorithm.groups()),
            stats: RankStats::new(folder.join("ranks.csv"), attempt),
            engine,
            settings,
            interrupted,
            console,
            folder,
            plan,
            device,
            train: loader,
            images: train,
            val,
            metadata,
            started,
            before: 0.0,
            position: Position::default(),
            shown: ShownLoss::default(),
            behind: vec![],
            best: None,
            data: hash,
            group: group.clone(),
            saver,
            _lock: lock,
        };
        run.monitor.beat("first files");
        run.print_plan(&numbers);
        if let Some(c) = checkpoint {
            run.restore(&c, epochs)?;
        }
        // equal already, unless a file differs from rank to rank
        run.engine.broadcast()?;
        let written = run.on_first(|run| {
            run.write_options()?;
            plots::draw_labels(&run.settings, &run.folder, &run.images, console)
        });
        agree(g, "first files of the run", written)?;
        if run.settings.max_restarts > 0 {
            if run.position == Position::default() {
                run.checkpoint(false)?;
            }
            let told = run.on_first(|run| {
                run.saver.as_mut().map_or(Ok(()), Saver::wait)?;
                Ok((attempt.began)(&run.folder)?)
            });
            agree(g, "a run that can go on", told)?;
        }
        run.monitor.step(run.engine.optimizer.steps);
        run.events.event(
            "start",
            json!({
                "version": env!("CARGO_PKG_VERSION"),
                "folder": run.folder,
                "model": run.metadata.model,
                "data": run.settings.data,
                "ranks": g.size(),
                "restarts": crate::dist::launch::restarts(),
                "lanes": lanes,
                "batch": run.settings.batch,
                "epochs": run.epochs(),
                "epoch": run.position.epoch + 1,
                "step": run.engine.optimizer.steps,
            }),
        );
        Ok(run)
    }

    /// Whether this rank writes.
    fn leads(&self) -> bool {
        leads(&*self.group)
    }

    /// What only rank 0 does.
    fn on_first(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        if self.leads() { work(self) } else { Ok(()) }
    }

    fn train(mut self) -> Result<PathBuf, TrainError> {
        let end = self.epochs_and_end();
        let saved = match &end {
            // nothing is wrong with the weights: they are kept as they are now
            Err(
                TrainError::Interrupted
                | TrainError::Loader(_)
                | TrainError::OtherRank { what: BATCH, .. }
                | TrainError::Validate(ValidateError::Peer { .. }),
            ) => self.checkpoint(false),
            _ => Ok(()),
        };
        watch::tell(&*self.group, &end);
        let saved = saved.and_then(|()| self.saver.as_mut().map_or(Ok(()), Saver::wait));
        if end.is_err()
            && self.leads()
            && checkpoints::list(&self.folder).is_ok_and(|c| !c.is_empty())
        {
            self.console.note(format!(
                "the run can go on: yolo-train --resume {}",
                self.folder.display()
            ));
        }
        let end = end.and(saved);
        watch::end(
            &end,
            &self.folder,
            &*self.group,
            &self.monitor,
            &self.events,
            self.console,
        );
        end.map(|()| self.folder)
    }

    fn epochs_and_end(&mut self) -> Result<(), TrainError> {
        while !self.is_over() {
            self.whole_epoch()?;
        }
        if self.position.epoch < self.epochs() {
            self.console.note(format!(
                "no better AP for {} epochs (--patience): training ends",
                self.settings.patience
            ));
        }
        self.finish()?;
        self.checkpoint(true)
    }

    fn is_over(&self) -> bool {
        let (done, patience) = (self.position.epoch, self.settings.patience);
        let waited = match self.best {
            Some(best) if self.val.is_some() => done.saturating_sub(best.epoch + 1),
            _ => 0,
        };
        done >= self.epochs() || (patience > 0 && waited >= patience)
    }

    /// What is left of the current epoch, its validation, and everything that is written after it.
    fn whole_epoch(&mut self) -> Result<(), TrainError> {
        let epoch = self.position.epoch;
        self.monitor.epoch(epoch + 1, self.epochs());
        self.epoch(epoch)?;
        let train = self.shown.items(self.engine.gains);
        let gains = self.engine.gains;
        let row = self.validate_average()?.map(|v| {
            let f = v.figures;
            ValidationResults {
                precision: f.precision,
                recall: f.recall,
                coco: f.coco,
                losses: f.loss.items(gains),
            }
        });
        let schedule = &self.plan.schedule;
        let rates = schedule.rates(epoch, schedule.batches - 1);
        let row_of_epoch = ResultsRow {
            epoch: epoch + 1,
            seconds: self.seconds(),
            train,
            validation: row,
            learning_rates: self.engine.optimizer.group_rates(&rates),
        };
        let best = self.is_best(epoch, row.map(|r| r.coco[0]));
        self.events.event(
            "epoch",
            json!({
                "epoch": epoch + 1,
                "epochs": self.epochs(),
                "step": self.engine.optimizer.steps,
                "seconds": row_of_epoch.seconds,
                "loss": train,
                "learning_rates": row_of_epoch.learning_rates,
                "best": best,
            }),
        );
        self.monitor.beat("files of an epoch");
        let written = self.on_first(|run| run.write_epoch(epoch, &row_of_epoch, best));
        agree(&*self.group, "files of an epoch", written)?;
        self.position = Position {
            epoch: epoch + 1,
            batch: 0,
        };
        self.shown = ShownLoss::default();
        self.keep_to_time()?;
        self.checkpoint(false)
    }
}
