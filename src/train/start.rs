//! What a run starts from: the network with what is frozen, and its weights.

use super::error::TrainError;
use crate::config::Settings;
use crate::config::model::ModelSpec;
use crate::model::Network;
use crate::model::init::{self, State};
use crate::model::weights::{Metadata, OWN_LICENCE, WeightsFile};
use crate::report::Console;
use std::path::Path;

/// What a run starts from.
pub(super) struct Start {
    pub network: Network,
    pub state: State,
    /// Of the weights that are trained, for their metadata.
    pub licence: String,
}

/// Network and weights of a new run for the classes `names`: random by `--seed`, or as far as they fit those of
/// `--weights`, whose model is taken where `--model` is not given; `--freeze` is applied.
///
/// # Errors
/// [`TrainError::Weights`], [`TrainError::Freeze`].
pub(super) fn start(
    settings: &Settings,
    spec: ModelSpec,
    names: &[String],
    console: &Console,
) -> Result<Start, TrainError> {
    let (mut network, state, licence) = if settings.weights.is_empty() {
        let network = Network::new(spec, names.len());
        let state = init::init(&network, settings.seed);
        (network, state, OWN_LICENCE.to_string())
    } else {
        let file = WeightsFile::open(Path::new(&settings.weights))?;
        let spec = match file.metadata() {
            Ok(m) if !settings.is_given("model") => {
                console.note(format!("model {}, as in {}", m.model, settings.weights));
                ModelSpec {
                    class_width: None,
                    ..m.spec
                }
            }
            _ => spec,
        };
        let network = file.network_for(&spec, names.len())?;
        let mut state = init::init(&network, settings.seed);
        let transfer = file.transfer(&network, names, &mut state)?;
        console.note(transfer.line(&settings.weights, names));
        if let Some(width) = network.spec.class_width {
            console.note(format!(
                "class branches are {width} channels wide, as in {}",
                settings.weights
            ));
        }
        if transfer.licence != OWN_LICENCE {
            console.note(format!("licence of these weights: {}", transfer.licence));
        }
        (network, state, transfer.licence)
    };
    freeze(settings, &mut network, console)?;
    Ok(Start {
        network,
        state,
        licence,
    })
}

/// The network of a run that goes on; its weights are to come from the checkpoint.
///
/// # Errors
/// [`TrainError::Freeze`].
pub(super) fn start_again(
    settings: &Settings,
    metadata: &Metadata,
    console: &Console,
) -> Result<Start, TrainError> {
    let mut network = Network::new(metadata.spec.clone(), metadata.names.len());
    let state = init::init(&network, settings.seed);
    freeze(settings, &mut network, console)?;
    Ok(Start {
        network,
        state,
        licence: metadata.licence.clone(),
    })
}

/// Applies `--freeze` to a network.
///
/// # Errors
/// [`TrainError::Freeze`].
pub(super) fn freeze(
    settings: &Settings,
    network: &mut Network,
    console: &Console,
) -> Result<(), TrainError> {
    let Some(request) = &settings.freeze else {
        return Ok(());
    };
    let frozen = network.freeze(request)?;
    console.note(format!(
        "frozen ({request}): {} of {} parameters in {} tensors, {} batch norms in evaluation mode",
        frozen.parameters,
        network.parameters(),
        frozen.tensors,
        frozen.norms
    ));
    Ok(())
}
