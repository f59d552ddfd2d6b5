//! Stand-alone validation.

use super::error::TrainError;
use super::plots;
use super::session::{self, Data, choice, compute_pool, gains, print_metrics};
use super::together::{agree, leads, same_path};
use super::watch;
use crate::config::Settings;
use crate::data::loader::Loader;
use crate::dist::ProcessGroup;
use crate::eval::{BatchPictures, Inference, validate};
use crate::model::Network;
use crate::model::weights::WeightsFile;
use crate::report::Console;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Validates `--weights` on a split of `--data`, as one rank of `group`. The result is the run's folder, of rank 0.
///
/// # Errors
/// [`TrainError`], also where the classes of weights and data set differ; on every rank where one fails.
pub fn val(
    settings: &Settings,
    group: &Arc<dyn ProcessGroup>,
    interrupted: &AtomicBool,
    console: &Console,
) -> Result<PathBuf, TrainError> {
    let silent = Console::silent();
    let group = &**group;
    let (rank, ranks) = (group.rank(), group.size());
    let console = if leads(group) { console } else { &silent };
    let pool = compute_pool(settings, group.sharing())?;
    let work = || {
        let file = || -> Result<_, TrainError> {
            let path = Path::new(&settings.weights);
            let file = WeightsFile::open(path)?;
            Ok((file.metadata()?, file))
        };
        let (metadata, file) = agree(group, "weights", file())?;
        let mut settings = settings.clone();
        if !settings.is_given("imgsz") {
            settings.imgsz = metadata.imgsz;
        }
        let settings = &settings;
        let network = Network::new(metadata.spec.clone(), metadata.names.len());
        let splits = [settings.split];
        let open = || -> Result<Data, TrainError> {
            let pulse = group.pulse();
            let mut data =
                Data::open_watched(settings, "val", &splits, interrupted, console, &pulse)?;
            data.writes = leads(group);
            Ok(data)
        };
        // the first one downloads or draws what is missing, the others find it there
        let first = agree(group, "data set", leads(group).then(open).transpose())?;
        let read = first.map_or_else(open, Ok).and_then(|mut data| {
            let state = file.load(&network.layout, &metadata.model, network.classes)?;
            let split = Arc::new(data.split(settings.split, Some(&metadata.names), console)?);
            let unknown = data.unknown_classes();
            if split.names != metadata.names || !unknown.is_empty() {
                let mut found = split.names.clone();
                found.extend(unknown);
                return Err(TrainError::Classes {
                    weights: settings.weights.clone(),
                    trained: metadata.names.clone(),
                    data: settings.data.clone(),
                    found,
                });
            }
            let config = session::loader_config(settings, 0, group.sharing());
            let loader = Loader::new(split.clone(), config)?;
            let folder = leads(group).then(|| data.create_folder()).transpose()?;
            Ok((state, split, loader, folder.unwrap_or_default()))
        });
        let (state, split, loader, folder) = agree(group, "labels and weights", read)?;
        let folder = same_path(group, "name of the folder", folder)?;
        console.note(format!(
            "{}: {} parameters, {} classes",
            metadata.model,
            network.parameters(),
            network.classes
        ));
        let inference = Inference::new(
            &network,
            &state,
            gains(settings),
            &crate::gpu::assigned().burn_device(),
        );
        let pass = || -> Result<(), TrainError> {
            let batches = loader.val_batches_of(settings.batch, rank, ranks);
            let mut bar = console.bar("validation", batches.images());
            let v = validate(
                group,
                &inference,
                &split,
                batches,
                &choice(settings),
                interrupted,
                |done| {
                    group.beat("validating");
                    bar.tick(done, &[], "");
                },
            )?;
            bar.finish();
            let written = v.whole.map_or(Ok(()), |v| -> Result<(), TrainError> {
                group.beat("files of a validation");
                v.predictions.write(&folder.join("predictions.json"))?;
                if settings.plots {
                    BatchPictures::new(&folder, &split, console).validation(
                        &loader,
                        settings.batch,
                        &v.predictions,
                    );
                }
                print_metrics(console, &v.metrics);
                plots::draw_validation(settings, &folder, &v, console)
            });
            agree(group, "files of a validation", written)
        };
        let end = pass();
        watch::leave(&end, &folder, group, console);
        end?;
        console.note(format!("results in {}", folder.display()));
        Ok(folder)
    };
    watch::panics(group, || pool.install(work))
}
