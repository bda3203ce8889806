//! A model's shape and constants from a Hugging Face `config.json`, in its older and its newer form.

use serde_json::{Map, Value};

use crate::model::{Architecture, ModelConfig, RopeScaling};

/// The architecture that is built.
const ARCHITECTURE: &str = "LlamaForCausalLM";

/// Reads a config, or says what is wrong with it or not supported.
pub(super) fn model_config(json: &Value) -> Result<ModelConfig, String> {
    let Value::Object(fields) = json else {
        return Err("is no JSON object".into());
    };
    let config = Fields(fields);
    let architectures: Vec<&str> = fields
        .get("architectures")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    match (
        architectures.as_slice(),
        fields.get("model_type").and_then(Value::as_str),
    ) {
        ([ARCHITECTURE], _) | ([], Some("llama")) => {}
        ([], model_type) => {
            return Err(format!(
                "model_type {model_type:?} is not supported (only \"llama\" is)"
            ));
        }
        (others, _) => {
            return Err(format!(
                "architecture {} is not supported (only {ARCHITECTURE} is)",
                others.join(", ")
            ));
        }
    }
    config.refuse("attention_bias", |value| value == &Value::Bool(true))?;
    config.refuse("mlp_bias", |value| value == &Value::Bool(true))?;
    config.refuse("quantization_config", Value::is_object)?;
    config.refuse("hidden_act", |value| value != "silu" && !value.is_null())?;
    config.refuse("partial_rotary_factor", |value| {
        value.as_f64() != Some(1.0) && !value.is_null()
    })?;
    let hidden_size = config.count("hidden_size")?;
    let num_attention_heads = config.count("num_attention_heads")?;
    let max_position_embeddings = config
        .optional_count("max_position_embeddings")?
        .unwrap_or(2048);
    let (rope_theta, rope_scaling) = rope(&config, max_position_embeddings)?;
    Ok(ModelConfig {
        architecture: Architecture::Llama,
        biased: Vec::new(),
        qk_norm: false,
        sliding_window: None,
        vocab_size: config.count("vocab_size")?,
        hidden_size,
        intermediate_size: config.count("intermediate_size")?,
        num_hidden_layers: config.count("num_hidden_layers")?,
        num_attention_heads,
        num_key_value_heads: config
            .optional_count("num_key_value_heads")?
            .unwrap_or(num_attention_heads),
        head_dim: match config.optional_count("head_dim")? {
            Some(width) => width,
            None => hidden_size.checked_div(num_attention_heads).unwrap_or(0),
        },
        max_position_embeddings,
        rms_norm_eps: config.optional_number("rms_norm_eps")?.unwrap_or(1e-6) as f32,
        rope_theta,
        rope_scaling,
        tie_word_embeddings: fields
            .get("tie_word_embeddings")
            .and_then(Value::as_bool)
            .unwrap_or(false),
    })
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

/// The rotary embedding: `rope_parameters` since transformers 5, `rope_theta` and `rope_scaling` before.
fn rope(config: &Fields<'_>, max_position_embeddings: usize) -> Result<(f64, RopeScaling), String> {
    let outer_theta = config.optional_number("rope_theta")?;
    let given = |name: &str| {
        config
            .0
            .get(name)
            .filter(|value| !value.is_null())
            .map(|value| (name.to_owned(), value))
    };
    let Some((name, value)) = given("rope_parameters").or_else(|| given("rope_scaling")) else {
        return Ok((outer_theta.unwrap_or(10_000.0), RopeScaling::Default));
    };
    let Value::Object(inner) = value else {
        return Err(format!("{name} is no object"));
    };
    let inner = Fields(inner);
    inner.refuse("partial_rotary_factor", |value| {
        value.as_f64() != Some(1.0) && !value.is_null()
    })?;
    let theta = inner
        .optional_number("rope_theta")?
        .or(outer_theta)
        .unwrap_or(10_000.0);
    let kind = inner.0.get("rope_type").or_else(|| inner.0.get("type"));
    let scaling = match kind.map(|kind| kind.as_str().ok_or(kind)) {
        None if inner.0.values().any(Value::is_object) => {
            return Err(format!("{name} differing by layer is not supported"));
        }
        None | Some(Ok("default")) => RopeScaling::Default,
        Some(Ok("linear")) => RopeScaling::Linear {
            factor: inner.number("factor")?,
        },
        Some(Ok("llama3")) => RopeScaling::Llama3 {
            factor: inner.number("factor")?,
            low_freq_factor: inner.number("low_freq_factor")?,
            high_freq_factor: inner.number("high_freq_factor")?,
            original_max_position_embeddings: inner
                .optional_count("original_max_position_embeddings")?
                .unwrap_or(max_position_embeddings),
        },
        Some(Ok(other)) => return Err(format!("{name} of type {other:?} is not supported")),
        Some(Err(other)) => return Err(format!("{name} of type {other} is not supported")),
    };
    check_factors(&scaling).map_err(|problem| format!("{name}: {problem}"))?;
    Ok((theta, scaling))
}

fn check_factors(scaling: &RopeScaling) -> Result<(), String> {
    match *scaling {
        RopeScaling::Linear { factor } | RopeScaling::Llama3 { factor, .. } if factor < 1.0 => {
            Err(format!("factor {factor} is below 1"))
        }
        RopeScaling::Llama3 {
            low_freq_factor: low,
            high_freq_factor: high,
            ..
        } if !(low > 0.0 && high > low) => Err(format!(
            "low_freq_factor {low} and high_freq_factor {high} are no range"
        )),
        _ => Ok(()),
    }
}

/// Typed look-ups that name the field when they fail.
struct Fields<'a>(&'a Map<String, Value>);

impl Fields<'_> {
    fn count(&self, name: &str) -> Result<usize, String> {
        self.optional_count(name)?
            .ok_or_else(|| format!("{name} is missing"))
    }

    fn optional_count(&self, name: &str) -> Result<Option<usize>, String> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            // A bound that no model reaches keeps products of counts far from overflow.
            Some(value) => match value.as_u64().filter(|&n| n > 0 && n < 1 << 31) {
                Some(n) => Ok(Some(n as usize)),
                None => Err(format!("{name} is no count above 0 but {value}")),
            },
        }
    }

    fn number(&self, name: &str) -> Result<f64, String> {
        self.optional_number(name)?
            .ok_or_else(|| format!("{name} is missing"))
    }

    fn optional_number(&self, name: &str) -> Result<Option<f64>, String> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_f64().filter(|x| x.is_finite()) {
                Some(x) => Ok(Some(x)),
                None => Err(format!("{name} is no number but {value}")),
            },
        }
    }

    fn refuse(&self, name: &str, is_used: impl Fn(&Value) -> bool) -> Result<(), String> {
        match self.0.get(name) {
            Some(value) if is_used(value) => Err(match value {
                Value::Object(_) => format!("{name} is not supported"),
                plain => format!("{name} {plain} is not supported"),
            }),
            _ => Ok(()),
        }
    }
}
