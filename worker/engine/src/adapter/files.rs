//! An adapter's folder: `adapter_config.json` and `adapter_model.safetensors` under PEFT's names.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::Value;
use trainyard_shared::json;

use super::{AdapterConfig, WholeWeights};
use crate::EngineError;
use crate::model::{Adapter, LoraModule, ModelConfig, Projection};
use crate::weights::SafetensorsFile;

/// Name of the config's file.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";
/// Name of the weights' file.
pub const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";

/// What PEFT puts in front of the name of a module.
const PREFIX: &str = "base_model.model.";

/// A tensor of an adapter: its name in the file, shape and values.
pub type NamedTensor<'a> = (String, Vec<usize>, &'a [f32]);

/// The adapter's tensors by PEFT's names, in order.
pub fn named_tensors<'a>(adapter: &'a Adapter, model: &ModelConfig) -> Vec<NamedTensor<'a>> {
    let mut tensors = Vec::new();
    for layer in 0..adapter.layers.len() {
        for projection in Projection::ALL {
            if let Some(module) = adapter.module(layer, projection) {
                let [outputs, inputs] = model.projection_shape(projection);
                let [a, b] = names(layer, projection);
                tensors.push((a, vec![module.rank, inputs], module.a.as_slice()));
                tensors.push((b, vec![outputs, module.rank], module.b.as_slice()));
            }
        }
    }
    tensors
}

/// Writes an adapter into `folder`, which must be there.
///
/// # Errors
/// [`EngineError::Io`] where a file cannot be written; [`EngineError::InvalidCheckpoint`] for weights
/// that are not finite, which are never written.
pub fn save(
    folder: &Path,
    adapter: &Adapter,
    config: &AdapterConfig,
    model: &ModelConfig,
) -> Result<(), EngineError> {
    save_tensors(folder, &named_tensors(adapter, model), config, model)
}

/// As [`save`], from tensors under PEFT's names.
///
/// # Errors
/// As [`save`].
pub fn save_tensors(
    folder: &Path,
    tensors: &[NamedTensor<'_>],
    config: &AdapterConfig,
    model: &ModelConfig,
) -> Result<(), EngineError> {
    let weights = folder.join(ADAPTER_WEIGHTS);
    if let Some((name, ..)) = tensors
        .iter()
        .find(|(.., values)| values.iter().any(|x| !x.is_finite()))
    {
        let message = format!("tensor {name} holds values that are not finite");
        return Err(EngineError::InvalidCheckpoint {
            path: weights,
            message,
        });
    }
    let json = config
        .to_json(model)
        .map_err(|message| EngineError::InvalidSetting {
            field: "target_modules",
            message,
        })?;
    let text = serde_json::to_string_pretty(&json).expect("JSON values are written") + "\n";
    let path = folder.join(ADAPTER_CONFIG);
    std::fs::write(&path, text).map_err(|error| EngineError::io("write", &path, error))?;
    write_tensors(&weights, tensors)
}

/// The name in PEFT's files of a parameter such as `model.layers.0.self_attn.q_proj.lora_A`, or of a weight of the
/// model such as `lm_head.weight`.
pub fn peft_name(parameter: &str) -> String {
    match parameter.ends_with(".weight") || parameter.ends_with(".bias") {
        true => format!("{PREFIX}{parameter}"),
        false => format!("{PREFIX}{parameter}.weight"),
    }
}

/// Writes tensors as f32 into a safetensors file.
///
/// # Errors
/// [`EngineError::Io`] where it cannot be written.
pub(crate) fn write_tensors(path: &Path, tensors: &[NamedTensor<'_>]) -> Result<(), EngineError> {
    let failed = |error: std::io::Error| EngineError::io("write", path, error);
    let mut views = Vec::new();
    for (name, shape, values) in tensors {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytemuck::cast_slice(values))
            .map_err(|error| failed(std::io::Error::other(error)))?;
        views.push((name.as_str(), view));
    }
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    serialize_to_file(views, Some(format), path)
        .map_err(|error| failed(std::io::Error::other(error)))
}

/// The name of the base model that an adapter's config says it was made for, if it does.
///
/// # Errors
/// As for [`load`].
pub fn base_model_of(folder: &Path) -> Result<Option<String>, EngineError> {
    let json = read_config(&folder.join(ADAPTER_CONFIG))?;
    let name = json.get("base_model_name_or_path").and_then(Value::as_str);
    Ok(name.filter(|name| !name.is_empty()).map(str::to_owned))
}

/// Whether an adapter replaces weights of the model, so that it needs a model of its own.
///
/// # Errors
/// As for [`load`].
pub fn replaces_weights(folder: &Path) -> Result<bool, EngineError> {
    let json = read_config(&folder.join(ADAPTER_CONFIG))?;
    let modules = json.get("modules_to_save").and_then(Value::as_array);
    Ok(modules.is_some_and(|modules| !modules.is_empty()))
}

fn read_config(path: &Path) -> Result<Value, EngineError> {
    let text =
        std::fs::read_to_string(path).map_err(|error| EngineError::io("read", path, error))?;
    json::parse(&text).map_err(|error| EngineError::InvalidCheckpoint {
        path: path.to_owned(),
        message: error.to_string(),
    })
}

/// An adapter with all that it brings along.
#[derive(Debug)]
pub struct SavedAdapter {
    /// Its pairs.
    pub pairs: Adapter,
    /// The model's weights that it replaces (`modules_to_save`).
    pub whole: WholeWeights,
    /// What its config says.
    pub config: AdapterConfig,
}

/// Reads an adapter for a model that is pairs alone.
///
/// # Errors
/// As [`load_all`]; and [`EngineError::InvalidCheckpoint`] for one that replaces weights of the model.
pub fn load(folder: &Path, model: &ModelConfig) -> Result<(Adapter, AdapterConfig), EngineError> {
    let saved = load_all(folder, model)?;
    if !saved.whole.is_empty() {
        return Err(EngineError::InvalidCheckpoint {
            path: folder.join(ADAPTER_CONFIG),
            message: "modules_to_save: weights of the model itself are not supported here"
                .to_owned(),
        });
    }
    Ok((saved.pairs, saved.config))
}

/// Reads an adapter for a model.
///
/// # Errors
/// [`EngineError::InvalidCheckpoint`] naming the file and what is wrong with it, is missing, does not
/// belong to this model, or is not supported.
pub fn load_all(folder: &Path, model: &ModelConfig) -> Result<SavedAdapter, EngineError> {
    let path = folder.join(ADAPTER_CONFIG);
    let invalid = |message: String| EngineError::InvalidCheckpoint {
        path: path.clone(),
        message,
    };
    let json = read_config(&path)?;
    let config = AdapterConfig::from_json(&json).map_err(invalid)?;
    let targets = config.targets(model).map_err(invalid)?;
    let weights = config.whole_weights(model).map_err(invalid)?;
    let path = folder.join(ADAPTER_WEIGHTS);
    let file = SafetensorsFile::open(&path)?;
    let invalid = |message: String| EngineError::InvalidCheckpoint {
        path: path.clone(),
        message,
    };
    let mut pairs = Adapter::empty(model);
    pairs.dropout = config.lora_dropout as f32;
    let mut used = HashSet::new();
    for target in &targets {
        let [outputs, inputs] = model.projection_shape(target.projection);
        let [a, b] = names(target.layer, target.projection);
        pairs.layers[target.layer][target.projection as usize] = Some(LoraModule {
            rank: target.rank,
            scale: target.scale as f32,
            a: read_tensor(&file, &a, &[target.rank, inputs])?,
            b: read_tensor(&file, &b, &[outputs, target.rank])?,
        });
        used.extend([a, b]);
    }
    let mut whole = WholeWeights::default();
    for weight in weights {
        let name = peft_name(&weight.name());
        let values = read_tensor(&file, &name, &weight.shape(model))?;
        whole.0.push((weight, values));
        used.insert(name);
    }
    match file.names().find(|name| !used.contains(*name)) {
        Some(name) if name.contains("lora_magnitude_vector") => {
            Err(invalid(format!("tensor {name}: DoRA is not supported")))
        }
        Some(name) => Err(invalid(format!(
            "tensor {name} belongs to no layer that the config names"
        ))),
        None => Ok(SavedAdapter {
            pairs,
            whole,
            config,
        }),
    }
}

/// Reads a tensor of this shape whose values are finite.
pub(crate) fn read_tensor(
    file: &SafetensorsFile,
    name: &str,
    shape: &[usize],
) -> Result<Vec<f32>, EngineError> {
    let found = file.shape(name).ok_or_else(|| EngineError::MissingTensor {
        name: name.to_owned(),
    })?;
    if found != shape {
        return Err(EngineError::ShapeMismatch {
            name: name.to_owned(),
            expected: shape.to_vec(),
            found: found.to_vec(),
        });
    }
    let values = file.tensor(name)?;
    if values.iter().any(|x| !x.is_finite()) {
        return Err(EngineError::InvalidCheckpoint {
            path: file.path().to_owned(),
            message: format!("tensor {name} holds values that are not finite"),
        });
    }
    Ok(values)
}

/// PEFT's names of the two matrices of a module.
fn names(layer: usize, projection: Projection) -> [String; 2] {
    ["A", "B"].map(|matrix| {
        format!(
            "{PREFIX}{}.lora_{matrix}.weight",
            projection.full_name(layer)
        )
    })
}
