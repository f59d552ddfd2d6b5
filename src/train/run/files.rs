//! The files of a run.

use super::Run;
use crate::config::Settings;
use crate::dist::ProcessGroup;
use crate::model::weights::to_bytes;
use crate::ops;
use crate::report::results_csv::ResultsRow;
use crate::train::checkpoint::{Header, to_bytes as checkpoint_bytes};
use crate::train::checkpoints::Saver;
use crate::train::engine::Engine;
use crate::train::error::TrainError;
use crate::train::fault::Place;
use crate::train::session::{Data, write};
use crate::train::together::{agree, leads, same_path};
use crate::train::{fault, plots};
use serde_json::json;
use std::path::PathBuf;

impl Run<'_> {
    /// Options as they are now, for people and for `--cfg`.
    pub(super) fn write_options(&self) -> Result<(), TrainError> {
        let mut now = self.settings.clone();
        now.epochs = self.epochs();
        write(&self.folder.join("args.yaml"), now.to_yaml().as_bytes())
    }

    /// Starts to write a checkpoint of this very moment. All ranks call it.
    pub(super) fn checkpoint(&mut self, finished: bool) -> Result<(), TrainError> {
        self.monitor.beat("checkpoint");
        fault::at(&*self.group, Place::Checkpoint)?;
        self.settle()?;
        self.engine.fetch()?;
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

    pub(super) fn write_epoch(
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

    pub(super) fn save(&self, name: &str) -> Result<(), TrainError> {
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
}

/// The run's folder, which rank 0 makes, and what writes its checkpoints.
pub(super) fn folder(
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
