//! `yolo-train predict`: the loop over the images.

use super::batches::{PredictPlan, Read, Shapes, shared};
use super::output::Output;
use super::{PredictError, names, source};
use crate::config::Settings;
use crate::data::batch::Batch;
use crate::data::decode::Rgb;
use crate::data::pipeline::Batches;
use crate::data::{ImageEntry, Split};
use crate::eval::{Choice, Detection, Inference, Predictions, SuppressConfig, micro_batch};
use crate::loss::Gains;
use crate::model::Network;
use crate::model::weights::{Metadata, WeightsFile};
use crate::report::Console;
use crate::report::run_dir::create_run_dir;
use rayon::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Lowest score of what is shown, unless `--conf` says otherwise.
const CONF: f64 = 0.25;

/// Finds objects in the images of `--source`. The result is the folder with what was written, if anything was to be.
///
/// Computes in the caller's thread pool; `workers` threads decode.
///
/// # Errors
/// [`PredictError`]; `BadImages` once all other images are done.
pub fn run(
    settings: &Settings,
    workers: usize,
    interrupted: &AtomicBool,
    console: &Console,
) -> Result<Option<PathBuf>, PredictError> {
    let file = WeightsFile::open(Path::new(&settings.weights))?;
    let metadata = file.metadata()?;
    if let Some(classes) = &settings.classes {
        let missing = classes.iter().find(|&&c| c >= metadata.names.len());
        if let Some(&class) = missing {
            let names = metadata.names;
            return Err(PredictError::NoSuchClass { class, names });
        }
    }
    let found = source::find(&settings.source)?;
    for note in &found.notes {
        console.note(note);
    }
    let network = Network::new(metadata.spec.clone(), metadata.names.len());
    let state = file.load(&network.layout, &metadata.model, network.classes)?;
    let shapes = Shapes {
        imgsz: if settings.is_given("imgsz") {
            settings.imgsz
        } else {
            metadata.imgsz
        },
        batch: settings.batch,
        rect: settings.rect,
        workers,
    };
    let plan = PredictPlan::new(found.files.clone(), &shapes, Output::needs_pixels(settings));
    let names = names::result_names(&found.files);
    let images = Images {
        split: split(&found.files, &names, &plan, &metadata),
        plan: Arc::new(plan),
        names,
    };
    let readable = (0..found.files.len()).any(|i| images.plan.size(i).is_some());
    let folder = if Output::is_asked(settings) && readable {
        let name = settings.name.as_deref().unwrap_or("predict");
        Some(create_run_dir(Path::new(&settings.project), name)?)
    } else {
        None
    };
    console.note(format!(
        "{}: {} parameters, {} classes, images of {}",
        metadata.model,
        network.parameters(),
        network.classes,
        shapes.imgsz
    ));
    // the loss is not computed
    let gains = Gains {
        boxes: 0.0,
        classes: 0.0,
        distances: 0.0,
    };
    let inference = Inference::new(
        &network,
        &state,
        gains,
        &crate::gpu::assigned().burn_device(),
    );
    let run = Run {
        settings,
        console,
        network: &network,
        inference,
        choice: choice(settings),
        output: folder
            .clone()
            .map(|folder| Output::new(settings, folder, &metadata.names)),
        images: &images,
    };
    let end = run.all(workers, interrupted)?;
    run.finish(end)?;
    Ok(folder)
}

/// As validation chooses, from a higher score on.
fn choice(s: &Settings) -> Choice {
    Choice {
        suppress: SuppressConfig {
            conf: s.conf.unwrap_or(CONF) as f32,
            iou: s.iou as f32,
            max_det: s.max_det,
            ..SuppressConfig::default()
        },
        end_to_end: s.end2end,
    }
}

/// What is predicted on.
struct Images {
    plan: Arc<PredictPlan>,
    /// Of the results, by image.
    names: Vec<PathBuf>,
    /// The images as `Predictions` takes them.
    split: Split,
}

/// Numbers as names are the images' ids (as in COCO's files); otherwise they count from 1.
fn split(files: &[PathBuf], names: &[PathBuf], plan: &PredictPlan, m: &Metadata) -> Split {
    let numbers: Option<Vec<u64>> = names
        .iter()
        .map(|n| n.to_str().filter(|n| n.bytes().all(|b| b.is_ascii_digit())))
        .map(|n| n.and_then(|n| n.parse().ok()))
        .collect();
    let numbers = numbers.filter(|numbers| {
        let mut sorted = numbers.clone();
        sorted.sort_unstable();
        sorted.windows(2).all(|w| w[0] != w[1])
    });
    let entry = |i: usize| {
        let (width, height) = plan.size(i).unwrap_or((1, 1));
        let own = files[i].file_name().unwrap_or_default();
        let file_name = names[i].with_file_name(own);
        ImageEntry {
            id: numbers.as_ref().map_or(i as u64 + 1, |n| n[i]),
            file_name: file_name.to_string_lossy().replace('\\', "/"),
            path: files[i].clone(),
            width,
            height,
            labels: vec![],
            truths: vec![],
        }
    };
    Split {
        names: m.names.clone(),
        category_ids: m.category_ids.clone(),
        images: (0..files.len()).map(entry).collect(),
        image_id_in_file: false,
    }
}

struct Run<'a> {
    settings: &'a Settings,
    console: &'a Console,
    network: &'a Network,
    inference: Inference<'a>,
    choice: Choice,
    output: Option<Output<'a>>,
    images: &'a Images,
}

/// How the loop went.
struct End<'a> {
    predictions: Predictions<'a>,
    done: usize,
    bad: usize,
    first_bad: Option<String>,
    times: Times,
}

/// Sums over all images.
#[derive(Default)]
struct Times {
    /// Until batches were there: decoding goes on beside the rest.
    waiting: Duration,
    network: Duration,
    choosing: Duration,
    writing: Duration,
}

impl<'a> Run<'a> {
    fn all(&self, workers: usize, interrupted: &AtomicBool) -> Result<End<'a>, PredictError> {
        let mut end = End {
            predictions: Predictions::new(&self.images.split),
            done: 0,
            bad: 0,
            first_bad: None,
            times: Times::default(),
        };
        let mut batches = Batches::new(shared(&self.images.plan), 0, workers);
        let mut number = 0;
        loop {
            let started = Instant::now();
            let Some(batch) = batches.next() else {
                return Ok(end);
            };
            end.times.waiting += started.elapsed();
            if interrupted.load(Ordering::Relaxed) {
                return Err(PredictError::Interrupted);
            }
            self.batch(number, &batch?, &mut end)?;
            number += 1;
        }
    }

    fn batch(&self, number: usize, batch: &Batch, end: &mut End<'a>) -> Result<(), PredictError> {
        let files: Vec<usize> = self.images.plan.files(number).collect();
        let read: Vec<Read> = files.iter().map(|&f| self.images.plan.take(f)).collect();
        let good = read.iter().filter(|r| matches!(r, Read::Image(_))).count();
        let (found, took) = if good > 0 {
            self.detect(batch, &mut end.times)?
        } else {
            (vec![vec![]; files.len()], Duration::ZERO)
        };
        let each = took.as_secs_f64() * 1e3 / files.len() as f64;
        let started = Instant::now();
        let mut pixels = Vec::with_capacity(files.len());
        for ((&file, read), found) in files.iter().zip(read).zip(&found) {
            let path = self.images.split.images[file].path.display();
            let place = format!("image {}/{} {path}", file + 1, self.images.names.len());
            match read {
                Read::Bad(reason) => {
                    self.console.warn(format!("{place}: {reason}"));
                    end.bad += 1;
                    end.first_bad
                        .get_or_insert_with(|| format!("{path}: {reason}"));
                }
                Read::Image(image) => {
                    end.done += 1;
                    pixels.push((file, image, found));
                    let counts = counts(found, &self.images.split.names);
                    let (h, w) = (batch.height, batch.width);
                    self.console
                        .result(format!("{place}: {h}x{w}, {counts}, {each:.1} ms"));
                    if self.settings.save_json {
                        end.predictions.add(file, found)?;
                    }
                }
            }
        }
        self.write(pixels)?;
        end.times.writing += started.elapsed();
        Ok(())
    }

    /// The detections of each image of a batch, and how long they took.
    fn detect(
        &self,
        batch: &Batch,
        times: &mut Times,
    ) -> Result<(Vec<Vec<Detection>>, Duration), PredictError> {
        let started = Instant::now();
        let out = self
            .inference
            .run(&micro_batch(batch), self.choice.end_to_end)?;
        let computed = started.elapsed();
        let classes = self.settings.classes.as_deref();
        let found = (0..batch.len())
            .into_par_iter()
            .map(|i| {
                let image = &batch.images[i];
                let entry = &self.images.split.images[image.index];
                let size = (entry.width, entry.height);
                self.choice
                    .detections(self.network, &out, i, &image.letterbox, size, classes)
            })
            .collect();
        let took = started.elapsed();
        times.network += computed;
        times.choosing += took - computed;
        Ok((found, took))
    }

    fn write(
        &self,
        images: Vec<(usize, Option<Rgb>, &Vec<Detection>)>,
    ) -> Result<(), PredictError> {
        let Some(output) = &self.output else {
            return Ok(());
        };
        images.into_par_iter().try_for_each(|(file, image, found)| {
            let entry = &self.images.split.images[file];
            let size = (entry.width, entry.height);
            output.image(&self.images.names[file], image, size, found)
        })
    }

    fn finish(&self, end: End) -> Result<(), PredictError> {
        if let (Some(output), true) = (&self.output, self.settings.save_json) {
            end.predictions
                .write(&output.folder.join("predictions.json"))?;
        }
        if end.done > 0 {
            let t = &end.times;
            let each = |d: Duration| d.as_secs_f64() * 1e3 / end.done as f64;
            self.console.note(format!(
                "{} images, each: {:.1} ms network, {:.1} ms choice of boxes, {:.1} ms writing, {:.1} ms waiting for files",
                end.done,
                each(t.network),
                each(t.choosing),
                each(t.writing),
                each(t.waiting)
            ));
        }
        if let Some(output) = &self.output {
            self.console
                .note(format!("results in {}", output.folder.display()));
        }
        match end.first_bad {
            Some(first) => Err(PredictError::BadImages {
                bad: end.bad,
                images: end.bad + end.done,
                first,
            }),
            None => Ok(()),
        }
    }
}

/// `4 RBC, 1 WBC`, in the order of the classes.
fn counts(found: &[Detection], names: &[String]) -> String {
    let mut of_class = vec![0; names.len()];
    for d in found {
        of_class[d.class] += 1;
    }
    let shown: Vec<String> = of_class
        .iter()
        .zip(names)
        .filter(|(n, _)| **n > 0)
        .map(|(n, name)| format!("{n} {name}"))
        .collect();
    if shown.is_empty() {
        "no detections".into()
    } else {
        shown.join(", ")
    }
}
