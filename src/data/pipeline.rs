//! Worker threads that make batches ahead of their use, in order, with a bound on what is in flight.
//!
//! The images of one batch are spread over the workers, so the first batch arrives as early as it can. Nothing here
//! decides what a batch contains: that is a [`Plan`], a pure function of batch and slot, and so the result does not
//! depend on the number of workers or on their timing.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::LabelBox;
use super::batch::{Batch, BatchBox, BatchImage};
use super::decode::DecodeError;

/// Why a batch could not be made.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LoaderError {
    #[error("the loader's {setting} is {value}: {need}")]
    Config {
        setting: &'static str,
        value: String,
        need: &'static str,
    },
    #[error("{}: the image cannot be loaded", file.display())]
    Decode {
        file: PathBuf,
        #[source]
        source: Arc<DecodeError>,
    },
    #[error(
        "{}: the image has {} x {} pixels now, {} x {} when its labels were read; do not change data during a run",
        file.display(), found.0, found.1, expected.0, expected.1
    )]
    SizeChanged {
        file: PathBuf,
        expected: (usize, usize),
        found: (usize, usize),
    },
    #[error("{}: the image cannot be resized: {reason}", file.display())]
    Resize { file: PathBuf, reason: String },
    #[error("{}: loading the image failed in an unforeseen way: {message}; please report this", file.display())]
    Panicked { file: PathBuf, message: String },
    #[error("a data worker cannot be started ({reason}); try fewer with --workers")]
    Thread { reason: String },
    #[error("all data workers ended before batch {batch} was made; please report this")]
    WorkersGone { batch: usize },
}

/// One image of a batch, with `height * width * 3` bytes of pixels.
#[derive(Debug)]
pub struct Sample {
    pub pixels: Vec<u8>,
    pub labels: Vec<LabelBox>,
    pub image: BatchImage,
}

/// What the batches of an epoch contain.
pub trait Plan: Send + Sync {
    /// Number of batches.
    fn batches(&self) -> usize;
    /// Height and width of a batch's images.
    fn shape(&self, batch: usize) -> (usize, usize);
    /// Height and width at which the network takes them.
    fn input(&self, batch: usize) -> (usize, usize) {
        self.shape(batch)
    }
    /// Number of images of a batch.
    fn images(&self, batch: usize) -> usize;
    /// The file of an image, for messages.
    fn file(&self, batch: usize, slot: usize) -> PathBuf;
    /// Makes one image; `canvas` is a buffer that may be reused from call to call.
    fn render(
        &self,
        batch: usize,
        slot: usize,
        canvas: &mut Vec<u8>,
    ) -> Result<Sample, LoaderError>;
}

type Rendered = Result<Sample, LoaderError>;

/// A panic is turned into an error, so that a defect met with one image ends the run with that image's name.
fn render(plan: &dyn Plan, batch: usize, slot: usize, canvas: &mut Vec<u8>) -> Rendered {
    // Of what the closure touches only the buffer outlives a panic, and its content does not matter.
    catch_unwind(AssertUnwindSafe(|| plan.render(batch, slot, canvas))).unwrap_or_else(|panic| {
        let message = panic
            .downcast_ref::<&str>()
            .map(|s| (*s).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "panic without a message".to_owned());
        Err(LoaderError::Panicked {
            file: plan.file(batch, slot),
            message,
        })
    })
}

/// Joins the images of a batch; of several errors the one with the lowest slot comes out.
fn assemble(plan: &dyn Plan, batch: usize, samples: Vec<Rendered>) -> Result<Batch, LoaderError> {
    let (height, width) = plan.shape(batch);
    let mut result = Batch {
        height,
        width,
        input: plan.input(batch),
        pixels: Vec::with_capacity(samples.len() * height * width * 3),
        images: Vec::with_capacity(samples.len()),
        boxes: Vec::new(),
    };
    for (image, sample) in samples.into_iter().enumerate() {
        let sample = sample?;
        result.pixels.extend_from_slice(&sample.pixels);
        result.images.push(sample.image);
        result
            .boxes
            .extend(sample.labels.iter().map(|label| BatchBox {
                image,
                class: label.class,
                xyxy: label.xyxy,
            }));
    }
    Ok(result)
}

/// A batch that workers are filling.
struct Building {
    batch: usize,
    /// The rendered images and the number of those still missing.
    slots: Mutex<(Vec<Option<Rendered>>, usize)>,
}

impl Building {
    /// Stores an image; hands all of them out with the last.
    fn fill(&self, slot: usize, rendered: Rendered) -> Option<Vec<Rendered>> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.0[slot] = Some(rendered);
        slots.1 -= 1;
        (slots.1 == 0).then(|| slots.0.drain(..).flatten().collect())
    }
}

type Job = (Arc<Building>, usize);
type Finished = (usize, Result<Batch, LoaderError>);

/// The batches of a plan, in order. Ends after the first error. Dropping it ends the workers, at the latest after the
/// image that each is working on.
pub struct Batches {
    plan: Arc<dyn Plan>,
    next: usize,
    failed: bool,
    workers: Option<Workers>,
    /// Reused without workers.
    canvas: Vec<u8>,
    /// An error from before the first batch.
    early: Option<LoaderError>,
}

struct Workers {
    jobs: Option<Sender<Job>>,
    finished: Receiver<Finished>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    /// First batch that is not handed to the workers yet.
    queued: usize,
    /// Batches that were finished before their turn.
    early: BTreeMap<usize, Result<Batch, LoaderError>>,
}

impl Batches {
    /// Batches from `first` on, made by `workers` threads, or in the caller with 0.
    pub fn new(plan: Arc<dyn Plan>, first: usize, workers: usize) -> Self {
        let mut batches = Batches {
            next: first,
            failed: false,
            workers: None,
            canvas: Vec::new(),
            early: None,
            plan,
        };
        if workers > 0 && first < batches.plan.batches() {
            match Workers::start(&batches.plan, first, workers) {
                Ok(started) => batches.workers = Some(started),
                Err(error) => batches.early = Some(error),
            }
        }
        batches
    }

    /// Images of the batches that are still to come.
    pub fn images(&self) -> usize {
        (self.next..self.plan.batches())
            .map(|batch| self.plan.images(batch))
            .sum()
    }

    fn make(&mut self) -> Result<Batch, LoaderError> {
        let batch = self.next;
        if let Some(error) = self.early.take() {
            return Err(error);
        }
        match &mut self.workers {
            Some(workers) => workers.receive(&self.plan, batch),
            None => {
                let mut samples = Vec::new();
                for slot in 0..self.plan.images(batch) {
                    samples.push(render(&*self.plan, batch, slot, &mut self.canvas));
                }
                assemble(&*self.plan, batch, samples)
            }
        }
    }
}

impl Iterator for Batches {
    type Item = Result<Batch, LoaderError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.next >= self.plan.batches() {
            self.workers = None;
            return None;
        }
        let result = self.make();
        self.next += 1;
        if result.is_err() {
            self.failed = true;
            self.workers = None;
        }
        Some(result)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.plan.batches().saturating_sub(self.next);
        (0, Some(left))
    }
}

impl Workers {
    fn start(plan: &Arc<dyn Plan>, first: usize, count: usize) -> Result<Self, LoaderError> {
        let (jobs, job_queue) = unbounded::<Job>();
        let (finish, finished) = unbounded::<Finished>();
        let mut workers = Workers {
            jobs: Some(jobs),
            finished,
            stop: Arc::default(),
            threads: Vec::with_capacity(count),
            queued: first,
            early: BTreeMap::new(),
        };
        for number in 0..count {
            let (plan, stop) = (plan.clone(), workers.stop.clone());
            let (jobs, finish) = (job_queue.clone(), finish.clone());
            let thread = std::thread::Builder::new()
                .name(format!("data-{number}"))
                .spawn(move || work(&*plan, &jobs, &finish, &stop))
                .map_err(|e| LoaderError::Thread {
                    reason: e.to_string(),
                })?;
            workers.threads.push(thread);
        }
        workers.queue(plan, first);
        Ok(workers)
    }

    /// Hands out jobs so that at most workers + 2 batches from `from` on are in flight.
    fn queue(&mut self, plan: &Arc<dyn Plan>, from: usize) {
        let end = (from + self.threads.len() + 2).min(plan.batches());
        for batch in self.queued..end {
            let images = plan.images(batch);
            if images == 0 {
                self.early
                    .insert(batch, assemble(&**plan, batch, Vec::new()));
                continue;
            }
            let building = Arc::new(Building {
                batch,
                slots: Mutex::new(((0..images).map(|_| None).collect(), images)),
            });
            if let Some(jobs) = &self.jobs {
                for slot in 0..images {
                    // Fails only when every worker is gone, which `receive` reports.
                    let _ = jobs.send((building.clone(), slot));
                }
            }
        }
        self.queued = self.queued.max(end);
    }

    fn receive(&mut self, plan: &Arc<dyn Plan>, batch: usize) -> Result<Batch, LoaderError> {
        loop {
            if let Some(result) = self.early.remove(&batch) {
                self.queue(plan, batch + 1);
                return result;
            }
            let (number, result) = self
                .finished
                .recv()
                .map_err(|_| LoaderError::WorkersGone { batch })?;
            self.early.insert(number, result);
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // A worker's panics are caught where they happen; there is nothing left to report.
            let _ = thread.join();
        }
    }
}

fn work(plan: &dyn Plan, jobs: &Receiver<Job>, finish: &Sender<Finished>, stop: &AtomicBool) {
    let mut canvas = Vec::new();
    while let Ok((building, slot)) = jobs.recv() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let rendered = render(plan, building.batch, slot, &mut canvas);
        if let Some(samples) = building.fill(slot, rendered) {
            let batch = assemble(plan, building.batch, samples);
            if finish.send((building.batch, batch)).is_err() {
                return;
            }
        }
    }
}
