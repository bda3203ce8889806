//! What a GGUF file says of a model: its keys by the names that llama.cpp reads, and its tensors' names and order of rows.

use super::Value;
use crate::EngineError;
use crate::model::{Architecture, ModelConfig, Projection, RopeScaling, Weight};
use crate::ops::rotary::Rotary;

/// The tensor of rotary divisors.
pub const ROPE_DIVISORS: &str = "rope_freqs.weight";

/// `general.architecture` of a model. llama.cpp computes Mistral as it does Llama.
pub fn architecture(config: &ModelConfig) -> &'static str {
    match config.architecture {
        Architecture::Llama | Architecture::Mistral => "llama",
        Architecture::Qwen2 => "qwen2",
        Architecture::Qwen3 => "qwen3",
    }
}

/// The shape and constants of a model as metadata.
///
/// llama.cpp knows no sliding window for these architectures, so the context ends where the window does.
///
/// # Errors
/// [`EngineError::Unsupported`] for what the format has no key for.
pub fn model_metadata(config: &ModelConfig) -> Result<Vec<(String, Value)>, EngineError> {
    let count = |n: usize| Value::Integer(n as i128);
    let context = match &config.sliding_window {
        Some(window) => config.max_position_embeddings.min(window.tokens),
        None => config.max_position_embeddings,
    };
    let mut keys = vec![
        ("block_count", count(config.num_hidden_layers)),
        ("context_length", count(context)),
        ("embedding_length", count(config.hidden_size)),
        ("feed_forward_length", count(config.intermediate_size)),
        ("attention.head_count", count(config.num_attention_heads)),
        ("attention.head_count_kv", count(config.num_key_value_heads)),
        ("attention.key_length", count(config.head_dim)),
        ("attention.value_length", count(config.head_dim)),
        (
            "attention.layer_norm_rms_epsilon",
            Value::Float(config.rms_norm_eps.into()),
        ),
        ("rope.dimension_count", count(config.head_dim)),
        ("rope.freq_base", Value::Float(config.rope_theta)),
        ("vocab_size", count(config.vocab_size)),
    ];
    keys.extend(rope_scaling(&config.rope_scaling)?);
    let architecture = architecture(config);
    Ok(keys
        .into_iter()
        .map(|(key, value)| (format!("{architecture}.{key}"), value))
        .collect())
}

fn rope_scaling(scaling: &RopeScaling) -> Result<Vec<(&'static str, Value)>, EngineError> {
    let kind = |name: &str| ("rope.scaling.type", Value::String(name.to_owned()));
    Ok(match scaling {
        // Said by a tensor where they are scaled at all.
        RopeScaling::Default | RopeScaling::Llama3 { .. } | RopeScaling::Divisors(_) => Vec::new(),
        RopeScaling::Linear { factor } => vec![
            kind("linear"),
            ("rope.scaling.factor", Value::Float(*factor)),
        ],
        RopeScaling::Yarn {
            factor,
            original_max_position_embeddings,
            beta_fast,
            beta_slow,
            truncate,
            attention_factor,
        } => {
            if !truncate {
                let what = "rope scaling \"yarn\" with truncate: false in a GGUF file";
                return Err(EngineError::Unsupported(what.to_owned()));
            }
            // llama.cpp multiplies this by the factor that is usual for YaRN.
            let usual = 0.1 * factor.ln() + 1.0;
            let original = *original_max_position_embeddings as i128;
            vec![
                kind("yarn"),
                ("rope.scaling.factor", Value::Float(*factor)),
                (
                    "rope.scaling.original_context_length",
                    Value::Integer(original),
                ),
                (
                    "rope.scaling.attn_factor",
                    Value::Float(attention_factor / usual),
                ),
                ("rope.scaling.yarn_beta_fast", Value::Float(*beta_fast)),
                ("rope.scaling.yarn_beta_slow", Value::Float(*beta_slow)),
            ]
        }
    })
}

/// What each rotary frequency is divided by, where keys do not say it: goes into [`ROPE_DIVISORS`].
pub fn rope_divisors(config: &ModelConfig) -> Option<Vec<f32>> {
    match &config.rope_scaling {
        RopeScaling::Divisors(divisors) => return Some(divisors.clone()),
        RopeScaling::Llama3 { .. } => {}
        RopeScaling::Default | RopeScaling::Linear { .. } | RopeScaling::Yarn { .. } => {
            return None;
        }
    }
    let unscaled = Rotary::new(&ModelConfig {
        rope_scaling: RopeScaling::Default,
        ..config.clone()
    });
    let scaled = Rotary::new(config);
    let divisors = unscaled
        .frequencies()
        .iter()
        .zip(scaled.frequencies())
        .map(|(unscaled, scaled)| unscaled / scaled);
    Some(divisors.collect())
}

/// Turns a projection's output rows (of a weight, a bias or LoRA's B) from Hugging Face's order into the file's,
/// which for `llama` interleaves the two halves of every head of queries and keys.
pub fn rows_in_file_order(
    values: Vec<f32>,
    projection: Projection,
    config: &ModelConfig,
) -> Vec<f32> {
    let heads = match (architecture(config), projection) {
        ("llama", Projection::Q) => config.num_attention_heads,
        ("llama", Projection::K) => config.num_key_value_heads,
        _ => return values,
    };
    let [rows, _] = config.projection_shape(projection);
    let (width, half) = (values.len() / rows, rows / heads / 2);
    let mut interleaved = Vec::with_capacity(values.len());
    for head in values.chunks_exact(2 * half * width) {
        let (first, second) = head.split_at(half * width);
        for (a, b) in first.chunks_exact(width).zip(second.chunks_exact(width)) {
            interleaved.extend_from_slice(a);
            interleaved.extend_from_slice(b);
        }
    }
    interleaved
}

/// A weight's values in the order of the file.
pub fn weight_in_file_order(values: Vec<f32>, weight: Weight, config: &ModelConfig) -> Vec<f32> {
    match weight {
        Weight::Projection(_, projection) | Weight::Bias(_, projection) => {
            rows_in_file_order(values, projection, config)
        }
        _ => values,
    }
}
