//! A whole model as a folder in Hugging Face's form: weights, config, tokenizer, chat template.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::FloatType;
use super::safetensors::{PlannedTensor, write_weights};
use crate::EngineError;
use crate::model::{ModelConfig, Weight};
use crate::weights::ModelFiles;

/// Files grow no larger than this, unless a single tensor does.
pub const MAX_SHARD_BYTES: u64 = 5_000_000_000;

/// How a model folder is written.
#[derive(Debug, Clone, Copy)]
pub struct FolderOptions {
    /// The type of all weights; each weight's own in the base model where none is given (F16 for quantised ones).
    pub float_type: Option<FloatType>,
    /// Weights are spread over files of at most so many bytes.
    pub max_shard_bytes: u64,
}

impl Default for FolderOptions {
    fn default() -> Self {
        Self {
            float_type: None,
            max_shard_bytes: MAX_SHARD_BYTES,
        }
    }
}

/// Writes a model that has the shape and the tokenizer of `base` into `folder`, which is there and empty. `tensor`
/// gives each weight by Hugging Face name and shape, row-major, and is asked for one after the other.
///
/// # Errors
/// [`EngineError::Io`] naming the file that cannot be written; [`EngineError::InvalidCheckpoint`] naming a weight
/// that is not finite; what the base model's files say of themselves; whatever `tensor` answers.
pub fn write_model_folder(
    folder: &Path,
    base: &ModelFiles,
    options: FolderOptions,
    tensor: impl FnMut(&str, &[usize]) -> Result<Vec<f32>, EngineError>,
) -> Result<(), EngineError> {
    write_changed_model(folder, base, &base.config, options, tensor)
}

/// As [`write_model_folder`], the model's output projection being tied to its embedding or not as `config` says.
pub(super) fn write_changed_model(
    folder: &Path,
    base: &ModelFiles,
    config: &ModelConfig,
    options: FolderOptions,
    mut tensor: impl FnMut(&str, &[usize]) -> Result<Vec<f32>, EngineError>,
) -> Result<(), EngineError> {
    let embedding = Weight::Embedding.name();
    let tensors: Vec<PlannedTensor> = Weight::all(config)
        .iter()
        .map(|weight| {
            let name = weight.name();
            let stored = || base.float_type(&name).or(base.float_type(&embedding));
            PlannedTensor {
                float_type: options.float_type.or_else(stored).unwrap_or(FloatType::F16),
                shape: weight.shape(config),
                name,
            }
        })
        .collect();
    // All weights of a model are loaded in one type; the embedding's is it where they differ.
    let float_type = tensors
        .first()
        .map_or(FloatType::F32, |embedding| embedding.float_type);
    let mut json = base.config_json()?;
    if let Value::Object(fields) = &mut json {
        fields.insert("dtype".to_owned(), json!(float_type.torch_name()));
        // Read by transformers before 4.56.
        fields.insert("torch_dtype".to_owned(), json!(float_type.torch_name()));
        if config.tie_word_embeddings != base.config.tie_word_embeddings {
            let tied = json!(config.tie_word_embeddings);
            fields.insert("tie_word_embeddings".to_owned(), tied);
        }
    }
    write_json(&folder.join("config.json"), &json)?;
    for (name, content) in base.text_files()? {
        let path = folder.join(name);
        fs::write(&path, content).map_err(|error| EngineError::io("write", path, error))?;
    }
    write_weights(folder, &tensors, options.max_shard_bytes, |planned| {
        tensor(&planned.name, &planned.shape)
    })
}

/// Writes a JSON file for people to read.
pub(super) fn write_json(path: &Path, value: &Value) -> Result<(), EngineError> {
    let text = serde_json::to_string_pretty(value).expect("JSON values are written") + "\n";
    fs::write(path, text).map_err(|error| EngineError::io("write", path, error))
}
