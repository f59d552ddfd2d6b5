//! The batches of an epoch.

use super::{BATCH, Run, third_loss};
use crate::data::batch::Batch;
use crate::eval::{BatchPictures, micro_batch};
use crate::loss::head_weights;
use crate::train::checkpoint::Position;
use crate::train::engine::Turn;
use crate::train::error::TrainError;
use crate::train::fault::Place;
use crate::train::together::{agree, all_texts};
use crate::train::{checksum, fault, rank_stats};
use serde_json::json;
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Run<'_> {
    /// The batches of an epoch from the current position on.
    pub(super) fn epoch(&mut self, epoch: usize) -> Result<(), TrainError> {
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
            let files = self.files_of(&batch);
            let late = std::mem::replace(&mut self.behind, files.clone());
            let Some(loss) = loss else {
                // a device tells of the batch before
                let behind = self.engine.is_behind();
                let (i, files) = if behind {
                    (i.saturating_sub(1), late)
                } else {
                    (i, files)
                };
                return Err(self.not_finite(epoch, i, step, files));
            };
            self.shown.add(loss);
            let mut waited = agreed + self.engine.phases.waited;
            if turn.ends_step {
                let Some(done) = self.engine.step(&rates, self.plan.size)? else {
                    return Err(self.not_finite(epoch, i, step, self.behind.clone()));
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
                batch.input.0,
                batch.input.1
            );
            bar.tick(done, &[("box", b), ("cls", c), (third, d)], &extra);
            if turn.ends_step {
                self.after_step()?;
            }
        }
        bar.finish();
        self.settle()?;
        self.engine.fetch()?;
        Ok(())
    }

    /// What is due every so many steps.
    pub(super) fn after_step(&mut self) -> Result<(), TrainError> {
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
            self.engine.fetch()?;
            let e = &self.engine;
            let states = [("weights", &e.state), ("average", &e.average)];
            checksum::compare(&*self.group, &e.network.layout, states, steps)?;
        }
        Ok(())
    }

    /// Takes in the losses that the device has still to give.
    pub(super) fn settle(&mut self) -> Result<(), TrainError> {
        let Some(loss) = self.engine.settle()? else {
            let Position { epoch, batch } = self.position;
            let (step, files) = (self.engine.optimizer.steps, self.behind.clone());
            return Err(self.not_finite(epoch, batch.saturating_sub(1), step, files));
        };
        self.shown.add(loss);
        Ok(())
    }

    pub(super) fn files_of(&self, batch: &Batch) -> Vec<String> {
        let files = batch.images.iter();
        files
            .map(|b| self.images.images[b.index].file_name.clone())
            .collect()
    }

    /// The error of a loss or gradient that is not finite, with the images of all ranks.
    pub(super) fn not_finite(
        &self,
        epoch: usize,
        batch: usize,
        step: u64,
        own: Vec<String>,
    ) -> TrainError {
        match all_texts(&*self.group, "images of a batch", own) {
            Ok(files) => TrainError::NotFinite {
                what: self.engine.culprit,
                epoch: epoch + 1,
                batch,
                step,
                files,
            },
            Err(e) => e,
        }
    }
}
