//! The files of a base model: a Hugging Face folder or one GGUF file, checked before anything is used.

mod description;
mod fields;
mod folder;
mod hf_config;
mod hf_files;
mod hf_rope;
mod safetensors_file;
mod tokenizer_folder;

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

use chrono::{DateTime, FixedOffset};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::EngineError;
use super::chat_template::Chat;
use super::gguf::{BlockType, GgufModel};
use super::model::{ModelConfig, Weight};
use super::tokenizer::Tokenizer;
use crate::files;
use folder::{FolderWeights, inside, read_json};

pub use description::ModelDescription;
pub use safetensors_file::SafetensorsFile;
pub use tokenizer_folder::chat_of_folder;

const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// A base model's files, opened: every weight that the config calls for is there, with its shape.
#[derive(Debug)]
pub struct ModelFiles {
    /// The model's shape and constants.
    pub config: ModelConfig,
    path: PathBuf,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Folder { weights: FolderWeights, json: Value },
    Gguf(GgufModel),
}

impl ModelFiles {
    /// Opens a model folder or a `.gguf` file.
    ///
    /// # Errors
    /// An [`EngineError`] that names the file, and the field or tensor, which is missing, contradicts
    /// the others or is not supported.
    pub fn open(path: &Path) -> Result<Self, EngineError> {
        let invalid = |path: &Path, message: String| EngineError::InvalidModel {
            path: path.to_owned(),
            message,
        };
        let metadata =
            std::fs::metadata(path).map_err(|error| EngineError::io("read", path, error))?;
        let files = if metadata.is_dir() {
            let config_path = inside(path, "config.json")?;
            let json = read_json(&config_path)?;
            let config =
                hf_config::model_config(&json).map_err(|message| invalid(&config_path, message))?;
            let weights = FolderWeights::open(path)?;
            // As in transformers: an output projection of its own counts, whatever the config says of it.
            let tied = config.tie_word_embeddings && !weights.differ(EMBEDDING, HEAD)?;
            Self {
                config: ModelConfig {
                    tie_word_embeddings: tied,
                    ..config
                },
                path: path.to_owned(),
                source: Source::Folder { weights, json },
            }
        } else if path
            .extension()
            .is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
        {
            let model = GgufModel::open(path)?;
            Self {
                config: model.config().clone(),
                path: path.to_owned(),
                source: Source::Gguf(model),
            }
        } else {
            return Err(invalid(path, "neither a folder nor a .gguf file".into()));
        };
        files.config.validate()?;
        files.check_weights()?;
        Ok(files)
    }

    /// Where the model lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A weight by its Hugging Face name as `f32`, row-major, its shape being `shape`.
    ///
    /// # Errors
    /// [`EngineError::MissingTensor`], [`EngineError::ShapeMismatch`], or that its type is not supported.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, EngineError> {
        let (block_type, bytes) = self.stored(name, shape)?;
        Ok(block_type.dequantise(&bytes))
    }

    /// A weight by its Hugging Face name as it is stored, row by row, its shape being `shape`.
    ///
    /// # Errors
    /// As [`ModelFiles::tensor`].
    pub fn stored(
        &self,
        name: &str,
        shape: &[usize],
    ) -> Result<(BlockType, Cow<'_, [u8]>), EngineError> {
        self.check_weight(name, shape)?;
        match &self.source {
            Source::Folder { weights, .. } => {
                let (block_type, bytes) = weights.stored(name)?;
                Ok((block_type, bytes.into()))
            }
            Source::Gguf(model) => model
                .stored(name)
                .ok_or_else(|| EngineError::MissingTensor {
                    name: name.to_owned(),
                }),
        }
    }

    /// The model's tokenizer.
    ///
    /// # Errors
    /// An [`EngineError`] naming the file that is missing or cannot be read.
    pub fn tokenizer(&self) -> Result<Tokenizer, EngineError> {
        match &self.source {
            Source::Folder { json, .. } => tokenizer_folder::tokenizer(&self.path, json),
            Source::Gguf(model) => model.tokenizer(),
        }
    }

    /// The source of the model's chat template, if it has one.
    ///
    /// # Errors
    /// An [`EngineError`] naming the file that cannot be read.
    pub fn chat_template(&self) -> Result<Option<String>, EngineError> {
        match &self.source {
            Source::Folder { .. } => tokenizer_folder::chat_template(&self.path),
            Source::Gguf(model) => Ok(model.chat_template().map(str::to_owned)),
        }
    }

    /// Tokenizer and chat template together. `now` is what a template that asks is told to be the time.
    ///
    /// # Errors
    /// As [`ModelFiles::tokenizer`] and [`ModelFiles::chat_template`], and where the template cannot
    /// be compiled.
    pub fn chat(&self, now: impl Into<DateTime<FixedOffset>>) -> Result<Chat, EngineError> {
        Chat::new(self.tokenizer()?, self.chat_template()?.as_deref(), now)
    }

    /// Every token that ends generation: those of the config, the generation config and the tokenizer,
    /// and the one with which `chat` ends a turn.
    ///
    /// # Errors
    /// An [`EngineError`] naming the file that cannot be read.
    pub fn stop_token_ids(&self, chat: &Chat) -> Result<Vec<u32>, EngineError> {
        let mut ids = match &self.source {
            Source::Folder { json, .. } => {
                let mut ids = hf_config::eos_token_ids(json);
                ids.extend(hf_config::eos_token_ids(
                    &self.optional_json("generation_config.json")?,
                ));
                ids
            }
            Source::Gguf(model) => model.stop_token_ids(),
        };
        ids.extend(chat.tokenizer().eos());
        ids.extend(chat.end_of_turn());
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// Gives the memory back that weights take up which were read; they can be read again.
    pub fn release_memory(&self) {
        match &self.source {
            Source::Folder { weights, .. } => weights.release_memory(),
            Source::Gguf(model) => model.release_memory(),
        }
    }

    /// SHA-256 of the weights in hexadecimal: of the one file that holds them, or of several files'
    /// digests in hexadecimal, one behind the other in the order of the files' names.
    ///
    /// # Errors
    /// [`EngineError::Io`] where a file cannot be read.
    pub fn digest(&self) -> Result<String, EngineError> {
        let paths: Vec<&Path> = match &self.source {
            Source::Folder { weights, .. } => weights.paths().collect(),
            Source::Gguf(_) => vec![&self.path],
        };
        // Read as a file, not by its map, so that it does not fill this process's memory.
        let digest = |path: &&Path| match files::digest(path) {
            Ok((_, digest)) => Ok(digest),
            Err(error) => Err(EngineError::io("read", *path, error)),
        };
        let digests: Vec<String> = paths.iter().map(digest).collect::<Result<_, _>>()?;
        Ok(match digests.as_slice() {
            [one] => one.clone(),
            several => hex::encode(Sha256::digest(several.concat())),
        })
    }

    /// The type that a weight is stored in, by its Hugging Face name, if there is one.
    pub fn stored_type(&self, name: &str) -> Option<BlockType> {
        match &self.source {
            Source::Folder { weights, .. } => weights.stored(name).ok().map(|(stored, _)| stored),
            Source::Gguf(model) => model.stored_type(name),
        }
    }

    /// A JSON file of the folder, or null where there is none.
    fn optional_json(&self, name: &str) -> Result<Value, EngineError> {
        tokenizer_folder::optional_json(&self.path, name)
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        match &self.source {
            Source::Folder { weights, .. } => weights.shape(name),
            Source::Gguf(model) => model.shape(name),
        }
    }

    fn check_weight(&self, name: &str, expected: &[usize]) -> Result<(), EngineError> {
        match self.shape(name) {
            None => Err(EngineError::MissingTensor {
                name: name.to_owned(),
            }),
            Some(found) if found != expected => Err(EngineError::ShapeMismatch {
                name: name.to_owned(),
                expected: expected.to_vec(),
                found: found.to_vec(),
            }),
            Some(_) => Ok(()),
        }
    }

    /// Every weight that the config calls for, and none that would change the result if left out.
    fn check_weights(&self) -> Result<(), EngineError> {
        let mut known = HashSet::new();
        for weight in Weight::all(&self.config) {
            self.check_weight(&weight.name(), &weight.shape(&self.config))?;
            known.insert(weight.name());
        }
        let unused = match &self.source {
            Source::Folder { weights, .. } => weights
                .names()
                .find(|name| !known.contains(*name) && self.would_matter(name)),
            Source::Gguf(model) => model.unknown_tensors().next(),
        };
        match unused {
            Some(name) => Err(EngineError::Unsupported(format!(
                "{}: weight {name}",
                self.path.display()
            ))),
            None => Ok(()),
        }
    }

    /// Whether a tensor that the config does not call for belongs to what is computed: not so a copy of a tied
    /// embedding, the rotary frequencies that older files hold, or layers behind the last one.
    fn would_matter(&self, name: &str) -> bool {
        let Some(name) = name.strip_prefix("model.") else {
            return name.starts_with("lm_head.") && name != HEAD;
        };
        let layer = name
            .strip_prefix("layers.")
            .and_then(|name| name.split('.').next());
        let is_behind = layer
            .and_then(|layer| layer.parse().ok())
            .is_some_and(|layer: usize| layer >= self.config.num_hidden_layers);
        !is_behind && !name.ends_with("rotary_emb.inv_freq")
    }
}

/// The config that a `config.json` of this content stands for.
#[cfg(test)]
pub(crate) fn config_of(json: &Value) -> Result<ModelConfig, String> {
    hf_config::model_config(json)
}

#[cfg(test)]
mod config_tests;
#[cfg(test)]
mod tests;
