//! A mapped GGUF file as a model: its weights by their Hugging Face names.

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::ROPE_DIVISORS;
use super::blocks::BlockType;
use super::config::{Metadata, model_config};
use super::names::gguf_name;
use super::reader::{Structure, TensorInfo, Value, read_structure};
use super::tokenizer::tokenizer_json;
use crate::EngineError;
use crate::device::MappedFile;
use crate::export::FloatType;
use crate::model::{Architecture, ModelConfig, Projection, Weight};
use crate::tokenizer::{SpecialTokens, Tokenizer};

/// A base model in one GGUF file.
#[derive(Debug)]
pub struct GgufModel {
    path: PathBuf,
    file: MappedFile,
    structure: Structure,
    config: ModelConfig,
}

impl GgufModel {
    /// Maps the file and checks its structure.
    ///
    /// # Errors
    /// [`EngineError::InvalidModel`] naming the file and what is wrong or not supported.
    pub fn open(path: &Path) -> Result<Self, EngineError> {
        let invalid = |message: String| EngineError::InvalidModel {
            path: path.to_owned(),
            message,
        };
        let file = MappedFile::open(path).map_err(|error| EngineError::io("read", path, error))?;
        let structure = read_structure(&file).map_err(invalid)?;
        let config = model_config(&structure, &file).map_err(invalid)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            structure,
            config,
        })
    }

    /// Gives the memory back that tensors take up which were read.
    pub fn release_memory(&self) {
        self.file.release();
    }

    /// The model's shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The shape of a weight by its Hugging Face name, if the file holds it.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        Some(&self.structure.tensors.get(&gguf_name(name)?)?.shape)
    }

    /// The type of a weight by its Hugging Face name, if the file holds it.
    pub fn stored_type(&self, name: &str) -> Option<BlockType> {
        Some(self.structure.tensors.get(&gguf_name(name)?)?.block_type)
    }

    /// The type of a weight by its Hugging Face name, if the file holds it and it is not quantised.
    pub fn float_type(&self, name: &str) -> Option<FloatType> {
        match self.structure.tensors.get(&gguf_name(name)?)?.block_type {
            BlockType::F32 => Some(FloatType::F32),
            BlockType::F16 => Some(FloatType::F16),
            BlockType::Bf16 => Some(FloatType::Bf16),
            _ => None,
        }
    }

    /// A weight by its Hugging Face name as `f32`, row-major, if the file holds it.
    ///
    /// Rows of query and key projections come back in Hugging Face's order: files of the architecture `llama`
    /// interleave the two halves of every head for their own layout of the rotary embedding.
    pub fn tensor(&self, name: &str) -> Option<Vec<f32>> {
        let (block_type, bytes) = self.stored(name)?;
        Some(block_type.dequantise(&bytes))
    }

    /// A weight by its Hugging Face name as it is stored, if the file holds it; rows are in Hugging Face's order.
    pub fn stored(&self, name: &str) -> Option<(BlockType, Cow<'_, [u8]>)> {
        let TensorInfo {
            shape,
            block_type,
            start,
            bytes,
        } = self.structure.tensors.get(&gguf_name(name)?)?;
        let bytes = &self.file[*start..start + bytes];
        let Some(heads) = self.interleaved_heads(name) else {
            return Some((*block_type, bytes.into()));
        };
        let rows = shape.first().copied().unwrap_or(0);
        Some((*block_type, join_halves(bytes, rows, heads).into()))
    }

    /// How many heads' rows the file interleaves in a weight, if it does.
    fn interleaved_heads(&self, name: &str) -> Option<usize> {
        if !matches!(
            self.config.architecture,
            Architecture::Llama | Architecture::Mistral
        ) {
            return None;
        }
        let (module, _) = name.rsplit_once('.')?;
        if module.ends_with(Projection::Q.module_name()) {
            Some(self.config.num_attention_heads)
        } else if module.ends_with(Projection::K.module_name()) {
            Some(self.config.num_key_value_heads)
        } else {
            None
        }
    }

    /// Names of the file's tensors that the config does not call for.
    pub fn unknown_tensors(&self) -> impl Iterator<Item = &str> {
        let known: HashSet<String> = Weight::all(&self.config)
            .into_iter()
            .filter_map(|weight| gguf_name(&weight.name()))
            .collect();
        let names = self.structure.tensors.keys().map(String::as_str);
        names.filter(move |name| !known.contains(*name) && *name != ROPE_DIVISORS)
    }

    /// The tokenizer that the file holds.
    ///
    /// # Errors
    /// [`EngineError::InvalidModel`] where it is of a kind that cannot be expressed, by name.
    pub fn tokenizer(&self) -> Result<Tokenizer, EngineError> {
        let (json, special) = self.tokenizer_json()?;
        Tokenizer::from_json(json.to_string().as_bytes(), special).map_err(|error| {
            EngineError::InvalidModel {
                path: self.path.clone(),
                message: error.to_string(),
            }
        })
    }

    /// The tokenizer that the file holds as the content of a `tokenizer.json`, and its tokens with a role.
    ///
    /// # Errors
    /// As [`GgufModel::tokenizer`].
    pub fn tokenizer_json(&self) -> Result<(serde_json::Value, SpecialTokens), EngineError> {
        tokenizer_json(&self.structure, self.config.vocab_size).map_err(|message| {
            EngineError::InvalidModel {
                path: self.path.clone(),
                message,
            }
        })
    }

    /// Everything that the file says of its tokenizer, by key.
    pub fn tokenizer_metadata(&self) -> Vec<(String, Value)> {
        let of_tokenizer = |(key, value): (&String, &Value)| {
            let is_kept = key.starts_with("tokenizer.") && *value != Value::Ignored;
            is_kept.then(|| (key.clone(), value.clone()))
        };
        let metadata = &self.structure.metadata;
        metadata.iter().filter_map(of_tokenizer).collect()
    }

    /// The chat template that the file holds.
    pub fn chat_template(&self) -> Option<&str> {
        Metadata(&self.structure)
            .optional_string("tokenizer.chat_template")
            .ok()
            .flatten()
    }

    /// Ids of the tokens that end a text or a turn, as the file names them.
    pub fn stop_token_ids(&self) -> Vec<u32> {
        ["eos_token_id", "eot_token_id", "eom_token_id"]
            .iter()
            .filter_map(|key| {
                match self
                    .structure
                    .metadata
                    .get(&format!("tokenizer.ggml.{key}"))
                {
                    Some(Value::Integer(id)) => u32::try_from(*id).ok(),
                    _ => None,
                }
            })
            .collect()
    }
}

/// Undoes the interleaving of a head's rows: the file's rows are 0, h, 1, h + 1, … of `2 h` rows a head.
fn join_halves(values: &[u8], rows: usize, heads: usize) -> Vec<u8> {
    if heads == 0 || rows == 0 || !rows.is_multiple_of(2 * heads) {
        return values.to_vec();
    }
    let (width, half) = (values.len() / rows, rows / heads / 2);
    let mut joined = Vec::with_capacity(values.len());
    for head in 0..heads {
        for part in 0..2 {
            for i in 0..half {
                let row = head * 2 * half + 2 * i + part;
                joined.extend_from_slice(&values[row * width..(row + 1) * width]);
            }
        }
    }
    joined
}
