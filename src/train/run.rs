//! The training loop.

use super::checkpoint::{Best, Checkpoint, Header, Position, to_bytes as checkpoint_bytes};
use super::checkpoints::{self, Saver};
use super::checksum;
use super::engine::{Engine, Team, Turn};
use super::error::TrainError;
use super::fault::{self, Place};
use super::gradients::Buckets;
use super::plan::Plan;
use super::plots;
use super::prepare::{Prepared, prepare};
use super::rank_stats::{self, RankStats};
use super::resume::{self, Resumed, RunLock};
use super::session::Data;
use super::session::{
    choice, compute_pool, cores_of_rank, gains, loader_config, print_metrics, write,
};
use super::start::Start;
use super::status::Monitor;
use super::together::{agree, all_texts, from_first, leads, same_path};
use super::watch;
use crate::config::Settings;
use crate::data::Split;
use crate::data::batch::Batch;
use crate::data::loader::{Loader, LoaderConfig};
use crate::data::sampler::{Shard, mosaic_off_from};
use crate::dist::{Buffer, Call, DistError, ProcessGroup};
use crate::eval::{BatchPictures, Inference, ValidateError, Validated, micro_batch, validate};
use crate::loss::{ShownLoss, head_weights};
use crate::model::Network;
use crate::model::init::State;
use crate::model::weights::{Metadata, WeightsFile, to_bytes};
use crate::ops;
use crate::report::Console;
use crate::report::events::EventLog;
use crate::report::results_csv::{ResultsCsv, ResultsRow, ThirdLoss, ValidationResults};
use burn::tensor::Device;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
        let (folder, saver) = folder(&settings, &data, g)?;

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
        let device = Device::flex();
        let optimizer = plan.optimizer(settings.weight_decay, &network.layout);
        let team = Team {
            group: group.clone(),
            lanes,
            sync_norms: settings.sync_bn,
            buckets: Buckets::of(&settings),
        };
        let mut engine = Engine::new(network, state, optimizer, gains(&settings), &device, team);
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
            best: None,
            data: hash,
            group: group.clone(),
            saver,
            _lock: lock,
        };
        run.monitor.beat("first files");
        run.print_plan();
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

    /// Options as they are now, for people and for `--cfg`.
    fn write_options(&self) -> Result<(), TrainError> {
        let mut now = self.settings.clone();
        now.epochs = self.epochs();
        write(&self.folder.join("args.yaml"), now.to_yaml().as_bytes())
    }

    /// Goes on where a checkpoint was written.
    fn restore(&mut self, checkpoint: &Checkpoint, epochs: usize) -> Result<(), TrainError> {
        let h = &checkpoint.header;
        self.engine.restore(checkpoint)?;
        (self.position, self.shown, self.best) = (h.position, h.loss, h.best);
        self.before = h.seconds;
        self.metadata = h.metadata.clone();
        self.set_epochs(h.epochs);
        let Position { epoch, batch } = self.position;
        if epochs != h.epochs {
            if epochs < epoch {
                return Err(TrainError::Finished {
                    run: self.folder.clone(),
                    reason: format!("{epoch} epochs are done, --epochs is {epochs}"),
                });
            }
            self.set_epochs(epochs);
            self.console.note(format!(
                "epochs: {epochs} instead of {}; from epoch {} on, rate, head weights and mosaic follow the schedule of {epochs} epochs",
                h.epochs,
                epoch + 1
            ));
        }
        if h.finished && self.is_over() {
            let reason = if epoch >= self.epochs() {
                format!("all {} epochs are done", self.epochs())
            } else {
                format!("no better AP for {} epochs", self.settings.patience)
            };
            return Err(TrainError::Finished {
                run: self.folder.clone(),
                reason,
            });
        }
        if h.isa != ops::isa().name() {
            self.console.warn(format!(
                "the run began with {} kernels and goes on with {}, which round differently: the result is not that of an uninterrupted run",
                h.isa,
                ops::isa().name()
            ));
        }
        let path = self.folder.join("results.csv");
        let on_disk = self.on_first(|run| {
            let go_on = run.csv.go_on(&h.results);
            go_on.map_err(|source| TrainError::Write { path, source })
        });
        agree(&*self.group, "results of a run that goes on", on_disk)?;
        self.console.note(format!(
            "{} goes on at epoch {}, batch {} of {}, after {} steps and {:.1} s",
            self.folder.display(),
            epoch + 1,
            batch + 1,
            self.plan.schedule.batches,
            h.counters.steps,
            h.seconds
        ));
        Ok(())
    }

    /// Epochs of the schedule; `--resume RUN --epochs N` and `--time` change them.
    fn epochs(&self) -> usize {
        self.plan.schedule.epochs
    }

    fn set_epochs(&mut self, epochs: usize) {
        self.plan.schedule.epochs = epochs;
        let (from, _) = mosaic_off_from(epochs, self.settings.close_mosaic);
        self.plan.mosaic_off_from = from;
        self.train.set_mosaic_off_from(from);
    }

    /// Seconds of training, with those before a resume.
    fn seconds(&self) -> f64 {
        self.before + self.started.elapsed().as_secs_f64()
    }

    /// Starts to write a checkpoint of this very moment. All ranks call it.
    fn checkpoint(&mut self, finished: bool) -> Result<(), TrainError> {
        self.monitor.beat("checkpoint");
        fault::at(&*self.group, Place::Checkpoint)?;
        let pending = self.engine.pending_gradient()?;
        if !self.leads() {
            return Ok(());
        }
        let mut arrays = self.engine.arrays();
        if !pending.is_empty() {
            arrays.push((Engine::PENDING.into(), &pending));
        }
        let header = Header {
            version: env!("CARGO_PKG_VERSION").into(),
            isa: ops::isa().name().into(),
            settings: self.settings.to_yaml(),
            epochs: self.epochs(),
            position: self.position,
            loss: self.shown,
            best: self.best,
            seconds: self.seconds(),
            results: self.csv.text().into(),
            counters: self.engine.counters(),
            metadata: self.metadata.clone(),
            data: self.data.clone(),
            finished,
            sections: arrays.iter().map(|(n, a)| (n.clone(), a.len())).collect(),
        };
        let values: Vec<&[f32]> = arrays.iter().map(|a| a.1).collect();
        let bytes = checkpoint_bytes(&header, &values);
        self.events.event(
            "checkpoint",
            json!({"epoch": self.position.epoch, "batch": self.position.batch, "step": self.engine.optimizer.steps, "bytes": bytes.len()}),
        );
        match &mut self.saver {
            Some(saver) => saver.save(self.position, bytes),
            None => Ok(()),
        }
    }

    fn print_plan(&self) {
        let s = &self.settings;
        let n = &self.engine.network;
        let flops: u64 = n.table(s.imgsz).iter().map(|r| r.flops).sum();
        self.console.note(format!(
            "{}: {} parameters, {:.1} GFLOPs at {}, {} classes",
            n.spec.name,
            n.parameters(),
            flops as f64 / 1e9,
            s.imgsz,
            n.classes
        ));
        for line in &self.plan.lines {
            self.console.note(line);
        }
        let ranks = self.group.size();
        let lanes = self.engine.team().lanes;
        if ranks > 1 {
            let parts: Vec<String> = (0..ranks)
                .map(|index| {
                    let shard = Shard {
                        index,
                        count: ranks,
                        lanes,
                    };
                    shard.of(0..s.batch).len().to_string()
                })
                .collect();
            self.console.note(format!(
                "{ranks} ranks ({}): batch {} = {} images; batch norm {}; gradients in parts of {} MiB",
                self.group.engine(),
                s.batch,
                parts.join(" + "),
                if s.sync_bn {
                    "over all ranks (SyncBN)"
                } else {
                    "of each rank's images"
                },
                s.bucket_mb
            ));
        }
        let cores = cores_of_rank(self.group.sharing());
        self.console.note(format!(
            "device cpu ({}), {} threads, {} workers{}, {lanes} lanes, seed {}; {} epochs into {}",
            ops::isa().name(),
            s.threads_or_default(cores),
            s.workers_or_default(cores),
            if ranks > 1 { " a rank" } else { "" },
            s.seed,
            s.epochs,
            self.folder.display()
        ));
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

    fn write_epoch(
        &mut self,
        epoch: usize,
        row: &ResultsRow,
        best: bool,
    ) -> Result<(), TrainError> {
        let path = self.folder.join("results.csv");
        self.csv
            .push(row)
            .map_err(|source| TrainError::Write { path, source })?;
        self.save("last")?;
        if best {
            self.save("best")?;
        }
        let period = self.settings.save_period;
        if period > 0 && (epoch + 1) as i64 % period == 0 {
            self.save(&format!("epoch{}", epoch + 1))?;
        }
        plots::refresh_results(&self.settings, &self.folder, self.console)
    }

    /// With `--time`: as many epochs as fit into it, judged by those that are done.
    fn keep_to_time(&mut self) -> Result<(), TrainError> {
        let Some(hours) = self.settings.time else {
            return Ok(());
        };
        let done = self.position.epoch;
        let epochs = ((hours * 3600.0 * done as f64 / self.seconds()) as usize).max(done);
        // clocks differ
        let epochs = from_first(
            &*self.group,
            "epochs that fit",
            epochs.to_le_bytes().to_vec(),
        )?;
        let epochs = epochs.try_into().map_or(done, usize::from_le_bytes);
        if epochs != self.epochs() {
            self.set_epochs(epochs);
            self.on_first(|run| run.write_options())?;
            self.console.note(format!(
                "{hours} hours (--time) are enough for {epochs} epochs, {done} are done"
            ));
        }
        Ok(())
    }

    /// The batches of an epoch from the current position on.
    fn epoch(&mut self, epoch: usize) -> Result<(), TrainError> {
        let weights = head_weights(self.engine.network.spec.one_to_one, epoch, self.epochs());
        let third = third_loss(&self.engine.network).name();
        let batches = self.train.batches_per_epoch();
        let images = |b| {
            (0..b)
                .map(|b| self.train.global_batch_len(b))
                .sum::<usize>()
        };
        let first = self.position.batch;
        let (mut done, total) = (images(first), images(batches));
        let mut bar = self.console.epoch_bar(epoch + 1, self.epochs(), total);
        let gains = self.engine.gains;
        let group = self.group.clone();
        let mut stream = self.train.train_epoch(epoch, first);
        for i in first..batches {
            let began = Instant::now();
            self.monitor.beat(BATCH);
            let batch = match self.interrupted.load(Ordering::Relaxed) {
                true => Err(TrainError::Interrupted),
                false => stream.next().transpose().map_err(TrainError::from),
            };
            let data = began.elapsed().as_secs_f64();
            // every rank trains this batch, or none
            let batch = agree(&*group, BATCH, batch)?;
            let agreed = began.elapsed().as_secs_f64() - data;
            let Some(batch) = batch else { break };
            if self.settings.plots && self.leads() {
                BatchPictures::new(&self.folder, &self.images, self.console).training(
                    (epoch, i),
                    batches,
                    self.plan.mosaic_off_from,
                    &batch,
                );
            }
            let step = self.engine.optimizer.steps;
            let schedule = &self.plan.schedule;
            let images = self.train.global_batch_len(i);
            let turn = Turn {
                images,
                head_weights: weights,
                ends_step: schedule.ends_step(epoch, i, self.engine.pending() + 1),
            };
            let rates = schedule.rates(epoch, i);
            self.monitor.beat("forward");
            fault::at(&*group, Place::Forward)?;
            let loss = self.engine.accumulate(&micro_batch(&batch), turn)?;
            let Some(loss) = loss else {
                return Err(self.not_finite("loss", epoch, i, step, &batch));
            };
            self.shown.add(loss);
            let mut waited = agreed + self.engine.phases.waited;
            if turn.ends_step {
                let Some(done) = self.engine.step(&rates, self.plan.size)? else {
                    return Err(self.not_finite("gradient", epoch, i, step, &batch));
                };
                waited += done.waited;
            }
            self.position.batch = i + 1;
            done += images;
            let all = began.elapsed().as_secs_f64();
            self.stats.add(batch.len(), data, waited, all);
            self.monitor.add(batch.len(), data, waited);
            let [b, c, d] = self.shown.items(gains);
            let extra = format!(
                "{} objects, {}x{}",
                batch.boxes.len(),
                batch.height,
                batch.width
            );
            bar.tick(done, &[("box", b), ("cls", c), (third, d)], &extra);
            if turn.ends_step {
                self.after_step()?;
            }
        }
        bar.finish();
        Ok(())
    }

    /// What is due every so many steps.
    fn after_step(&mut self) -> Result<(), TrainError> {
        let steps = self.engine.optimizer.steps;
        self.monitor.step(steps);
        let every = self.settings.save_steps as u64;
        if every > 0 && steps.is_multiple_of(every) {
            self.checkpoint(false)?;
        }
        if steps.is_multiple_of(rank_stats::STEPS) && self.events.is_wanted() {
            let gains = self.engine.gains;
            self.events.event(
                "steps",
                json!({
                    "epoch": self.position.epoch + 1,
                    "batch": self.position.batch,
                    "step": steps,
                    "seconds": self.seconds(),
                    "loss": self.shown.items(gains),
                    "images_seen": self.engine.images_seen,
                }),
            );
        }
        if self.group.size() == 1 {
            return Ok(());
        }
        if steps.is_multiple_of(rank_stats::STEPS) {
            self.stats.row(&*self.group, steps, self.console)?;
        }
        if steps.is_multiple_of(checksum::STEPS) {
            let e = &self.engine;
            let states = [("weights", &e.state), ("average", &e.average)];
            checksum::compare(&*self.group, &e.network.layout, states, steps)?;
        }
        Ok(())
    }

    /// The error of a loss or gradient that is not finite, with the images of all ranks.
    fn not_finite(
        &self,
        what: &'static str,
        epoch: usize,
        batch: usize,
        step: u64,
        images: &Batch,
    ) -> TrainError {
        let own = images
            .images
            .iter()
            .map(|b| self.images.images[b.index].file_name.clone())
            .collect();
        match all_texts(&*self.group, "images of a batch", own) {
            Ok(files) => TrainError::NotFinite {
                what,
                epoch: epoch + 1,
                batch,
                step,
                files,
            },
            Err(e) => e,
        }
    }

    /// Validates the averaged weights.
    fn validate_average(&self) -> Result<Option<Validated<'_>>, TrainError> {
        self.validate(&self.engine.average)
    }

    fn validate(&self, state: &State) -> Result<Option<Validated<'_>>, TrainError> {
        let Some((split, loader)) = &self.val else {
            return Ok(None);
        };
        self.monitor.beat("validating");
        fault::at(&*self.group, Place::Validation)?;
        let network = &self.engine.network;
        let inference = Inference::new(network, state, self.engine.gains, &self.device)
            .with_class_weights(self.engine.class_weights.clone());
        let (rank, ranks) = (self.group.rank(), self.group.size());
        let batches = loader.val_batches_of(self.settings.batch, rank, ranks);
        let mut bar = self.console.bar("  validation", batches.images());
        let v = validate(
            &*self.group,
            &inference,
            split,
            batches,
            &choice(&self.settings),
            self.interrupted,
            |done| {
                self.monitor.beat("validating");
                bar.tick(done, &[], "");
            },
        )?;
        bar.clear();
        let f = &v.figures;
        self.events.event(
            "validation",
            json!({
                "epoch": self.position.epoch + 1,
                "images": f.images,
                "instances": f.instances,
                "precision": f.precision,
                "recall": f.recall,
                "map50": f.coco[1],
                "map50_95": f.coco[0],
            }),
        );
        self.console.note(format!(
            "  validation: {} images, {} objects: P {:.3}, R {:.3}, AP50 {:.4}, AP50-95 {:.4}",
            f.images, f.instances, f.precision, f.recall, f.coco[1], f.coco[0]
        ));
        Ok(Some(v))
    }

    fn is_best(&mut self, epoch: usize, ap: Option<f64>) -> bool {
        // without validation the last epoch is the best; the first of equals wins
        let better = match (ap, self.best) {
            (Some(ap), Some(best)) => ap > best.ap,
            _ => true,
        };
        if better {
            self.best = Some(Best {
                epoch,
                ap: ap.unwrap_or(0.0),
            });
        }
        better
    }

    fn save(&self, name: &str) -> Result<(), TrainError> {
        let path = self
            .folder
            .join("weights")
            .join(format!("{name}.safetensors"));
        let bytes = to_bytes(
            &self.engine.network.layout,
            &self.engine.average,
            &self.metadata,
        )
        .map_err(|e| TrainError::Serialize {
            path: path.clone(),
            reason: e.to_string(),
        })?;
        write(&path, &bytes)
    }

    /// Validates the best weights once more, from their file, and prints their figures.
    fn finish(&mut self) -> Result<(), TrainError> {
        let path = self.folder.join("weights/best.safetensors");
        let network = &self.engine.network;
        let read = || -> Result<State, TrainError> {
            let file = WeightsFile::open(&path)?;
            Ok(file.load(&network.layout, &network.spec.name, network.classes)?)
        };
        let best = self.leads().then(read).transpose();
        let best = agree(&*self.group, "best weights", best)?;
        let best = self.same_state(best)?;
        if let Some(whole) = self.validate(&best)?.map(|v| v.whole) {
            self.monitor.beat("files of the last validation");
            let written = whole.map_or(Ok(()), |v| -> Result<(), TrainError> {
                v.predictions.write(&self.folder.join("predictions.json"))?;
                if let (Some((split, loader)), true) = (&self.val, self.settings.plots) {
                    BatchPictures::new(&self.folder, split, self.console).validation(
                        loader,
                        self.settings.batch,
                        &v.predictions,
                    );
                }
                print_metrics(self.console, &v.metrics);
                plots::draw_validation(&self.settings, &self.folder, &v, self.console)
            });
            agree(&*self.group, "files of the last validation", written)?;
        }
        let network = &self.engine.network;
        let trained: usize = network
            .layout
            .params
            .iter()
            .filter(|p| p.trained())
            .map(|p| p.len())
            .sum();
        let best = self.best.map_or(0, |b| b.epoch + 1);
        self.console.note(format!(
            "{trained} parameters trained in {:.1} s; best epoch {best}; results in {}",
            self.seconds(),
            self.folder.display()
        ));
        Ok(())
    }

    /// Rank 0's weights, on every rank.
    fn same_state(&self, first: Option<State>) -> Result<State, TrainError> {
        let mut state = first.unwrap_or_else(|| self.engine.average.clone());
        if self.group.size() > 1 {
            for values in [&mut state.params, &mut state.buffers] {
                let call = Call::bulk("best weights");
                let own = Buffer::F32(std::mem::take(values));
                let got = self.group.broadcast(call, 0, own).wait()?;
                *values = got.into_vec().expect("what was given was float32");
            }
        }
        Ok(state)
    }
}

/// The run's folder, which rank 0 makes, and what writes its checkpoints.
fn folder(
    settings: &Settings,
    data: &Data,
    group: &dyn ProcessGroup,
) -> Result<(PathBuf, Option<Saver>), TrainError> {
    let make = || -> Result<(PathBuf, Saver), TrainError> {
        let folder = data.create_folder()?;
        let weights = folder.join("weights");
        std::fs::create_dir_all(&weights).map_err(|source| TrainError::Write {
            path: weights,
            source,
        })?;
        let saver = Saver::new(&folder, settings.keep_checkpoints, group.pulse())?;
        Ok((folder, saver))
    };
    let made = leads(group).then(make).transpose();
    let (path, saver) = agree(group, "folder of the run", made)?.unzip();
    let path = same_path(group, "name of the run's folder", path.unwrap_or_default())?;
    Ok((path, saver))
}
