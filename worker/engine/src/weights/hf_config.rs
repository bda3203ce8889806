//! A model's shape, constants and features from a Hugging Face `config.json`.
//!
//! What a config leaves out is what its architecture has by default in transformers.

use serde_json::Value;

use super::{fields::Fields, hf_rope::rope};
use crate::model::{Architecture, ModelConfig, Projection, SlidingWindow};

/// What an architecture has where its config does not say.
struct Defaults {
    max_position_embeddings: usize,
    /// As many as query heads where there is none.
    num_key_value_heads: Option<usize>,
    /// `hidden_size / num_attention_heads` where there is none.
    head_dim: Option<usize>,
}

impl Defaults {
    fn of(architecture: Architecture) -> Self {
        let (max_position_embeddings, num_key_value_heads, head_dim) = match architecture {
            Architecture::Llama => (2048, None, None),
            Architecture::Mistral => (131_072, Some(8), None),
            Architecture::Qwen2 => (32_768, Some(32), None),
            Architecture::Qwen3 => (32_768, Some(32), Some(128)),
        };
        Self {
            max_position_embeddings,
            num_key_value_heads,
            head_dim,
        }
    }
}

/// Keys that a token sees in a layer with a window where the config does not say.
const DEFAULT_WINDOW: usize = 4096;

/// Layers without a window, counted from the first one, where a Qwen config does not say.
const DEFAULT_MAX_WINDOW_LAYERS: usize = 28;

/// Reads a config, or says what is wrong with it or not supported.
pub(super) fn model_config(json: &Value) -> Result<ModelConfig, String> {
    let Value::Object(fields) = json else {
        return Err("is no JSON object".into());
    };
    let config = Fields(fields);
    let architecture = architecture(&config)?;
    config.refuse("quantization_config", Value::is_object)?;
    config.refuse("hidden_act", |value| value != "silu")?;
    let defaults = Defaults::of(architecture);
    let hidden_size = config.count("hidden_size")?;
    let num_attention_heads = config.count("num_attention_heads")?;
    let num_hidden_layers = config.count("num_hidden_layers")?;
    ModelConfig::check_layers(num_hidden_layers)?;
    let max_position_embeddings = config
        .optional_count("max_position_embeddings")?
        .unwrap_or(defaults.max_position_embeddings);
    let (rope_theta, rope_scaling) = rope(&config, max_position_embeddings)?;
    let missing = |name: &str| !config.0.contains_key(name);
    Ok(ModelConfig {
        architecture,
        vocab_size: config.count("vocab_size")?,
        hidden_size,
        intermediate_size: config.count("intermediate_size")?,
        num_hidden_layers,
        num_attention_heads,
        num_key_value_heads: config
            .optional_count("num_key_value_heads")?
            // Null means as many as query heads, whatever the default.
            .or(defaults
                .num_key_value_heads
                .filter(|_| missing("num_key_value_heads")))
            .unwrap_or(num_attention_heads),
        head_dim: config
            .optional_count("head_dim")?
            .or(defaults.head_dim)
            .or(hidden_size.checked_div(num_attention_heads))
            .unwrap_or(0),
        max_position_embeddings,
        rms_norm_eps: config.optional_number("rms_norm_eps")?.unwrap_or(1e-6) as f32,
        rope_theta,
        rope_scaling,
        tie_word_embeddings: config
            .optional_bool("tie_word_embeddings")?
            .unwrap_or(false),
        biased: biased(architecture, &config)?,
        qk_norm: architecture == Architecture::Qwen3,
        sliding_window: sliding_window(architecture, &config, num_hidden_layers)?,
    })
}

fn architecture(config: &Fields<'_>) -> Result<Architecture, String> {
    let names: Vec<&str> = config
        .given("architectures")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let model_type = config.given("model_type").and_then(Value::as_str);
    let known =
        |found: &dyn Fn(Architecture) -> bool| Architecture::ALL.into_iter().find(|&a| found(a));
    let found = match names.as_slice() {
        [] => known(&|a| Some(a.model_type()) == model_type),
        [name] => known(&|a| a.class_name() == *name),
        _ => None,
    };
    found.ok_or_else(|| {
        let built = Architecture::ALL.map(Architecture::class_name).join(", ");
        match names.as_slice() {
            [] => format!("model_type {model_type:?} is not supported (only those of {built} are)"),
            _ => format!(
                "architecture {} is not supported (only {built} are)",
                names.join(", ")
            ),
        }
    })
}

/// The projections that add a bias.
fn biased(architecture: Architecture, config: &Fields<'_>) -> Result<Vec<Projection>, String> {
    use Projection::{Down, Gate, K, O, Q, Up, V};
    let is_set = |name| Ok::<_, String>(config.optional_bool(name)?.unwrap_or(false));
    Ok(match architecture {
        Architecture::Mistral => Vec::new(),
        Architecture::Qwen2 => vec![Q, K, V],
        Architecture::Qwen3 if is_set("attention_bias")? => vec![Q, K, V, O],
        Architecture::Qwen3 => Vec::new(),
        Architecture::Llama => {
            let mut biased = Vec::new();
            if is_set("attention_bias")? {
                biased.extend([Q, K, V, O]);
            }
            if is_set("mlp_bias")? {
                biased.extend([Gate, Up, Down]);
            }
            biased
        }
    })
}

/// Which layers have a window of keys, and how long it is.
fn sliding_window(
    architecture: Architecture,
    config: &Fields<'_>,
    num_hidden_layers: usize,
) -> Result<Option<SlidingWindow>, String> {
    let layers = match architecture {
        Architecture::Llama => vec![false; num_hidden_layers],
        Architecture::Mistral => vec![true; num_hidden_layers],
        Architecture::Qwen2 | Architecture::Qwen3 => {
            let used = config.optional_bool("use_sliding_window")?.unwrap_or(false);
            let first = match config.given("max_window_layers") {
                // Zero is a count here: no layer is without a window.
                Some(value) => value
                    .as_u64()
                    .ok_or_else(|| format!("max_window_layers is no count but {value}"))?,
                None => DEFAULT_MAX_WINDOW_LAYERS as u64,
            };
            (0..num_hidden_layers)
                .map(|layer| used && layer as u64 >= first)
                .collect()
        }
    };
    let named = layer_types(config, num_hidden_layers)?;
    let tokens = match config.0.get("sliding_window") {
        Some(Value::Null) => None,
        _ => Some(
            config
                .optional_count("sliding_window")?
                .unwrap_or(DEFAULT_WINDOW),
        ),
    };
    let used = config.optional_bool("use_sliding_window")?.unwrap_or(false);
    let layers = match (architecture, named) {
        (_, None) => layers,
        (Architecture::Qwen2 | Architecture::Qwen3, Some(named)) => {
            if named.contains(&true) && !(used && tokens.is_some()) {
                return Err(
                    "layer_types with sliding_attention, but no sliding window is used".into(),
                );
            }
            named
        }
        (_, Some(named)) => {
            // These layers are all alike in transformers, whatever the config says of them.
            if tokens.is_some() && named != layers {
                return Err(format!(
                    "layer_types that differ from what {} computes are not supported",
                    architecture.class_name()
                ));
            }
            layers
        }
    };
    Ok(tokens
        .filter(|_| layers.contains(&true))
        .map(|tokens| SlidingWindow { tokens, layers }))
}

/// Which layers `layer_types` gives a window, where it is given.
fn layer_types(config: &Fields<'_>, layers: usize) -> Result<Option<Vec<bool>>, String> {
    let Some(types) = config.given("layer_types") else {
        return Ok(None);
    };
    let Some(types) = types.as_array().filter(|types| types.len() == layers) else {
        return Err(format!("layer_types is no list of {layers} layers"));
    };
    let is_windowed = |kind: &Value| match kind.as_str() {
        Some("full_attention") => Ok(false),
        Some("sliding_attention") => Ok(true),
        _ => Err(format!(
            "a layer of type {kind} in layer_types is not supported"
        )),
    };
    types
        .iter()
        .map(is_windowed)
        .collect::<Result<_, _>>()
        .map(Some)
}

/// All ids under `eos_token_id`, one number or a list, of a `config.json` or `generation_config.json`.
pub(super) fn eos_token_ids(json: &Value) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match json.get("eos_token_id") {
        Some(Value::Array(ids)) => ids.iter().filter_map(id).collect(),
        Some(one) => id(one).into_iter().collect(),
        None => Vec::new(),
    }
}
