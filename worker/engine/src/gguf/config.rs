//! A model's shape and constants from GGUF metadata.

use super::reader::{Structure, Value};
use crate::model::{Architecture, ModelConfig, RopeScaling};

/// Reads the shape of a `llama` model, or says what is wrong or not supported.
pub(super) fn model_config(structure: &Structure) -> Result<ModelConfig, String> {
    let metadata = Metadata(structure);
    let architecture = metadata.string("general.architecture")?;
    if architecture != "llama" {
        return Err(format!(
            "architecture {architecture:?} is not supported (only \"llama\" is)"
        ));
    }
    if metadata.optional_count("llama.expert_count")?.unwrap_or(0) > 0 {
        return Err("llama.expert_count: a mixture of experts is not supported".into());
    }
    let hidden_size = metadata.count("llama.embedding_length")?;
    let num_attention_heads = metadata.count("llama.attention.head_count")?;
    let head_dim = match metadata.optional_count("llama.attention.key_length")? {
        Some(width) => width,
        None => hidden_size.checked_div(num_attention_heads).unwrap_or(0),
    };
    if let Some(rotated) = metadata.optional_count("llama.rope.dimension_count")?
        && rotated != head_dim
    {
        return Err(format!(
            "llama.rope.dimension_count {rotated} beside heads of {head_dim} is not supported"
        ));
    }
    let vocabulary = structure
        .tensors
        .get("token_embd.weight")
        .and_then(|embedding| embedding.shape.first().copied())
        .ok_or("tensor token_embd.weight is missing")?;
    let rope_theta = metadata
        .optional_float("llama.rope.freq_base")?
        .unwrap_or(10_000.0);
    Ok(ModelConfig {
        architecture: Architecture::Llama,
        vocab_size: vocabulary,
        hidden_size,
        intermediate_size: metadata.count("llama.feed_forward_length")?,
        num_hidden_layers: metadata.count("llama.block_count")?,
        num_attention_heads,
        num_key_value_heads: metadata
            .optional_count("llama.attention.head_count_kv")?
            .unwrap_or(num_attention_heads),
        head_dim,
        max_position_embeddings: metadata.count("llama.context_length")?,
        rms_norm_eps: metadata
            .optional_float("llama.attention.layer_norm_rms_epsilon")?
            .ok_or("metadata \"llama.attention.layer_norm_rms_epsilon\" is missing")?
            as f32,
        rope_theta,
        rope_scaling: metadata.rope_scaling()?,
        tie_word_embeddings: !structure.tensors.contains_key("output.weight"),
        biased: Vec::new(),
        qk_norm: false,
        sliding_window: None,
    })
}

/// Typed look-ups that name the key when they fail.
pub(super) struct Metadata<'a>(pub &'a Structure);

impl<'a> Metadata<'a> {
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.0.metadata.get(key)
    }

    pub fn string(&self, key: &str) -> Result<&'a str, String> {
        self.optional_string(key)?
            .ok_or_else(|| format!("metadata {key:?} is missing"))
    }

    pub fn optional_string(&self, key: &str) -> Result<Option<&'a str>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(format!("metadata {key:?} is no text but {other:?}")),
        }
    }

    fn count(&self, key: &str) -> Result<usize, String> {
        self.optional_count(key)?
            .ok_or_else(|| format!("metadata {key:?} is missing"))
    }

    pub fn optional_count(&self, key: &str) -> Result<Option<usize>, String> {
        match self.get(key) {
            None => Ok(None),
            // A bound that no model reaches keeps products of counts far from overflow.
            Some(Value::Integer(n)) if (0..1 << 31).contains(n) => Ok(Some(*n as usize)),
            Some(Value::Integers(_)) => Err(format!(
                "metadata {key:?} differing by layer is not supported"
            )),
            Some(other) => Err(format!("metadata {key:?} is no count but {other:?}")),
        }
    }

    pub fn optional_float(&self, key: &str) -> Result<Option<f64>, String> {
        match self.get(key) {
            None => Ok(None),
            // Written as f32; its shortest decimal is what the model's author wrote.
            Some(Value::Float(x)) if x.is_finite() => Ok(Some(
                (*x as f32)
                    .to_string()
                    .parse()
                    .expect("a float prints as a float"),
            )),
            Some(other) => Err(format!(
                "metadata {key:?} is no finite number but {other:?}"
            )),
        }
    }

    pub fn optional_bool(&self, key: &str) -> Result<Option<bool>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(yes)) => Ok(Some(*yes)),
            Some(other) => Err(format!("metadata {key:?} is no boolean but {other:?}")),
        }
    }

    pub fn strings(&self, key: &str) -> Result<&'a [String], String> {
        match self.get(key) {
            Some(Value::Strings(items)) => Ok(items),
            Some(other) => Err(format!("metadata {key:?} is no list of text but {other:?}")),
            None => Err(format!("metadata {key:?} is missing")),
        }
    }

    pub fn optional_integers(&self, key: &str) -> Result<Option<&'a [i64]>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Integers(items)) => Ok(Some(items)),
            Some(other) => Err(format!(
                "metadata {key:?} is no list of integers but {other:?}"
            )),
        }
    }

    fn rope_scaling(&self) -> Result<RopeScaling, String> {
        if self.0.tensors.contains_key("rope_freqs.weight") {
            return Err("rotary factors in a tensor (rope_freqs.weight) are not supported".into());
        }
        let factor = self.optional_float("llama.rope.scaling.factor")?;
        match (self.optional_string("llama.rope.scaling.type")?, factor) {
            (None | Some("none"), _) => Ok(RopeScaling::Default),
            (Some("linear"), Some(factor)) => Ok(RopeScaling::Linear { factor }),
            (Some("linear"), None) => {
                Err("metadata \"llama.rope.scaling.factor\" is missing".into())
            }
            (Some(other), _) => Err(format!("rope scaling {other:?} is not supported")),
        }
    }
}
