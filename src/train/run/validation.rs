//! Validation between epochs and at the end.

use super::Run;
use crate::dist::{Buffer, Call};
use crate::eval::{BatchPictures, Inference, Validated, validate};
use crate::model::init::State;
use crate::model::weights::WeightsFile;
use crate::train::checkpoint::Best;
use crate::train::error::TrainError;
use crate::train::fault::Place;
use crate::train::session::{choice, print_metrics};
use crate::train::together::agree;
use crate::train::{fault, plots};
use serde_json::json;

impl Run<'_> {
    /// Validates the averaged weights.
    pub(super) fn validate_average(&self) -> Result<Option<Validated<'_>>, TrainError> {
        self.validate(&self.engine.average)
    }

    pub(super) fn validate(&self, state: &State) -> Result<Option<Validated<'_>>, TrainError> {
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

    pub(super) fn is_best(&mut self, epoch: usize, ap: Option<f64>) -> bool {
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

    /// Validates the best weights once more, from their file, and prints their figures.
    pub(super) fn finish(&mut self) -> Result<(), TrainError> {
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
    pub(super) fn same_state(&self, first: Option<State>) -> Result<State, TrainError> {
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
