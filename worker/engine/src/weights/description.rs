//! What a model is like, from a folder that needs no weights or from a `.gguf` file.

use std::path::{Path, PathBuf};

use chrono::{DateTime, FixedOffset};

use super::folder::{inside, read_json};
use super::{ModelFiles, chat_of_folder, hf_config};
use crate::EngineError;
use crate::chat_template::Chat;
use crate::model::ModelConfig;

/// A model's shape and where its tokenizer is.
#[derive(Debug)]
pub struct ModelDescription {
    /// The model's shape and constants.
    pub config: ModelConfig,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Folder(PathBuf),
    Gguf(Box<ModelFiles>),
}

impl ModelDescription {
    /// Reads the config of a folder or of a `.gguf` file.
    ///
    /// # Errors
    /// An [`EngineError`] that names the file and what is missing or not supported.
    pub fn open(path: &Path) -> Result<Self, EngineError> {
        if !path.is_dir() {
            let files = ModelFiles::open(path)?;
            return Ok(Self {
                config: files.config.clone(),
                source: Source::Gguf(Box::new(files)),
            });
        }
        let config_path = inside(path, "config.json")?;
        let json = read_json(&config_path)?;
        let config =
            hf_config::model_config(&json).map_err(|message| EngineError::InvalidModel {
                path: config_path,
                message,
            })?;
        config.validate()?;
        Ok(Self {
            config,
            source: Source::Folder(path.to_owned()),
        })
    }

    /// The tokenizer and chat template. `now` is what a template that asks is told to be the time.
    ///
    /// # Errors
    /// As [`ModelDescription::open`].
    pub fn chat(&self, now: impl Into<DateTime<FixedOffset>>) -> Result<Chat, EngineError> {
        match &self.source {
            Source::Folder(folder) => chat_of_folder(folder, now),
            Source::Gguf(files) => files.chat(now),
        }
    }
}
