//! An adapter's config: PEFT's `LoraConfig`, as a job asks for it or as `adapter_config.json` holds it.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use trainyard_shared::training::{TargetModules, TrainingConfig};

use super::targets::{self, Target};
use super::whole;
use crate::model::{ModelConfig, Weight};

/// What PEFT's `LoraConfig` says, as far as it is supported.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterConfig {
    /// Rank of every module that `rank_pattern` does not name.
    pub r: usize,
    /// Alpha of every module that `alpha_pattern` does not name.
    pub lora_alpha: f64,
    /// Dropout in front of A while training.
    pub lora_dropout: f64,
    /// Which layers get a pair.
    pub target_modules: TargetModules,
    /// Layers that do not, although `target_modules` names them.
    pub exclude_modules: Option<TargetModules>,
    /// Only layers with these indices, where given (a list of targets only, as in PEFT).
    pub layers_to_transform: Option<Vec<usize>>,
    /// Scale by alpha / sqrt(r).
    pub use_rslora: bool,
    /// Ranks by name.
    pub rank_pattern: BTreeMap<String, usize>,
    /// Alphas by name.
    pub alpha_pattern: BTreeMap<String, f64>,
    /// Modules of the model that the adapter brings along.
    pub modules_to_save: Vec<String>,
    /// What the adapter was trained on.
    pub base_model_name_or_path: Option<String>,
}

/// Fields that change nothing in how a trained adapter runs: about initialisation, loading or PEFT itself.
const WITHOUT_EFFECT: &[&str] = &[
    "arrow_config",
    "auto_mapping",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "inference_mode",
    "init_lora_weights",
    "layers_pattern",
    "loftq_config",
    "lora_ga_config",
    "megatron_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
];

impl AdapterConfig {
    /// The adapter that a job asks for.
    pub fn from_training(config: &TrainingConfig, base_model: &str) -> Self {
        Self {
            r: config.lora_r as usize,
            lora_alpha: config.lora_alpha,
            lora_dropout: config.lora_dropout,
            target_modules: config.target_modules.clone(),
            exclude_modules: None,
            layers_to_transform: None,
            use_rslora: config.use_rslora,
            rank_pattern: config
                .rank_pattern
                .iter()
                .map(|(name, rank)| (name.clone(), *rank as usize))
                .collect(),
            alpha_pattern: config.alpha_pattern.clone(),
            modules_to_save: config.modules_to_save.clone(),
            base_model_name_or_path: Some(base_model.to_owned()),
        }
    }

    /// Reads the content of an `adapter_config.json`.
    ///
    /// # Errors
    /// What is wrong, or is asked for and not supported, by the field's name. A field that is not
    /// known is refused unless it is null, false or empty.
    pub fn from_json(json: &Value) -> Result<Self, String> {
        let Value::Object(fields) = json else {
            return Err("is no JSON object".into());
        };
        let mut fields = fields.clone();
        match fields.remove("peft_type") {
            Some(kind) if kind == "LORA" => {}
            other => {
                return Err(format!(
                    "peft_type {} is not supported (only LORA is)",
                    other.unwrap_or_default()
                ));
            }
        }
        let init = fields
            .get("init_lora_weights")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if ["pissa", "olora", "corda", "loftq", "lora_ga"]
            .iter()
            .any(|kind| init.starts_with(kind))
        {
            // These change the base weights, so the adapter alone means nothing.
            return Err(format!("init_lora_weights {init:?} is not supported"));
        }
        if fields.get("bias").is_some_and(|bias| bias == "none") {
            fields.remove("bias");
        }
        let config = Self {
            r: take(&mut fields, "r", |value| count(value).filter(|r| *r > 0))?
                .ok_or("r is missing")?,
            lora_alpha: take(&mut fields, "lora_alpha", Value::as_f64)?
                .ok_or("lora_alpha is missing")?,
            lora_dropout: take(&mut fields, "lora_dropout", Value::as_f64)?.unwrap_or(0.0),
            target_modules: take(&mut fields, "target_modules", targets)?
                .ok_or("target_modules is missing")?,
            exclude_modules: take(&mut fields, "exclude_modules", targets)?
                .filter(|list| !is_empty_list(list)),
            layers_to_transform: take(&mut fields, "layers_to_transform", layers)?
                .filter(|layers| !layers.is_empty()),
            use_rslora: take(&mut fields, "use_rslora", Value::as_bool)?.unwrap_or(false),
            rank_pattern: take(&mut fields, "rank_pattern", |value| pattern(value, count))?
                .unwrap_or_default(),
            alpha_pattern: take(&mut fields, "alpha_pattern", |value| {
                pattern(value, Value::as_f64)
            })?
            .unwrap_or_default(),
            modules_to_save: take(&mut fields, "modules_to_save", names)?.unwrap_or_default(),
            base_model_name_or_path: take(&mut fields, "base_model_name_or_path", |value| {
                value.as_str().map(str::to_owned)
            })?,
        };
        if let Some(layers_pattern) = fields.get("layers_pattern")
            && config.layers_to_transform.is_some()
            && !is_off(layers_pattern)
            && layers_pattern != "layers"
        {
            return Err(format!("layers_pattern {layers_pattern} is not supported"));
        }
        match fields
            .iter()
            .find(|(name, value)| !WITHOUT_EFFECT.contains(&name.as_str()) && !is_off(value))
        {
            Some((name, _)) if name == "use_dora" => Err("DoRA (use_dora) is not supported".into()),
            Some((name, value)) => Err(format!("{name} ({value}) is not supported")),
            None => Ok(config),
        }
    }

    /// The content of an `adapter_config.json` for PEFT, with the targets spelt out.
    ///
    /// `inference_mode` is true, as PEFT writes it.
    pub fn to_json(&self, model: &ModelConfig) -> Result<Value, String> {
        let mut names: Vec<&str> = Vec::new();
        let targets = match &self.target_modules {
            TargetModules::AllLinear => {
                for target in self.targets(model)? {
                    let name = target.projection.short_name();
                    if !names.contains(&name) {
                        names.push(name);
                    }
                }
                json!(names)
            }
            other => json!(other),
        };
        Ok(json!({
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": self.base_model_name_or_path,
            "revision": null,
            "inference_mode": true,
            "auto_mapping": null,
            "r": self.r,
            "lora_alpha": self.alpha_json(self.lora_alpha),
            "lora_dropout": self.lora_dropout,
            "target_modules": targets,
            "exclude_modules": self.exclude_modules,
            "layers_to_transform": self.layers_to_transform,
            "layers_pattern": null,
            "use_rslora": self.use_rslora,
            "use_dora": false,
            "rank_pattern": self.rank_pattern,
            "alpha_pattern": self.alpha_pattern.iter().map(|(name, alpha)| (name.clone(), self.alpha_json(*alpha))).collect::<Map<_, _>>(),
            "bias": "none",
            "fan_in_fan_out": false,
            "init_lora_weights": true,
            "modules_to_save": Some(&self.modules_to_save).filter(|names| !names.is_empty()),
        }))
    }

    /// The layers that get a pair, with its rank and scale.
    ///
    /// # Errors
    /// Names of targets and patterns that match no layer.
    pub fn targets(&self, model: &ModelConfig) -> Result<Vec<Target>, String> {
        targets::resolve(self, model)
    }

    /// The model's own weights that belong to `modules_to_save`.
    ///
    /// # Errors
    /// Names that belong to no module with weights, or to one with a pair.
    pub(crate) fn whole_weights(&self, model: &ModelConfig) -> Result<Vec<Weight>, String> {
        whole::whole_weights(self, model)
    }

    /// PEFT annotates alpha as a whole number; one that is whole is written as such.
    fn alpha_json(&self, alpha: f64) -> Value {
        if alpha.fract() == 0.0 && alpha.abs() < 1e15 {
            json!(alpha as i64)
        } else {
            json!(alpha)
        }
    }
}

/// Takes a field away and reads it; null is as if missing.
fn take<T>(
    fields: &mut Map<String, Value>,
    name: &str,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<Option<T>, String> {
    match fields.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => read(&value)
            .map(Some)
            .ok_or_else(|| format!("{name} cannot be {value}")),
    }
}

fn names(value: &Value) -> Option<Vec<String>> {
    let names = value.as_array()?.iter();
    names.map(|name| name.as_str().map(str::to_owned)).collect()
}

fn count(value: &Value) -> Option<usize> {
    value
        .as_u64()
        .filter(|count| *count < 1 << 31)
        .map(|count| count as usize)
}

fn targets(value: &Value) -> Option<TargetModules> {
    match value {
        Value::String(word) if word.eq_ignore_ascii_case(TargetModules::ALL_LINEAR) => {
            Some(TargetModules::AllLinear)
        }
        Value::String(pattern) => Some(TargetModules::Pattern(pattern.clone())),
        Value::Array(_) => names(value).map(TargetModules::Names),
        _ => None,
    }
}

fn layers(value: &Value) -> Option<Vec<usize>> {
    match value {
        Value::Array(layers) => layers.iter().map(count).collect(),
        one => count(one).map(|layer| vec![layer]),
    }
}

fn pattern<T>(value: &Value, read: impl Fn(&Value) -> Option<T>) -> Option<BTreeMap<String, T>> {
    value
        .as_object()?
        .iter()
        .map(|(name, value)| Some((name.clone(), read(value)?)))
        .collect()
}

fn is_empty_list(targets: &TargetModules) -> bool {
    matches!(targets, TargetModules::Names(names) if names.is_empty())
}

fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}
