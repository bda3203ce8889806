//! A model's shape, constants and features from GGUF metadata.

use super::ROPE_DIVISORS;
use super::names::part_of;
use super::reader::{Structure, Value};
use crate::model::{Architecture, ModelConfig, Projection, RopeScaling, SlidingWindow};

/// Reads the config of a model of `file`, or says what is wrong or not supported.
pub(super) fn model_config(structure: &Structure, file: &[u8]) -> Result<ModelConfig, String> {
    let metadata = Metadata(structure);
    let name = metadata.string("general.architecture")?;
    let model = ModelMetadata { metadata, name };
    let architecture = match name {
        // Mistral's files bear this name too.
        "llama" if model.optional_count("attention.sliding_window")?.is_some() => {
            Architecture::Mistral
        }
        "llama" => Architecture::Llama,
        "qwen2" => Architecture::Qwen2,
        "qwen3" => Architecture::Qwen3,
        other => {
            return Err(format!(
                "architecture {other:?} is not supported (only \"llama\", \"qwen2\" and \"qwen3\" are)"
            ));
        }
    };
    if model.optional_count("expert_count")?.unwrap_or(0) > 0 {
        return Err(format!(
            "{name}.expert_count: a mixture of experts is not supported"
        ));
    }
    let hidden_size = model.count("embedding_length")?;
    let num_attention_heads = model.count("attention.head_count")?;
    let num_hidden_layers = model.count("block_count")?;
    ModelConfig::check_layers(num_hidden_layers)
        .map_err(|problem| format!("{}: {problem}", model.key("block_count")))?;
    let head_dim = match model.optional_count("attention.key_length")? {
        Some(width) => width,
        None => hidden_size.checked_div(num_attention_heads).unwrap_or(0),
    };
    for key in ["rope.dimension_count", "attention.value_length"] {
        if let Some(width) = model.optional_count(key)?
            && width != head_dim
        {
            return Err(format!(
                "{name}.{key} {width} beside heads of {head_dim} is not supported"
            ));
        }
    }
    let max_position_embeddings = model.count("context_length")?;
    let rope_theta = model.optional_float("rope.freq_base")?.unwrap_or(10_000.0);
    Ok(ModelConfig {
        architecture,
        vocab_size: structure
            .tensors
            .get("token_embd.weight")
            .and_then(|embedding| embedding.shape.first().copied())
            .ok_or("tensor token_embd.weight is missing")?,
        hidden_size,
        intermediate_size: model.count("feed_forward_length")?,
        num_hidden_layers,
        num_attention_heads,
        num_key_value_heads: model
            .optional_count("attention.head_count_kv")?
            .unwrap_or(num_attention_heads),
        head_dim,
        max_position_embeddings,
        rms_norm_eps: model
            .optional_float("attention.layer_norm_rms_epsilon")?
            .ok_or_else(|| {
                format!("metadata \"{name}.attention.layer_norm_rms_epsilon\" is missing")
            })? as f32,
        rope_theta,
        rope_scaling: rope_scaling(
            &model,
            file,
            (rope_theta, head_dim),
            max_position_embeddings,
        )?,
        tie_word_embeddings: !structure.tensors.contains_key("output.weight"),
        biased: biased(architecture, structure),
        qk_norm: architecture == Architecture::Qwen3,
        sliding_window: sliding_window(&model, num_hidden_layers)?,
    })
}

/// The projections that add a bias: those of which the file has one, and those that Qwen2 cannot be without.
fn biased(architecture: Architecture, structure: &Structure) -> Vec<Projection> {
    use Projection::{K, Q, V};
    let must = |p| architecture == Architecture::Qwen2 && matches!(p, Q | K | V);
    let has = |p| {
        structure
            .tensors
            .contains_key(&format!("blk.0.{}.bias", part_of(p)))
    };
    Projection::ALL
        .into_iter()
        .filter(|&p| must(p) || has(p))
        .collect()
}

fn sliding_window(
    model: &ModelMetadata<'_>,
    layers: usize,
) -> Result<Option<SlidingWindow>, String> {
    let pattern = model.key("attention.sliding_window_pattern");
    if model.metadata.get(&pattern).is_some() {
        return Err(format!("metadata {pattern:?} is not supported"));
    }
    let tokens = model.optional_count("attention.sliding_window")?;
    Ok(tokens
        .filter(|&tokens| tokens > 0)
        .map(|tokens| SlidingWindow {
            tokens,
            layers: vec![true; layers],
        }))
}

fn rope_scaling(
    model: &ModelMetadata<'_>,
    file: &[u8],
    (theta, head_dim): (f64, usize),
    max_position_embeddings: usize,
) -> Result<RopeScaling, String> {
    let factor = model.optional_float("rope.scaling.factor")?;
    let kind = model
        .metadata
        .optional_string(&model.key("rope.scaling.type"))?
        .filter(|kind| *kind != "none");
    let attention = model
        .optional_float("rope.scaling.attn_factor")?
        .unwrap_or(1.0);
    if let Some(divisors) = divisors(model.metadata.0, file, head_dim)? {
        return match kind {
            None => Ok(llama3_of(&divisors, theta).unwrap_or(RopeScaling::Divisors(divisors))),
            Some(kind) => Err(format!(
                "rope scaling {kind:?} beside {ROPE_DIVISORS} is not supported"
            )),
        };
    }
    if kind != Some("yarn") && attention != 1.0 {
        return Err(format!(
            "rope.scaling.attn_factor {attention} is not supported here"
        ));
    }
    let needed = || {
        factor.ok_or_else(|| format!("metadata {:?} is missing", model.key("rope.scaling.factor")))
    };
    match kind {
        None => Ok(RopeScaling::Default),
        Some("linear") => Ok(RopeScaling::Linear { factor: needed()? }),
        Some("yarn") => {
            for (key, usual) in [
                ("yarn_log_multiplier", 0.0),
                ("yarn_ext_factor", 1.0),
                ("yarn_attn_factor", 1.0),
            ] {
                let key = format!("rope.scaling.{key}");
                if let Some(value) = model.optional_float(&key)?.filter(|value| *value != usual) {
                    return Err(format!("{key} {value} is not supported"));
                }
            }
            let factor = needed()?;
            Ok(RopeScaling::Yarn {
                factor,
                original_max_position_embeddings: model
                    .optional_count("rope.scaling.original_context_length")?
                    .unwrap_or(max_position_embeddings),
                beta_fast: model
                    .optional_float("rope.scaling.yarn_beta_fast")?
                    .unwrap_or(RopeScaling::BETA_FAST),
                beta_slow: model
                    .optional_float("rope.scaling.yarn_beta_slow")?
                    .unwrap_or(RopeScaling::BETA_SLOW),
                truncate: true,
                attention_factor: attention * RopeScaling::yarn_attention(factor, 1.0),
            })
        }
        Some(other) => Err(format!("rope scaling {other:?} is not supported")),
    }
}

/// What each frequency is divided by, where the file says so one by one.
fn divisors(
    structure: &Structure,
    file: &[u8],
    head_dim: usize,
) -> Result<Option<Vec<f32>>, String> {
    let Some(tensor) = structure.tensors.get(ROPE_DIVISORS) else {
        return Ok(None);
    };
    let bytes = &file[tensor.start..tensor.start + tensor.bytes];
    let divisors = tensor.block_type.dequantise(bytes);
    match divisors.len() == head_dim / 2 && divisors.iter().all(|d| d.is_finite() && *d > 0.0) {
        true => Ok(Some(divisors)),
        false => Err(format!(
            "{ROPE_DIVISORS}: not {} divisors above 0",
            head_dim / 2
        )),
    }
}

/// The scaling of Llama 3 whose divisors these are, with the constants that all of its models have.
pub(super) fn llama3_of(divisors: &[f32], theta: f64) -> Option<RopeScaling> {
    const LOW: f64 = 1.0;
    const HIGH: f64 = 4.0;
    const ORIGINAL: usize = 8192;
    let factor = divisors.iter().copied().fold(1.0, f32::max);
    let is_alike = |(i, divisor): (usize, &f32)| {
        let frequency = theta.powf(-(i as f64) / divisors.len() as f64);
        let turns = ORIGINAL as f64 * frequency / std::f64::consts::TAU;
        let kept = ((turns - LOW) / (HIGH - LOW)).clamp(0.0, 1.0);
        let expected = 1.0 / ((1.0 - kept) / f64::from(factor) + kept);
        // As exact as f32 arithmetic over the same formula is.
        (f64::from(*divisor) - expected).abs() < 1e-5 * expected
    };
    divisors
        .iter()
        .enumerate()
        .all(is_alike)
        .then_some(RopeScaling::Llama3 {
            factor: f64::from(factor),
            low_freq_factor: LOW,
            high_freq_factor: HIGH,
            original_max_position_embeddings: ORIGINAL,
        })
}

/// Look-ups of keys that begin with the architecture's name.
struct ModelMetadata<'a> {
    metadata: Metadata<'a>,
    name: &'a str,
}

impl ModelMetadata<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }

    fn count(&self, key: &str) -> Result<usize, String> {
        self.metadata.count(&self.key(key))
    }

    fn optional_count(&self, key: &str) -> Result<Option<usize>, String> {
        self.metadata.optional_count(&self.key(key))
    }

    fn optional_float(&self, key: &str) -> Result<Option<f64>, String> {
        self.metadata.optional_float(&self.key(key))
    }
}

/// Typed look-ups that name the key when they fail.
pub(super) struct Metadata<'a>(pub &'a Structure);

impl<'a> Metadata<'a> {
    pub fn get(&self, key: &str) -> Option<&'a Value> {
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

    pub fn floats(&self, key: &str) -> Result<&'a [f64], String> {
        match self.get(key) {
            Some(Value::Floats(items)) => Ok(items),
            Some(other) => Err(format!(
                "metadata {key:?} is no list of numbers but {other:?}"
            )),
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
}
