//! The tokenizer of a model folder: `tokenizer.json`, and the tokens with a role from beside it.

use std::path::Path;

use serde_json::Value;

use super::Tokenizer;
use crate::EngineError;

/// The texts of the tokens that have a role.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Begins a text.
    pub bos: Option<String>,
    /// Ends a text.
    pub eos: Option<String>,
    /// Stands for what the tokenizer does not know.
    pub unk: Option<String>,
    /// Fills up.
    pub pad: Option<String>,
}

impl SpecialTokens {
    /// Reads them from a `tokenizer_config.json` or `special_tokens_map.json`, where a token is its
    /// text or an object with the text as `content`.
    pub fn from_json(config: &Value) -> Self {
        let token = |name: &str| {
            let value = config.get(name)?;
            let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
            Some(text.to_owned())
        };
        Self {
            bos: token("bos_token"),
            eos: token("eos_token"),
            unk: token("unk_token"),
            pad: token("pad_token"),
        }
    }

    /// These, and those of `other` where there is none.
    pub fn or(self, other: Self) -> Self {
        Self {
            bos: self.bos.or(other.bos),
            eos: self.eos.or(other.eos),
            unk: self.unk.or(other.unk),
            pad: self.pad.or(other.pad),
        }
    }

    /// All that there are.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        [&self.bos, &self.eos, &self.unk, &self.pad]
            .into_iter()
            .flatten()
            .map(String::as_str)
    }
}

impl Tokenizer {
    /// Reads the `tokenizer.json` at `path`.
    ///
    /// # Errors
    /// [`EngineError::Io`] or [`EngineError::InvalidModel`] naming the file.
    pub fn from_file(path: &Path, special: SpecialTokens) -> Result<Self, EngineError> {
        let json = std::fs::read(path).map_err(|error| EngineError::io("read", path, error))?;
        Self::from_json(&json, special).map_err(|error| EngineError::InvalidModel {
            path: path.to_owned(),
            message: error.to_string(),
        })
    }
}
