//! What training and stand-alone validation share: data, threads, choice of detections, tables.

use super::error::TrainError;
use crate::config::Settings;
use crate::config::dataset::{DatasetYaml, SplitName};
use crate::data::augment::AugmentConfig;
use crate::data::loader::LoaderConfig;
use crate::data::{
    self, DataError, DataReport, DownloadError, IndexOptions, Split, Step, load_split, open,
    prepare,
};
use crate::eval::{Choice, Metrics, SuppressConfig, coco_api_remarks};
use crate::loss::Gains;
use crate::ops::cpu::isa::Isa;
use crate::pulse::Pulse;
use crate::report::files::write_atomic;
use crate::report::run_dir::create_run_dir;
use crate::report::{Bar, Console, Unit};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Processor cores that this process may use.
#[must_use]
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Processor cores for one of `ranks` ranks that share them ([`crate::dist::ProcessGroup::sharing`]).
#[must_use]
pub fn cores_of_rank(ranks: usize) -> usize {
    (cores() / ranks.max(1)).max(1)
}

/// The threads that compute, of one of `ranks` ranks that share this machine.
///
/// # Errors
/// [`TrainError::Isa`] for a bad `YOLO_TRAIN_ISA`, [`TrainError::Threads`].
pub fn compute_pool(s: &Settings, ranks: usize) -> Result<rayon::ThreadPool, TrainError> {
    Isa::detect()?;
    let threads = s.threads_or_default(cores_of_rank(ranks));
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|i| format!("compute-{i}"))
        .build()
        .map_err(|e| TrainError::Threads {
            threads,
            reason: e.to_string(),
        })
}

/// Gains of the loss's components.
#[must_use]
pub fn gains(s: &Settings) -> Gains {
    Gains {
        boxes: s.box_gain,
        classes: s.cls_gain,
        distances: s.dfl_gain,
    }
}

/// How validation chooses detections.
#[must_use]
pub fn choice(s: &Settings) -> Choice {
    let suppress = SuppressConfig {
        conf: s.conf.unwrap_or(0.001) as f32,
        iou: s.iou as f32,
        max_det: s.max_det,
        ..SuppressConfig::default()
    };
    Choice {
        suppress,
        end_to_end: s.end2end,
    }
}

/// Loader of these options of one of `ranks` ranks; `mosaic_off_from` is the first epoch without mosaic.
#[must_use]
pub fn loader_config(s: &Settings, mosaic_off_from: usize, ranks: usize) -> LoaderConfig {
    LoaderConfig {
        imgsz: s.imgsz,
        batch: s.batch,
        seed: s.seed,
        drop_last: s.drop_last,
        augment: AugmentConfig {
            hsv_h: s.hsv_h,
            hsv_s: s.hsv_s,
            hsv_v: s.hsv_v,
            degrees: s.degrees,
            translate: s.translate,
            scale: (s.scale.min, s.scale.max),
            shear: s.shear,
            perspective: s.perspective,
            flipud: s.flipud,
            fliplr: s.fliplr,
            mosaic: s.mosaic,
            mixup: s.mixup,
            cutmix: s.cutmix,
        },
        mosaic_off_from,
        multi_scale: s.multi_scale,
        rect: s.rect,
        workers: s.workers_or_default(cores_of_rank(ranks)),
        ..LoaderConfig::default()
    }
}

/// The splits that training reads.
#[must_use]
pub fn train_splits(s: &Settings) -> &'static [SplitName] {
    match s.val {
        true => &[SplitName::Train, SplitName::Val],
        false => &[SplitName::Train],
    }
}

/// Bars of what is waited for before a data set can be read, one after the other.
#[derive(Default)]
struct Waiting {
    bar: Option<(String, Bar)>,
}

impl Waiting {
    fn show(&mut self, step: Step<'_>, console: &Console) {
        let (what, done, total, unit) = match step {
            Step::Note(line) => return console.note(line),
            Step::Warning(line) => return console.warn(line),
            Step::Waiting => return,
            Step::Progress {
                what,
                done,
                total,
                unit,
            } => (what, done as usize, total.unwrap_or(0) as usize, unit),
        };
        if self.bar.as_ref().is_some_and(|(shown, _)| shown != what) {
            self.finish();
        }
        let (_, bar) = self.bar.get_or_insert_with(|| {
            let unit = match unit {
                data::Unit::Images => Unit::Images,
                data::Unit::Files => Unit::Files,
                data::Unit::Bytes => Unit::Bytes,
            };
            let mut bar = console.bar_of(unit, what, total);
            bar.set_before(done);
            (what.to_owned(), bar)
        });
        bar.set_total(total);
        bar.tick(done, &[], "");
    }

    fn finish(&mut self) {
        if let Some((_, bar)) = self.bar.take() {
            bar.finish();
        }
    }
}

/// A data set that is being read, with what was found in it.
pub struct Data {
    yaml: DatasetYaml,
    options: IndexOptions,
    project: PathBuf,
    run_name: String,
    /// Of a run that goes on: no folder is created then.
    pub folder: Option<PathBuf>,
    /// Whether a report of what is wrong is left in a folder.
    pub writes: bool,
    pub report: DataReport,
}

impl Data {
    /// Finds the dataset file of `--data`; draws or downloads what these splits of it need and is missing.
    ///
    /// # Errors
    /// [`TrainError::Dataset`], [`TrainError::Data`], [`TrainError::Interrupted`].
    pub fn open(
        s: &Settings,
        default_name: &str,
        splits: &[SplitName],
        interrupted: &AtomicBool,
        console: &Console,
    ) -> Result<Self, TrainError> {
        Self::open_watched(s, default_name, splits, interrupted, console, &Pulse::new())
    }

    /// As [`Self::open`]; `pulse` is beaten as drawing, downloading and, later, reading get on.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_watched(
        s: &Settings,
        default_name: &str,
        splits: &[SplitName],
        interrupted: &AtomicBool,
        console: &Console,
        pulse: &Pulse,
    ) -> Result<Self, TrainError> {
        let yaml = open(&s.data)?;
        for note in &yaml.notes {
            console.note(note);
        }
        for w in &yaml.warnings {
            console.warn(w);
        }
        let mut waiting = Waiting::default();
        prepare(&yaml, splits, &mut |step| {
            pulse.beat("preparing the data set");
            waiting.show(step, console);
            match interrupted.load(Ordering::Relaxed) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })
        .map_err(|e| match e {
            DataError::Download(DownloadError::Interrupted) => TrainError::Interrupted,
            e => TrainError::Data(e),
        })?;
        waiting.finish();
        let options = IndexOptions {
            skip_bad: s.skip_bad,
            single_cls: s.single_cls,
            classes: s.classes.clone(),
            fraction: s.fraction,
            threads: s.threads,
            pulse: pulse.clone(),
        };
        Ok(Self {
            report: DataReport::new(s.data.clone()),
            yaml,
            options,
            project: s.project.clone().into(),
            folder: None,
            writes: true,
            run_name: s.name.clone().unwrap_or_else(|| default_name.into()),
        })
    }

    /// Creates the run's folder, if it is a new run, and writes the report into it.
    ///
    /// # Errors
    /// [`TrainError::RunDir`], [`TrainError::Write`].
    pub fn create_folder(&self) -> Result<PathBuf, TrainError> {
        let folder = match &self.folder {
            Some(folder) => folder.clone(),
            None => create_run_dir(&self.project, &self.run_name)?,
        };
        write(
            &folder.join("data-report.json"),
            self.report.to_json().as_bytes(),
        )?;
        Ok(folder)
    }

    /// Categories of the last split that was read which are no class of it, though the dataset file selects none.
    #[must_use]
    pub fn unknown_classes(&self) -> Vec<String> {
        let last = self
            .report
            .splits
            .last()
            .filter(|_| self.yaml.names.is_none());
        last.map(|r| r.other_categories.keys().cloned().collect())
            .unwrap_or_default()
    }

    /// Reads a split and says what is in it. `names` are the classes where the dataset file has none.
    ///
    /// # Errors
    /// [`TrainError::Data`] with every malformed row.
    pub fn split(
        &mut self,
        which: SplitName,
        names: Option<&[String]>,
        console: &Console,
    ) -> Result<Split, TrainError> {
        self.yaml.class_order = names.map(<[String]>::to_vec);
        let (split, report) = match load_split(&self.yaml, which, &self.options) {
            Ok(read) => read,
            Err(e) => {
                if let (Some(found), true) = (e.report(), self.writes) {
                    // the message shows the first cases; all of them go into a file
                    self.report.push(found.clone());
                    let folder = self.create_folder()?;
                    console.note(format!(
                        "all that was found: {}",
                        folder.join("data-report.json").display()
                    ));
                }
                return Err(e.into());
            }
        };
        for line in report.lines() {
            console.note(line);
        }
        if which != SplitName::Train {
            for remark in coco_api_remarks(&split) {
                console.warn(remark);
            }
        }
        self.report.push(report);
        Ok(split)
    }
}

/// Writes a file of the run.
///
/// # Errors
/// [`TrainError::Write`] with the path.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), TrainError> {
    write_atomic(path, bytes).map_err(|source| TrainError::Write {
        path: path.into(),
        source,
    })
}

/// Prints the table per class and the twelve COCO figures.
pub fn print_metrics(console: &Console, m: &Metrics) {
    let (all, rows) = m.rows();
    console.class_results(&all, &rows);
    console.coco_results(&m.coco);
}
