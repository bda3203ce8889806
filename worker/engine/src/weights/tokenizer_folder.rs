//! Tokenizer and chat template of a folder, with or without weights beside them.

use std::path::Path;

use chrono::{DateTime, FixedOffset};
use serde_json::Value;

use super::folder::{inside, read_json};
use super::hf_config::eos_token_ids;
use crate::EngineError;
use crate::chat_template::Chat;
use crate::tokenizer::{SpecialTokens, Tokenizer};

/// Tokenizer and chat template of a folder that needs no weights. `now` is what a template that asks is told to be the
/// time.
///
/// # Errors
/// An [`EngineError`] naming the file that is missing or cannot be read.
pub fn chat_of_folder(
    folder: &Path,
    now: impl Into<DateTime<FixedOffset>>,
) -> Result<Chat, EngineError> {
    let config = optional_json(folder, "config.json")?;
    let template = chat_template(folder)?;
    Chat::new(tokenizer(folder, &config)?, template.as_deref(), now)
}

/// The tokenizer; `config` is the model's, which may name an EOS token where the tokenizer's files do not.
pub(super) fn tokenizer(folder: &Path, config: &Value) -> Result<Tokenizer, EngineError> {
    let own = optional_json(folder, "tokenizer_config.json")?;
    let map = optional_json(folder, "special_tokens_map.json")?;
    let special = SpecialTokens::from_json(&own).or(SpecialTokens::from_json(&map));
    let tokenizer = Tokenizer::from_file(&inside(folder, "tokenizer.json")?, special)?;
    Ok(tokenizer.with_eos_from(&eos_token_ids(config)))
}

/// The source of the chat template, if there is one.
pub(super) fn chat_template(folder: &Path) -> Result<Option<String>, EngineError> {
    if folder.join("chat_template.jinja").exists() {
        let path = inside(folder, "chat_template.jinja")?;
        let source =
            std::fs::read_to_string(&path).map_err(|error| EngineError::io("read", path, error))?;
        return Ok(Some(source));
    }
    let config = optional_json(folder, "tokenizer_config.json")?;
    let named_default = |templates: &Vec<Value>| {
        let default = templates
            .iter()
            .find(|template| template.get("name") == Some(&"default".into()))?;
        Some(default.get("template")?.as_str()?.to_owned())
    };
    Ok(match config.get("chat_template") {
        Some(Value::String(source)) => Some(source.clone()),
        Some(Value::Array(templates)) => named_default(templates),
        _ => None,
    })
}

/// A JSON file of a folder, or null where there is none.
pub(super) fn optional_json(folder: &Path, name: &str) -> Result<Value, EngineError> {
    match folder.join(name).exists() {
        true => read_json(&inside(folder, name)?),
        false => Ok(Value::Null),
    }
}
