//! What a run trains, an adapter or all weights: how that begins, is saved, and is taken up again.

use std::path::Path;
use std::sync::Arc;

use trainyard_shared::training::TrainingConfig;

use super::TrainingRun;
use crate::EngineError;
use crate::adapter::{self, AdapterConfig, NamedTensor, peft_name};
use crate::export::{FloatType, FolderOptions, write_model_folder};
use crate::model::{Adapter, Llama, Parameter, TrainModel};
use crate::weights::ModelFiles;

/// What is trained.
#[derive(Debug, Clone)]
pub(super) enum Method {
    /// A LoRA adapter; the model is frozen.
    Adapter(AdapterConfig),
    /// All weights of the model.
    Full,
}

impl Method {
    /// What a config asks for.
    pub(super) fn of(config: &TrainingConfig, base_model: &str) -> Self {
        match config.use_peft {
            true => Self::Adapter(AdapterConfig::from_training(config, base_model)),
            false => Self::Full,
        }
    }

    /// The adapter, if one is trained.
    pub(super) fn adapter(&self) -> Option<&AdapterConfig> {
        match self {
            Self::Adapter(config) => Some(config),
            Self::Full => None,
        }
    }

    /// The model at the beginning of a run.
    ///
    /// # Errors
    /// Targets that match no layer, weights that cannot be read, or memory that has run out.
    pub(super) fn begin(&self, run: &TrainingRun<'_>) -> Result<TrainModel, EngineError> {
        match self {
            Self::Adapter(config) => {
                let fresh = adapter::fresh(config, &run.model.config, run.config.seed)?;
                adapted(run.model, &fresh)
            }
            Self::Full => TrainModel::full(Llama::load(run.model)?),
        }
    }

    /// The model as the checkpoint in `folder` holds it.
    ///
    /// # Errors
    /// As [`Method::begin`]; and a checkpoint of something else than is to be trained.
    pub(super) fn go_on(
        &self,
        run: &TrainingRun<'_>,
        folder: &Path,
    ) -> Result<TrainModel, EngineError> {
        let invalid = |message: &str| EngineError::InvalidCheckpoint {
            path: folder.to_owned(),
            message: message.to_owned(),
        };
        match self {
            Self::Adapter(config) => {
                let (saved, saved_config) = adapter::load(folder, &run.model.config)?;
                let targets = |config: &AdapterConfig| config.targets(&run.model.config);
                if targets(&saved_config) != targets(config) {
                    let message =
                        "its adapter has other layers, ranks or scales than the config asks for";
                    return Err(invalid(message));
                }
                let dropout = config.lora_dropout as f32;
                adapted(run.model, &Adapter { dropout, ..saved })
            }
            Self::Full => {
                let saved = ModelFiles::open(folder)?;
                if saved.config != run.model.config {
                    return Err(invalid("its model has another shape than the base model"));
                }
                let model = Llama::load(&saved)?;
                saved.release_memory();
                TrainModel::full(model)
            }
        }
    }

    /// Writes what was trained into `folder`: an adapter as PEFT reads it, or a whole model's folder.
    ///
    /// # Errors
    /// [`EngineError::Io`] where the disk does not take it; weights that are not finite.
    pub(super) fn save(
        &self,
        folder: &Path,
        parameters: &[Parameter<'_>],
        base: &ModelFiles,
    ) -> Result<(), EngineError> {
        match self {
            Self::Adapter(config) => {
                adapter::save_tensors(folder, &named(parameters), config, &base.config)
            }
            Self::Full => {
                let options = FolderOptions {
                    float_type: Some(FloatType::F32),
                    ..FolderOptions::default()
                };
                write_model_folder(folder, base, options, |name, _| {
                    let found = parameters.iter().find(|parameter| parameter.name == name);
                    let missing = || EngineError::MissingTensor {
                        name: name.to_owned(),
                    };
                    Ok(found.ok_or_else(missing)?.value.to_vec())
                })
            }
        }
    }
}

/// An adapter on the frozen base model, whose files need no memory any more.
fn adapted(base: &ModelFiles, adapter: &Adapter) -> Result<TrainModel, EngineError> {
    let model = Llama::load(base)?;
    base.release_memory();
    TrainModel::new(Arc::new(model), adapter)
}

/// The adapter's tensors as PEFT names them.
fn named<'p>(parameters: &'p [Parameter<'_>]) -> Vec<NamedTensor<'p>> {
    parameters
        .iter()
        .map(|parameter| {
            (
                peft_name(parameter.name),
                parameter.shape.to_vec(),
                &*parameter.value,
            )
        })
        .collect()
}
