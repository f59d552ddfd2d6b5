//! Everything between the options and the first batch that a rank does for itself; no files but the data set's.

use super::checkpoint::Header;
use super::class_weights::class_weights;
use super::error::TrainError;
use super::fault;
use super::plan::{self, Plan};
use super::resume::Resumed;
use super::session::{Data, train_splits};
use super::start::{Start, start, start_again};
use super::together::{agree, leads};
use crate::config::dataset::SplitName;
use crate::config::model::ModelSpec;
use crate::config::{OPTIONS, Settings};
use crate::data::Split;
use crate::data::fingerprint::fingerprint;
use crate::data::sampler::Sampler;
use crate::dist::{ProcessGroup, handshake};
use crate::ops;
use crate::report::Console;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What a run is made of.
pub(super) struct Prepared {
    pub data: Data,
    pub train: Arc<Split>,
    pub val: Option<Arc<Split>>,
    /// Hash of the data set.
    pub hash: String,
    pub start: Start,
    pub class_weights: Option<Arc<[f64]>>,
    pub plan: Plan,
    /// Lanes of all ranks together.
    pub lanes: usize,
}

/// Reads data and weights and resolves the plan, on all ranks, and makes sure that they are about to do the same.
///
/// # Errors
/// [`TrainError`], on every rank where one fails.
pub(super) fn prepare(
    settings: &Settings,
    resumed: Option<&Resumed>,
    group: &dyn ProcessGroup,
    interrupted: &AtomicBool,
    console: &Console,
) -> Result<Prepared, TrainError> {
    let header = resumed.map(|r| &r.checkpoint.header);
    let open = || -> Result<(ModelSpec, Data), TrainError> {
        // before the data are read, which may take long
        let spec = match header {
            Some(h) => h.metadata.spec.clone(),
            None => ModelSpec::resolve(&settings.model)?,
        };
        let splits = train_splits(settings);
        let pulse = group.pulse();
        let mut data = Data::open_watched(settings, "train", splits, interrupted, console, &pulse)?;
        data.folder = resumed.map(|r| r.folder.clone());
        data.writes = leads(group);
        Ok((spec, data))
    };
    // the first one downloads or draws what is missing, the others find it there
    let first = leads(group).then(open).transpose();
    let first = agree(group, "data set", first)?;
    let own = first
        .map_or_else(open, Ok)
        .and_then(|(spec, data)| rest(settings, resumed, header, spec, data, group, console));
    let prepared = agree(group, "labels and weights", own)?;
    handshake(group, &fields(settings, &prepared))?;
    Ok(prepared)
}

fn rest(
    settings: &Settings,
    resumed: Option<&Resumed>,
    header: Option<&Header>,
    spec: ModelSpec,
    mut data: Data,
    group: &dyn ProcessGroup,
    console: &Console,
) -> Result<Prepared, TrainError> {
    let (lanes, lanes_line) = plan::lanes(settings, group.size(), crate::gpu::assigned())?;
    group.beat("scanning labels");
    fault::at(group, fault::Place::DataScan)?;
    let train = Arc::new(data.split(SplitName::Train, None, console)?);
    let val = match settings.val {
        true => Some(Arc::new(data.split(
            SplitName::Val,
            Some(&train.names),
            console,
        )?)),
        false => None,
    };
    group.beat("reading weights");
    let hash = fingerprint([&train].into_iter().chain(&val).map(|s| &**s));
    if let Some(r) = resumed
        && r.checkpoint.header.data != hash
    {
        return Err(TrainError::DataChanged {
            data: settings.data.clone(),
            run: r.folder.clone(),
        });
    }
    let start = match header {
        Some(h) => start_again(settings, &h.metadata, console)?,
        None => start(settings, spec, &train.names, console)?,
    };
    let class_weights = class_weights(settings, &train, console)?;
    let images = train.images.len();
    let batches = Sampler {
        images,
        batch: settings.batch,
        seed: settings.seed,
        drop_last: settings.drop_last,
    }
    .batches();
    if batches == 0 {
        return Err(TrainError::NoBatch {
            images,
            batch: settings.batch,
        });
    }
    if settings.batch < group.size() {
        return Err(TrainError::BatchBelowRanks {
            batch: settings.batch,
            ranks: group.size(),
        });
    }
    let mut plan = plan::resolve(settings, images, batches, train.names.len());
    plan.lines.extend(lanes_line);
    Ok(Prepared {
        data,
        train,
        val,
        hash,
        start,
        class_weights,
        plan,
        lanes,
    })
}

/// Options that each machine may have its own of: they do not change the result. (What is in the data set is compared,
/// wherever it is.)
const OF_A_MACHINE: [&str; 13] = [
    "cfg",
    "data",
    "device",
    "join-timeout",
    "master",
    "nnodes",
    "node-rank",
    "ports",
    "project",
    "threads",
    "timeout",
    "token-file",
    "workers",
];

/// What must be the same on all ranks before the first step.
fn fields(settings: &Settings, p: &Prepared) -> Vec<(&'static str, String)> {
    let mut fields = vec![
        ("version", env!("CARGO_PKG_VERSION").into()),
        ("instruction set", ops::isa().name().into()),
        ("lanes", p.lanes.to_string()),
    ];
    // one by one, so that the message names the option
    for spec in OPTIONS.iter().filter(|s| !OF_A_MACHINE.contains(&s.name)) {
        let text = settings.text_of(spec).unwrap_or_else(|| "not set".into());
        fields.push((spec.name, text));
    }
    let layout = format!("{:?}", p.start.network.layout);
    let layout = Sha256::digest(layout.as_bytes());
    let model = layout[..8].iter().map(|b| format!("{b:02x}"));
    let name = &p.start.network.spec.name;
    fields.push(("model", format!("{name} {}", model.collect::<String>())));
    fields.push(("data set", p.hash.clone()));
    fields
}
