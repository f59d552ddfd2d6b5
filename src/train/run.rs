//! The training loop.

use super::checkpoint::{Best, Checkpoint, Header, Position, to_bytes as checkpoint_bytes};
use super::checkpoints::{self, Saver};
use super::class_weights::class_weights;
use super::engine::Engine;
use super::error::TrainError;
use super::plan::{self, Plan};
use super::plots;
use super::resume::{self, Resumed, RunLock};
use super::session::{
    self, Data, choice, compute_pool, cores, gains, loader_config, print_metrics, train_splits,
    write,
};
use super::start::{Start, start, start_again};
use crate::config::Settings;
use crate::config::dataset::SplitName;
use crate::config::model::ModelSpec;
use crate::data::Split;
use crate::data::fingerprint::fingerprint;
use crate::data::loader::Loader;
use crate::data::sampler::{Sampler, mosaic_off_from};
use crate::dist::Single;
use crate::eval::{BatchPictures, Inference, Validation, micro_batch, validate};
use crate::loss::{ShownLoss, head_weights};
use crate::model::Network;
use crate::model::init::State;
use crate::model::weights::{Metadata, WeightsFile, to_bytes};
use crate::ops;
use crate::report::Console;
use crate::report::results_csv::{ResultsCsv, ResultsRow, ThirdLoss, ValidationResults};
use burn::tensor::Device;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Trains as `settings` say, or goes on with the run of `--resume`. The result is the run's folder.
///
/// # Errors
/// [`TrainError`]. `Interrupted` and unreadable images leave a checkpoint of the very batch; whatever the error, the
/// last checkpoint is whole.
pub fn run(
    settings: &Settings,
    interrupted: &AtomicBool,
    console: &Console,
) -> Result<PathBuf, TrainError> {
    let resumed = match settings.resume.as_deref() {
        None | Some("false") => None,
        Some(word) => Some(resume::find(settings, word, console)?),
    };
    let settings = resumed.as_ref().map_or(settings, |r| &r.settings).clone();
    let pool = compute_pool(&settings)?;
    pool.install(|| {
        let run = Run::start(settings.clone(), resumed, interrupted, console)?;
        let folder = run.folder.clone();
        let end = run.train();
        let drawn = plots::draw_results(&settings, &folder, console);
        end.and_then(|folder| drawn.map(|()| folder))
    })
}

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
    saver: Saver,
    _lock: RunLock,
}

impl<'a> Run<'a> {
    fn start(
        settings: Settings,
        resumed: Option<Resumed>,
        interrupted: &'a AtomicBool,
        console: &'a Console,
    ) -> Result<Self, TrainError> {
        let started = Instant::now();
        let header = resumed.as_ref().map(|r| &r.checkpoint.header);
        // before the data are read, which may take long
        let spec = match header {
            Some(h) => h.metadata.spec.clone(),
            None => ModelSpec::resolve(&settings.model)?,
        };
        let mut data = Data::open(
            &settings,
            "train",
            train_splits(&settings),
            interrupted,
            console,
        )?;
        data.folder = resumed.as_ref().map(|r| r.folder.clone());
        let train = Arc::new(data.split(SplitName::Train, None, console)?);
        let val = match settings.val {
            true => Some(Arc::new(data.split(
                SplitName::Val,
                Some(&train.names),
                console,
            )?)),
            false => None,
        };
        let hash = fingerprint([&train].into_iter().chain(&val).map(|s| &**s));
        if let Some(r) = &resumed
            && r.checkpoint.header.data != hash
        {
            return Err(TrainError::DataChanged {
                data: settings.data.clone(),
                run: r.folder.clone(),
            });
        }
        let Start {
            network,
            state,
            licence,
        } = match header {
            Some(h) => start_again(&settings, &h.metadata, console)?,
            None => start(&settings, spec, &train.names, console)?,
        };
        let class_weights = class_weights(&settings, &train, console)?;

        let batches = Sampler {
            images: train.images.len(),
            batch: settings.batch,
            seed: settings.seed,
            drop_last: settings.drop_last,
        }
        .batches();
        if batches == 0 {
            return Err(TrainError::NoBatch {
                images: train.images.len(),
                batch: settings.batch,
            });
        }
        let plan = plan::resolve(&settings, train.images.len(), batches, train.names.len());
        let config = loader_config(&settings, plan.mosaic_off_from);
        let loader = Loader::new(train.clone(), config.clone())?;
        let val = match val {
            Some(v) => Some((v.clone(), Loader::new(v, config)?)),
            None => None,
        };

        let folder = data.create_folder()?;
        let weights = folder.join("weights");
        std::fs::create_dir_all(&weights).map_err(|source| TrainError::Write {
            path: weights,
            source,
        })?;

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
        let mut engine = Engine::new(network, state, optimizer, gains(&settings), &device);
        engine.norm_momentum = plan.norm_momentum;
        engine.class_weights = class_weights;
        let saver = Saver::new(&folder, settings.keep_checkpoints)?;
        let (lock, checkpoint, epochs) = match resumed {
            Some(r) => (r.lock, Some(r.checkpoint), r.epochs),
            None => (RunLock::take(&folder)?, None, settings.epochs),
        };
        let mut run = Self {
            csv: ResultsCsv::new(&folder.join("results.csv"), third, plan.algorithm.groups()),
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
            saver,
            _lock: lock,
        };
        run.print_plan();
        if let Some(c) = checkpoint {
            run.restore(&c, epochs)?;
        }
        run.write_options()?;
        plots::draw_labels(&run.settings, &run.folder, &run.images, console)?;
        Ok(run)
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
        checkpoint.restore(&mut self.engine.arrays_mut())?;
        self.engine.set_counters(&h.counters);
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
        self.csv
            .go_on(&h.results)
            .map_err(|source| TrainError::Write {
                path: self.folder.join("results.csv"),
                source,
            })?;
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

    /// Starts to write a checkpoint of this very moment.
    fn checkpoint(&mut self, finished: bool) -> Result<(), TrainError> {
        let arrays = self.engine.arrays();
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
        self.saver.save(self.position, bytes)
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
        self.console.note(format!(
            "device cpu ({}), {} threads, {} workers, {} lanes, seed {}; {} epochs into {}",
            ops::isa().name(),
            s.threads_or_default(cores()),
            s.workers_or_default(cores()),
            s.lanes,
            s.seed,
            s.epochs,
            self.folder.display()
        ));
    }

    fn train(mut self) -> Result<PathBuf, TrainError> {
        let end = self.epochs_and_end();
        let saved = match &end {
            // nothing is wrong with the weights: they are kept as they are now
            Err(TrainError::Interrupted | TrainError::Loader(_)) => self.checkpoint(false),
            _ => Ok(()),
        };
        let saved = saved.and_then(|()| self.saver.wait());
        if end.is_err() && checkpoints::list(&self.folder).is_ok_and(|c| !c.is_empty()) {
            self.console.note(format!(
                "the run can go on: yolo-train --resume {}",
                self.folder.display()
            ));
        }
        end?;
        saved?;
        Ok(self.folder)
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
        self.epoch(epoch)?;
        let train = self.shown.items(self.engine.gains);
        let validation = self.validate_average()?;
        let row = validation.as_ref().map(|(v, losses)| ValidationResults {
            precision: v.metrics.precision,
            recall: v.metrics.recall,
            coco: v.metrics.coco,
            losses: *losses,
        });
        drop(validation);
        let schedule = &self.plan.schedule;
        let rates = schedule.rates(epoch, schedule.batches - 1);
        let path = self.folder.join("results.csv");
        let row_of_epoch = ResultsRow {
            epoch: epoch + 1,
            seconds: self.seconds(),
            train,
            validation: row,
            learning_rates: self.engine.optimizer.group_rates(&rates),
        };
        self.csv
            .push(&row_of_epoch)
            .map_err(|source| TrainError::Write { path, source })?;
        self.save("last")?;
        if self.is_best(epoch, row.map(|r| r.coco[0])) {
            self.save("best")?;
        }
        let period = self.settings.save_period;
        if period > 0 && (epoch + 1) as i64 % period == 0 {
            self.save(&format!("epoch{}", epoch + 1))?;
        }
        plots::refresh_results(&self.settings, &self.folder, self.console)?;
        self.position = Position {
            epoch: epoch + 1,
            batch: 0,
        };
        self.shown = ShownLoss::default();
        self.keep_to_time()?;
        self.checkpoint(false)
    }

    /// With `--time`: as many epochs as fit into it, judged by those that are done.
    fn keep_to_time(&mut self) -> Result<(), TrainError> {
        let Some(hours) = self.settings.time else {
            return Ok(());
        };
        let done = self.position.epoch;
        let epochs = ((hours * 3600.0 * done as f64 / self.seconds()) as usize).max(done);
        if epochs != self.epochs() {
            self.set_epochs(epochs);
            self.write_options()?;
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
        for (i, batch) in (first..).zip(self.train.train_epoch(epoch, first)) {
            if self.interrupted.load(Ordering::Relaxed) {
                return Err(TrainError::Interrupted);
            }
            let batch = batch?;
            if self.settings.plots {
                BatchPictures::new(&self.folder, &self.images, self.console).training(
                    (epoch, i),
                    batches,
                    self.plan.mosaic_off_from,
                    &batch,
                );
            }
            let not_finite = |what, step| {
                let files = batch
                    .images
                    .iter()
                    .map(|b| self.images.images[b.index].file_name.clone())
                    .collect();
                TrainError::NotFinite {
                    what,
                    epoch: epoch + 1,
                    batch: i,
                    step,
                    files,
                }
            };
            let step = self.engine.optimizer.steps;
            let loss = self
                .engine
                .accumulate(&micro_batch(&batch), weights)
                .ok_or_else(|| not_finite("loss", step))?;
            self.shown.add(loss);
            let schedule = &self.plan.schedule;
            let ends_step = schedule.ends_step(epoch, i, self.engine.pending());
            if ends_step {
                let rates = schedule.rates(epoch, i);
                self.engine
                    .step(&rates, self.plan.size)
                    .ok_or_else(|| not_finite("gradient", step))?;
            }
            self.position.batch = i + 1;
            done += batch.len();
            let [b, c, d] = self.shown.items(gains);
            let extra = format!(
                "{} objects, {}x{}",
                batch.boxes.len(),
                batch.height,
                batch.width
            );
            bar.tick(done, &[("box", b), ("cls", c), (third, d)], &extra);
            let every = self.settings.save_steps as u64;
            if ends_step && every > 0 && self.engine.optimizer.steps.is_multiple_of(every) {
                self.checkpoint(false)?;
            }
        }
        bar.finish();
        Ok(())
    }

    /// Validates the averaged weights; figures and loss items.
    fn validate_average(&self) -> Result<Option<(Validation<'_>, [f64; 3])>, TrainError> {
        self.validate(&self.engine.average)
    }

    fn validate(&self, state: &State) -> Result<Option<(Validation<'_>, [f64; 3])>, TrainError> {
        let Some((split, loader)) = &self.val else {
            return Ok(None);
        };
        let network = &self.engine.network;
        let inference = Inference::new(network, state, self.engine.gains, &self.device)
            .with_class_weights(self.engine.class_weights.clone());
        let mut bar = self.console.bar("  validation", split.images.len());
        let batches = loader.val_batches(self.settings.batch);
        let c = choice(&self.settings);
        let v = validate(
            &Single::new(),
            &inference,
            split,
            batches,
            &c,
            self.interrupted,
            |done| bar.tick(done, &[], ""),
        )?
        .whole
        .expect("rank 0 has the whole");
        bar.clear();
        let m = &v.metrics;
        self.console.note(format!(
            "  validation: {} images, {} objects: P {:.3}, R {:.3}, AP50 {:.4}, AP50-95 {:.4}",
            m.images, m.instances, m.precision, m.recall, m.coco[1], m.coco[0]
        ));
        let items = v.loss.items(self.engine.gains);
        Ok(Some((v, items)))
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
    fn finish(&self) -> Result<(), TrainError> {
        let path = self.folder.join("weights/best.safetensors");
        let network = &self.engine.network;
        let state =
            WeightsFile::open(&path)?.load(&network.layout, &network.spec.name, network.classes)?;
        if let Some((v, _)) = self.validate(&state)? {
            v.predictions.write(&self.folder.join("predictions.json"))?;
            if let (Some((split, loader)), true) = (&self.val, self.settings.plots) {
                BatchPictures::new(&self.folder, split, self.console).validation(
                    loader,
                    self.settings.batch,
                    &v.predictions,
                );
            }
            print_metrics(self.console, &v.metrics);
            plots::draw_validation(&self.settings, &self.folder, &v, self.console)?;
        }
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
}

/// Validates `--weights` on a split of `--data`. The result is the run's folder.
///
/// # Errors
/// [`TrainError`], also where the classes of weights and data set differ.
pub fn val(
    settings: &Settings,
    interrupted: &AtomicBool,
    console: &Console,
) -> Result<PathBuf, TrainError> {
    let pool = compute_pool(settings)?;
    pool.install(|| {
        let path = Path::new(&settings.weights);
        let file = WeightsFile::open(path)?;
        let metadata = file.metadata()?;
        let mut settings = settings.clone();
        if !settings.is_given("imgsz") {
            settings.imgsz = metadata.imgsz;
        }
        let settings = &settings;
        let network = Network::new(metadata.spec.clone(), metadata.names.len());
        let state = file.load(&network.layout, &metadata.model, network.classes)?;
        let mut data = Data::open(settings, "val", &[settings.split], interrupted, console)?;
        let split = Arc::new(data.split(settings.split, Some(&metadata.names), console)?);
        let unknown = data.unknown_classes();
        if split.names != metadata.names || !unknown.is_empty() {
            let mut found = split.names.clone();
            found.extend(unknown);
            return Err(TrainError::Classes {
                weights: settings.weights.clone(),
                trained: metadata.names,
                data: settings.data.clone(),
                found,
            });
        }
        let folder = data.create_folder()?;
        console.note(format!(
            "{}: {} parameters, {} classes",
            metadata.model,
            network.parameters(),
            network.classes
        ));
        let loader = Loader::new(split.clone(), session::loader_config(settings, 0))?;
        let inference = Inference::new(&network, &state, gains(settings), &Device::flex());
        let mut bar = console.bar("validation", split.images.len());
        let batches = loader.val_batches(settings.batch);
        let c = choice(settings);
        let v = validate(
            &Single::new(),
            &inference,
            &split,
            batches,
            &c,
            interrupted,
            |done| bar.tick(done, &[], ""),
        )?
        .whole
        .expect("rank 0 has the whole");
        bar.finish();
        v.predictions.write(&folder.join("predictions.json"))?;
        if settings.plots {
            BatchPictures::new(&folder, &split, console).validation(
                &loader,
                settings.batch,
                &v.predictions,
            );
        }
        print_metrics(console, &v.metrics);
        plots::draw_validation(settings, &folder, &v, console)?;
        console.note(format!("results in {}", folder.display()));
        Ok(folder.clone())
    })
}
