//! What a run trains, an adapter or all weights: how that begins, is saved, and is taken up again.

use std::path::Path;

use trainyard_shared::training::TrainingConfig;

use super::TrainingRun;
use crate::EngineError;
use crate::adapter::{self, ADAPTER_WEIGHTS, AdapterConfig, NamedTensor, peft_name, read_tensor};
use crate::export::{FloatType, FolderOptions, write_model_folder};
use crate::model::{Adapter, Holding, Llama, ModelConfig, Parameter, TrainModel, Weight};
use crate::weights::{ModelFiles, SafetensorsFile};

/// What is trained.
#[derive(Debug, Clone)]
pub(super) enum Method {
    /// A LoRA adapter; the model is frozen.
    Adapter(Box<AdapterConfig>),
    /// All weights of the model.
    Full,
}

impl Method {
    /// What a config asks for.
    pub(super) fn of(config: &TrainingConfig, base_model: &str) -> Self {
        match config.use_peft {
            true => Self::Adapter(Box::new(AdapterConfig::from_training(config, base_model))),
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

    /// Whether weights of the model itself are trained.
    pub(super) fn trains_weights(&self) -> bool {
        match self {
            Self::Adapter(config) => !config.modules_to_save.is_empty(),
            Self::Full => true,
        }
    }

    /// Rank of each projection's pair in each layer, 0 for none.
    ///
    /// # Errors
    /// Targets that match no layer.
    pub(super) fn ranks(&self, model: &ModelConfig) -> Result<Vec<[usize; 7]>, EngineError> {
        let mut ranks = vec![[0; 7]; model.num_hidden_layers];
        if let Self::Adapter(config) = self {
            for target in config.targets(model).map_err(wrong_targets)? {
                ranks[target.layer][target.projection as usize] = target.rank;
            }
        }
        Ok(ranks)
    }

    /// The model's own weights that are trained beside an adapter's pairs.
    ///
    /// # Errors
    /// Names of modules that there are not.
    pub(super) fn whole_weights(&self, model: &ModelConfig) -> Result<Vec<Weight>, EngineError> {
        match self {
            Self::Adapter(config) => whole_weights(config, model),
            Self::Full => Ok(Vec::new()),
        }
    }

    /// How many values are trained.
    ///
    /// # Errors
    /// Targets that match no layer.
    pub(super) fn trained(&self, model: &ModelConfig) -> Result<u64, EngineError> {
        let Self::Adapter(config) = self else {
            return Ok(model.parameter_count());
        };
        let targets = config.targets(model).map_err(wrong_targets)?;
        let values = targets.iter().map(|target| {
            let [output, input] = model.projection_shape(target.projection);
            (target.rank * (output + input)) as u64
        });
        let whole = whole_weights(config, model)?;
        let whole = whole
            .iter()
            .map(|weight| weight.shape(model).iter().product::<usize>() as u64);
        Ok(values.chain(whole).sum())
    }

    /// The model at the beginning of a run.
    ///
    /// # Errors
    /// Targets that match no layer, weights that cannot be read, or memory that has run out.
    pub(super) fn begin(&self, run: &TrainingRun<'_>) -> Result<TrainModel, EngineError> {
        match self {
            Self::Adapter(config) => {
                let fresh = adapter::fresh(config, &run.model.config, run.config.seed)?;
                let weights = whole_weights(config, &run.model.config)?;
                adapted(run.model, run.holding(), &fresh, &weights)
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
                let saved = adapter::load_all(folder, &run.model.config)?;
                let trained = |config: &AdapterConfig| {
                    let model = &run.model.config;
                    (config.targets(model), config.whole_weights(model))
                };
                if trained(&saved.config) != trained(config) {
                    let message = "its adapter has other layers, ranks, scales or modules_to_save than the config asks for";
                    return Err(invalid(message));
                }
                let pairs = Adapter {
                    dropout: config.lora_dropout as f32,
                    ..saved.pairs
                };
                let weights = whole_weights(config, &run.model.config)?;
                let mut model = adapted(run.model, run.holding(), &pairs, &weights)?;
                self.take_up(&folder.join(ADAPTER_WEIGHTS), &mut model.parameters_mut())?;
                Ok(model)
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

    /// The file with the weights in what [`Method::save`] writes, where they are in one.
    pub(super) fn weights_file(&self) -> &'static str {
        match self {
            Self::Adapter(_) => ADAPTER_WEIGHTS,
            Self::Full => "model.safetensors",
        }
    }

    /// Reads the values of all parameters from such a file.
    ///
    /// # Errors
    /// A tensor that is missing, or of another shape.
    pub(super) fn take_up(
        &self,
        path: &Path,
        parameters: &mut [Parameter<'_>],
    ) -> Result<(), EngineError> {
        let file = SafetensorsFile::open(path)?;
        for parameter in parameters {
            let name = match self {
                Self::Adapter(_) => peft_name(parameter.name),
                Self::Full => parameter.name.to_owned(),
            };
            let values = read_tensor(&file, &name, parameter.shape)?;
            parameter.value.copy_from_slice(&values);
        }
        Ok(())
    }

    /// Writes what was trained into `folder`: an adapter as PEFT reads it, or a whole model's folder with weights in
    /// files of at most `max_shard_bytes`.
    ///
    /// # Errors
    /// [`EngineError::Io`] where the disk does not take it; weights that are not finite.
    pub(super) fn save(
        &self,
        folder: &Path,
        parameters: &[Parameter<'_>],
        base: &ModelFiles,
        max_shard_bytes: u64,
    ) -> Result<(), EngineError> {
        match self {
            Self::Adapter(config) => {
                adapter::save_tensors(folder, &named(parameters), config, &base.config)
            }
            Self::Full => {
                let options = FolderOptions {
                    float_type: Some(FloatType::F32),
                    max_shard_bytes,
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

/// An adapter on the frozen base model, whose files need no memory any more, with the weights that are trained too.
pub(super) fn adapted(
    files: &ModelFiles,
    holding: Holding,
    adapter: &Adapter,
    weights: &[Weight],
) -> Result<TrainModel, EngineError> {
    let model = Llama::load_as(files, holding)?;
    files.release_memory();
    TrainModel::with_weights(model, adapter, weights)
}

fn whole_weights(config: &AdapterConfig, model: &ModelConfig) -> Result<Vec<Weight>, EngineError> {
    let wrong = |message| EngineError::InvalidSetting {
        field: "modules_to_save",
        message,
    };
    config.whole_weights(model).map_err(wrong)
}

fn wrong_targets(message: String) -> EngineError {
    EngineError::InvalidSetting {
        field: "target_modules",
        message,
    }
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
