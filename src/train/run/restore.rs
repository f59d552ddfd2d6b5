//! A run that goes on, and how long it lasts.

use super::Run;
use crate::data::sampler::{Shard, mosaic_off_from};
use crate::gpu::Device;
use crate::ops;
use crate::train::checkpoint::{Checkpoint, Position};
use crate::train::error::TrainError;
use crate::train::session::cores_of_rank;
use crate::train::together::{agree, from_first};

impl Run<'_> {
    /// Goes on where a checkpoint was written.
    pub(super) fn restore(
        &mut self,
        checkpoint: &Checkpoint,
        epochs: usize,
    ) -> Result<(), TrainError> {
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
    pub(super) fn epochs(&self) -> usize {
        self.plan.schedule.epochs
    }

    pub(super) fn set_epochs(&mut self, epochs: usize) {
        self.plan.schedule.epochs = epochs;
        let (from, _) = mosaic_off_from(epochs, self.settings.close_mosaic);
        self.plan.mosaic_off_from = from;
        self.train.set_mosaic_off_from(from);
    }

    /// Seconds of training, with those before a resume.
    pub(super) fn seconds(&self) -> f64 {
        self.before + self.started.elapsed().as_secs_f64()
    }

    pub(super) fn print_plan(&self, numbers: &str) {
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
        self.console.note(numbers);
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
        let device = match crate::gpu::assigned() {
            Device::Cpu => format!("cpu ({})", ops::isa().name()),
            gpu => gpu.to_string(),
        };
        self.console.note(format!(
            "device {device}, {} threads, {} workers{}, {lanes} lanes, seed {}; {} epochs into {}",
            s.threads_or_default(cores),
            s.workers_or_default(cores),
            if ranks > 1 { " a rank" } else { "" },
            s.seed,
            s.epochs,
            self.folder.display()
        ));
    }

    /// With `--time`: as many epochs as fit into it, judged by those that are done.
    pub(super) fn keep_to_time(&mut self) -> Result<(), TrainError> {
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
}
