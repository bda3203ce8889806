//! What lies beside the weights in a model folder: copied from the base model's, or made from its GGUF file.

use serde_json::{Map, Value, json};

use super::folder::{inside, read_json};
use super::hf_config::eos_token_ids;
use super::{ModelFiles, Source};
use crate::EngineError;
use crate::export::FloatType;
use crate::gguf::{self, GgufModel};
use crate::model::{Architecture, ModelConfig, Projection, RopeScaling};

/// The files of tokenizer, chat template and generation, as far as a model has them.
const BESIDE_WEIGHTS: &[&str] = &[
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
];

impl ModelFiles {
    /// The type in which a weight is stored; none for quantised ones.
    pub fn float_type(&self, name: &str) -> Option<FloatType> {
        match &self.source {
            Source::Folder { weights, .. } => weights.float_type(name),
            Source::Gguf(model) => model.float_type(name),
        }
    }

    /// The content of the model's `config.json`; of what would be one for a GGUF file.
    ///
    /// # Errors
    /// What the GGUF file says of its tokenizer; [`EngineError::Unsupported`] for what no config can say.
    pub fn config_json(&self) -> Result<Value, EngineError> {
        let model = match &self.source {
            Source::Folder { json, .. } => return Ok(json.clone()),
            Source::Gguf(model) => model,
        };
        let mut config = config_json(&self.config)?;
        config.extend(token_ids(model)?);
        Ok(Value::Object(config))
    }

    /// What a GGUF file says of the model's tokenizer and chat template, by key.
    ///
    /// # Errors
    /// [`EngineError::InvalidModel`] for a tokenizer that the format cannot hold, and what the model's files say of
    /// themselves.
    pub fn gguf_tokenizer(&self) -> Result<Vec<(String, gguf::Value)>, EngineError> {
        let json = match &self.source {
            Source::Folder { json, .. } => json,
            Source::Gguf(model) => return Ok(model.tokenizer_metadata()),
        };
        let mut end_ids = eos_token_ids(json);
        end_ids.extend(eos_token_ids(
            &self.optional_json("generation_config.json")?,
        ));
        let tokenizer_json = read_json(&inside(&self.path, "tokenizer.json")?)?;
        let mut metadata = gguf::tokenizer_metadata(
            &tokenizer_json,
            &self.tokenizer()?,
            self.config.vocab_size,
            &end_ids,
        )
        .map_err(|message| EngineError::InvalidModel {
            path: self.path.clone(),
            message,
        })?;
        metadata.extend(self.chat_template()?.map(|template| {
            let key = "tokenizer.chat_template".to_owned();
            (key, gguf::Value::String(template))
        }));
        Ok(metadata)
    }

    /// Names and contents of all other files but the weights: the tokenizer's, the chat template and the generation
    /// config.
    ///
    /// # Errors
    /// [`EngineError::Io`] naming the file that cannot be read, and what the GGUF file says of its tokenizer.
    pub fn text_files(&self) -> Result<Vec<(&'static str, Vec<u8>)>, EngineError> {
        match &self.source {
            Source::Folder { .. } => {
                let mut files = Vec::new();
                for name in BESIDE_WEIGHTS {
                    if self.path.join(name).exists() {
                        let path = inside(&self.path, name)?;
                        let content = std::fs::read(&path)
                            .map_err(|error| EngineError::io("read", path, error))?;
                        files.push((*name, content));
                    }
                }
                Ok(files)
            }
            Source::Gguf(model) => files_of_gguf(model),
        }
    }
}

fn files_of_gguf(model: &GgufModel) -> Result<Vec<(&'static str, Vec<u8>)>, EngineError> {
    let (tokenizer, special) = model.tokenizer_json()?;
    let pretty = |value: &Value| {
        (serde_json::to_string_pretty(value).expect("JSON values are written") + "\n").into_bytes()
    };
    let mut config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": false,
        "model_max_length": model.config().max_position_embeddings,
    });
    for (role, token) in [
        ("bos_token", special.bos),
        ("eos_token", special.eos),
        ("unk_token", special.unk),
        ("pad_token", special.pad),
    ] {
        if let Some(token) = token {
            config[role] = json!(token);
        }
    }
    let mut generation = Value::Object(token_ids(model)?);
    if let several @ [_, _, ..] = model.stop_token_ids().as_slice() {
        generation["eos_token_id"] = json!(several);
    }
    let mut files = vec![
        ("tokenizer.json", pretty(&tokenizer)),
        ("tokenizer_config.json", pretty(&config)),
        ("generation_config.json", pretty(&generation)),
    ];
    if let Some(template) = model.chat_template() {
        files.push(("chat_template.jinja", template.as_bytes().to_vec()));
    }
    Ok(files)
}

/// The ids of the tokens with a role, by their names in `config.json`.
fn token_ids(model: &GgufModel) -> Result<Map<String, Value>, EngineError> {
    let tokenizer = model.tokenizer()?;
    let id = |token: &Option<String>| token.as_deref().and_then(|token| tokenizer.id_of(token));
    let special = tokenizer.special();
    let ids = [
        ("bos_token_id", id(&special.bos)),
        ("eos_token_id", id(&special.eos)),
        ("pad_token_id", id(&special.pad)),
    ];
    let known = |(name, id): (&str, Option<u32>)| Some((name.to_owned(), json!(id?)));
    Ok(ids.into_iter().filter_map(known).collect())
}

/// A config in the form that transformers reads since version 4.
///
/// # Errors
/// [`EngineError::Unsupported`] naming what no field of it can say.
fn config_json(config: &ModelConfig) -> Result<Map<String, Value>, EngineError> {
    let mut json = json!({
        "architectures": [config.architecture.class_name()],
        "model_type": config.architecture.model_type(),
        "hidden_act": "silu",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": shortest(config.rms_norm_eps),
        "rope_theta": config.rope_theta,
        "rope_scaling": rope_scaling_json(&config.rope_scaling)?,
        "tie_word_embeddings": config.tie_word_embeddings,
    });
    let window = config.sliding_window.as_ref();
    match config.architecture {
        Architecture::Llama => {
            json["attention_bias"] = json!(config.is_biased(Projection::Q));
            json["mlp_bias"] = json!(config.is_biased(Projection::Gate));
        }
        Architecture::Mistral => json["sliding_window"] = json!(window.map(|w| w.tokens)),
        Architecture::Qwen2 | Architecture::Qwen3 => {
            json["use_sliding_window"] = json!(window.is_some());
            if let Some(window) = window {
                let kinds = window.layers.iter().map(|&windowed| match windowed {
                    true => "sliding_attention",
                    false => "full_attention",
                });
                json["sliding_window"] = json!(window.tokens);
                json["layer_types"] = kinds.collect();
            }
        }
    }
    match json {
        Value::Object(fields) => Ok(fields),
        _ => Ok(Map::new()),
    }
}

fn rope_scaling_json(scaling: &RopeScaling) -> Result<Value, EngineError> {
    Ok(match scaling {
        RopeScaling::Default => Value::Null,
        RopeScaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings,
        } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor,
            "original_max_position_embeddings": original_max_position_embeddings,
        }),
        RopeScaling::Yarn {
            factor,
            original_max_position_embeddings,
            beta_fast,
            beta_slow,
            truncate,
            attention_factor,
        } => json!({
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original_max_position_embeddings,
            "beta_fast": beta_fast,
            "beta_slow": beta_slow,
            "truncate": truncate,
            "attention_factor": attention_factor,
        }),
        RopeScaling::Divisors(_) => {
            let message = "a config.json of rotary divisors given one by one";
            return Err(EngineError::Unsupported(message.to_owned()));
        }
    })
}

/// The shortest decimal that is this `f32`.
fn shortest(x: f32) -> f64 {
    x.to_string().parse().expect("a float prints as a float")
}
