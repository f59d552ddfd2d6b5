//! The training loop.

use super::engine::Engine;
use super::error::TrainError;
use super::optim::Optimizer;
use super::plan::{self, Plan};
use super::session::{
    self, Data, choice, compute_pool, cores, gains, loader_config, print_metrics, train_splits,
    write,
};
use crate::config::Settings;
use crate::config::dataset::SplitName;
use crate::config::model::ModelSpec;
use crate::data::Split;
use crate::data::loader::Loader;
use crate::data::sampler::Sampler;
use crate::eval::{Inference, Validation, micro_batch, validate};
use crate::loss::{ShownLoss, head_weights};
use crate::model::init::{self, State};
use crate::model::weights::{Metadata, OWN_LICENCE, WeightsFile, to_bytes};
use crate::model::{Network, ParamKind};
use crate::ops;
use crate::report::Console;
use crate::report::results_csv::{ResultsCsv, ResultsRow, ThirdLoss, ValidationResults};
use burn::tensor::Device;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Trains as `settings` say. The result is the run's folder.
///
/// # Errors
/// [`TrainError`]; `Interrupted` leaves everything that the last whole epoch wrote.
pub fn run(
    settings: &Settings,
    interrupted: &AtomicBool,
    console: &Console,
) -> Result<PathBuf, TrainError> {
    let pool = compute_pool(settings)?;
    pool.install(|| Run::start(settings, interrupted, console)?.train())
}

struct Run<'a> {
    settings: &'a Settings,
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
    best: Option<Best>,
}

#[derive(Clone, Copy)]
struct Best {
    epoch: usize,
    ap: f64,
}

impl<'a> Run<'a> {
    fn start(
        settings: &'a Settings,
        interrupted: &'a AtomicBool,
        console: &'a Console,
    ) -> Result<Self, TrainError> {
        let started = Instant::now();
        let spec = ModelSpec::resolve(&settings.model)?;
        let mut data = Data::open(
            settings,
            "train",
            train_splits(settings),
            interrupted,
            console,
        )?;
        let train = Arc::new(data.split(SplitName::Train, None, console)?);
        let val = match settings.val {
            true => Some(Arc::new(data.split(
                SplitName::Val,
                Some(&train.names),
                console,
            )?)),
            false => None,
        };
        let network = Network::new(spec, train.names.len());
        let state = init::init(&network, settings.seed);

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
        let plan = plan::resolve(settings, train.images.len(), batches, train.names.len());
        let config = loader_config(settings, plan.mosaic_off_from);
        let loader = Loader::new(train.clone(), config.clone())?;
        let val = match val {
            Some(v) => Some((v.clone(), Loader::new(v, config)?)),
            None => None,
        };

        let folder = data.create_folder()?;
        write(&folder.join("args.yaml"), settings.to_yaml().as_bytes())?;
        let weights = folder.join("weights");
        std::fs::create_dir(&weights).map_err(|source| TrainError::Write {
            path: weights,
            source,
        })?;

        let third = if network.spec.reg_max == 1 {
            ThirdLoss::L1
        } else {
            ThirdLoss::Dfl
        };
        let metadata = Metadata {
            category_ids: train.category_ids.clone(),
            imgsz: settings.imgsz,
            licence: OWN_LICENCE.into(),
            model: network.spec.name.clone(),
            names: train.names.clone(),
            spec: network.spec.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
        };
        let device = Device::flex();
        let optimizer = Optimizer::new(
            plan.algorithm,
            settings.weight_decay,
            network.layout.param_len,
        );
        let mut engine = Engine::new(network, state, optimizer, gains(settings), &device);
        engine.norm_momentum = plan.norm_momentum;
        let run = Self {
            csv: ResultsCsv::new(&folder.join("results.csv"), third, 3),
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
            best: None,
        };
        run.print_plan();
        Ok(run)
    }

    fn print_plan(&self) {
        let s = self.settings;
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
        for epoch in 0..self.settings.epochs {
            let train = self.epoch(epoch)?;
            let last = epoch + 1 == self.settings.epochs;
            let validation = self.validate_average()?;
            let row = validation.as_ref().map(|(v, losses)| ValidationResults {
                precision: v.metrics.precision,
                recall: v.metrics.recall,
                coco: v.metrics.coco,
                losses: *losses,
            });
            drop(validation);
            let rates = self
                .plan
                .schedule
                .rates(epoch, self.plan.schedule.batches - 1);
            let path = self.folder.join("results.csv");
            self.csv
                .push(&ResultsRow {
                    epoch: epoch + 1,
                    seconds: self.started.elapsed().as_secs_f64(),
                    train,
                    validation: row,
                    learning_rates: vec![rates.lr, rates.lr, rates.bias_lr],
                })
                .map_err(|source| TrainError::Write { path, source })?;
            self.save("last")?;
            let ap = row.map(|r| r.coco[0]);
            if self.is_best(epoch, ap) {
                self.save("best")?;
            }
            let period = self.settings.save_period;
            if period > 0 && (epoch + 1) as i64 % period == 0 {
                self.save(&format!("epoch{}", epoch + 1))?;
            }
            let patience = self.settings.patience;
            if let (Some(best), true, false) = (self.best, patience > 0 && ap.is_some(), last)
                && epoch - best.epoch >= patience
            {
                self.console.note(format!(
                    "no better AP for {patience} epochs (--patience): training ends"
                ));
                break;
            }
        }
        self.finish()?;
        Ok(self.folder)
    }

    /// One pass over the training images; the result is the mean loss items.
    fn epoch(&mut self, epoch: usize) -> Result<[f64; 3], TrainError> {
        let s = self.settings;
        let weights = head_weights(self.engine.network.spec.one_to_one, epoch, s.epochs);
        let third = if self.engine.network.spec.reg_max == 1 {
            "l1"
        } else {
            "dfl"
        };
        let batches = self.train.batches_per_epoch();
        let total = (0..batches).map(|b| self.train.global_batch_len(b)).sum();
        let mut bar = self.console.epoch_bar(epoch + 1, s.epochs, total);
        let mut shown = ShownLoss::default();
        let mut done = 0;
        let gains = self.engine.gains;
        for (i, batch) in self.train.train_epoch(epoch, 0).enumerate() {
            if self.interrupted.load(Ordering::Relaxed) {
                return Err(TrainError::Interrupted);
            }
            let batch = batch?;
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
            shown.add(loss);
            if self
                .plan
                .schedule
                .ends_step(epoch, i, self.engine.pending())
            {
                let rates = self.plan.schedule.rates(epoch, i);
                self.engine
                    .step(&rates, self.plan.size)
                    .ok_or_else(|| not_finite("gradient", step))?;
            }
            done += batch.len();
            let [b, c, d] = shown.items(gains);
            let extra = format!(
                "{} objects, {}x{}",
                batch.boxes.len(),
                batch.height,
                batch.width
            );
            bar.tick(done, &[("box", b), ("cls", c), (third, d)], &extra);
        }
        bar.finish();
        Ok(shown.items(gains))
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
        let inference = Inference::new(network, state, self.engine.gains, &self.device);
        let mut bar = self.console.bar("  validation", split.images.len());
        let batches = loader.val_batches(self.settings.batch);
        let c = choice(self.settings);
        let v = validate(
            network,
            &inference,
            split,
            batches,
            &c,
            self.interrupted,
            |done| bar.tick(done, &[], ""),
        )?;
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
            print_metrics(self.console, &v.metrics);
        }
        let trained: usize = network
            .layout
            .params
            .iter()
            .filter(|p| p.kind != ParamKind::Constant)
            .map(|p| p.len())
            .sum();
        let best = self.best.map_or(0, |b| b.epoch + 1);
        self.console.note(format!(
            "{trained} parameters trained in {:.1} s; best epoch {best}; results in {}",
            self.started.elapsed().as_secs_f64(),
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
            &network,
            &inference,
            &split,
            batches,
            &c,
            interrupted,
            |done| bar.tick(done, &[], ""),
        )?;
        bar.finish();
        v.predictions.write(&folder.join("predictions.json"))?;
        print_metrics(console, &v.metrics);
        console.note(format!("results in {}", folder.display()));
        Ok(folder.clone())
    })
}
