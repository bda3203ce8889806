//! A job's training config: every field with its default, range and aliases.
//!
//! Names and defaults are those of transformers' `TrainingArguments`, PEFT's `LoraConfig` and TRL's
//! `SFTConfig`, except where the source documents name a field otherwise. [`TrainingConfig::parse`]
//! resolves every default, so that whoever holds a `TrainingConfig` has no case left to decide. The
//! platform parses when a job is made and the worker again when it gets one.

mod fields;
mod local;
mod reader;
mod words;

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

pub use local::LocalConfig;
use reader::{Bounds, Reader};
pub use words::{MixedPrecision, ScheduleKind, TargetModules, TrainOn};

/// Highest learning rate. Models diverge long before; that they do is the run's to tell.
const MAX_LEARNING_RATE: f64 = 1e6;
/// Highest rank of an adapter.
const MAX_RANK: u32 = 4096;
/// What an adapter's alpha may be.
const ALPHA_BOUNDS: Bounds = Bounds::above(0.0).up_to(65_536.0);
/// Rank of an adapter, where the config does not say.
const DEFAULT_LORA_R: u32 = 16;

/// One field of a config that cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema, thiserror::Error)]
#[error("{field}: {message}")]
pub struct FieldProblem {
    /// The field as it was given.
    pub field: String,
    /// What is wrong with it, for a person.
    pub message: String,
    /// What to do; for an unknown field the nearest known name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// What a job trains with. All defaults are resolved; what is written back has the wire's names.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct TrainingConfig {
    /// Times that every row is trained on.
    pub epochs: u32,
    /// Ends the job after this many optimizer steps, whatever `epochs` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<u64>,
    /// Sequences in one micro-batch; with `packing`, packed sequences.
    pub batch_size: u32,
    /// Micro-batches in one optimizer step.
    pub gradient_accumulation_steps: u32,
    /// Highest learning rate.
    pub learning_rate: f64,
    /// How the learning rate falls.
    pub lr_scheduler_type: ScheduleKind,
    /// Optimizer steps over which the learning rate rises; wins over `warmup_ratio` when above 0.
    pub warmup_steps: u64,
    /// Part of all optimizer steps over which the learning rate rises.
    pub warmup_ratio: f64,
    /// AdamW's decoupled weight decay.
    pub weight_decay: f64,
    /// AdamW's decay of the first moment.
    pub adam_beta1: f64,
    /// AdamW's decay of the second moment.
    pub adam_beta2: f64,
    /// AdamW's term against division by zero.
    pub adam_epsilon: f64,
    /// L2 norm that the gradient is clipped to; 0 does not clip.
    pub max_grad_norm: f64,
    /// What is calculated in.
    pub mixed_precision: MixedPrecision,
    /// Seed of the data order, dropout and the adapter's first weights.
    pub seed: u64,
    /// A line goes to the log after so many optimizer steps.
    pub logging_steps: u64,
    /// A checkpoint is saved after so many optimizer steps.
    pub save_steps: u64,
    /// So many checkpoints are kept.
    pub save_total_limit: u32,
    /// Calculate activations again instead of keeping them: less memory, more time.
    pub gradient_checkpointing: bool,
    /// Train a LoRA adapter; false trains all weights of the model.
    pub use_peft: bool,
    /// Rank of the adapter.
    pub lora_r: u32,
    /// The adapter's output is scaled by `lora_alpha / lora_r`.
    pub lora_alpha: f64,
    /// Dropout in front of the adapter.
    pub lora_dropout: f64,
    /// Which linear layers get an adapter.
    #[schema(value_type = Value)]
    pub target_modules: TargetModules,
    /// Scale by `lora_alpha / sqrt(lora_r)` instead.
    pub use_rslora: bool,
    /// Ranks of layers by name, with PEFT's meaning; `lora_r` for all others.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rank_pattern: BTreeMap<String, u32>,
    /// Alphas of layers by name, with PEFT's meaning; `lora_alpha` for all others.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub alpha_pattern: BTreeMap<String, f64>,
    /// Modules that are trained whole beside the adapter.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub modules_to_save: Vec<String>,
    /// Put several rows into one sequence of `max_length` tokens; they do not see each other.
    pub packing: bool,
    /// Longest sequence in tokens; longer rows are cut and counted.
    pub max_length: u32,
    /// Which tokens the loss falls on.
    pub train_on: TrainOn,
    /// Part of the rows that is kept for evaluation.
    pub eval_split: f64,
    /// An evaluation runs after so many optimizer steps.
    pub eval_steps: u64,
    /// Ends the job after so many evaluations without a better loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub early_stopping_patience: Option<u32>,
    /// Publish the checkpoint with the best evaluation loss instead of the last weights.
    pub load_best_model_at_end: bool,
    /// Checkpoint to go on from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume_from_checkpoint: Option<String>,
    /// Hold the frozen base model in 4 bits.
    #[serde(skip_serializing_if = "is_off")]
    pub load_in_4bit: bool,
    /// Hold the frozen base model in 8 bits.
    #[serde(skip_serializing_if = "is_off")]
    pub load_in_8bit: bool,
    /// Hold the frozen base model in the types that it is stored in, also where that is slower.
    #[serde(skip_serializing_if = "is_off")]
    pub low_memory: bool,
}

impl TrainingConfig {
    /// Reads a config from a JSON object. A field that is missing or null has its default.
    ///
    /// # Errors
    ///
    /// Every problem at once: unknown fields (with the nearest known name), wrong types, values out
    /// of range, a field given under two names, and features that are not supported yet.
    pub fn parse(config: &Value) -> Result<Self, Vec<FieldProblem>> {
        let Value::Object(object) = config else {
            return Err(vec![FieldProblem {
                field: "config".to_owned(),
                message: format!("an object is expected, not {}", crate::json::kind(config)),
                hint: None,
            }]);
        };
        let mut reader = Reader::new(object);
        let config = Self::read(&mut reader);
        reader.finish().map(|()| config)
    }

    /// The config as a JSON object with the wire's names. [`TrainingConfig::parse`] gives the same
    /// config back.
    pub fn to_map(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(map)) => map,
            _ => unreachable!("a struct of plain fields is a JSON object"),
        }
    }

    fn read(reader: &mut Reader<'_>) -> Self {
        let use_peft = reader.flag("use_peft").unwrap_or(true);
        let lora_r = reader.u32("lora_r", 1, MAX_RANK).unwrap_or(DEFAULT_LORA_R);
        let save_steps = reader.u64("save_steps", 1).unwrap_or(500);
        let config = Self {
            epochs: reader.u32("epochs", 1, 100_000).unwrap_or(3),
            max_steps: reader.steps_or_all("max_steps"),
            batch_size: reader.u32("batch_size", 1, 4096).unwrap_or(4),
            gradient_accumulation_steps: reader
                .u32("gradient_accumulation_steps", 1, 65_536)
                .unwrap_or(1),
            learning_rate: reader
                .f64("learning_rate", Bounds::above(0.0).up_to(MAX_LEARNING_RATE))
                .unwrap_or(if use_peft { 2e-4 } else { 2e-5 }),
            lr_scheduler_type: reader
                .word("lr_scheduler_type", ScheduleKind::WORDS)
                .unwrap_or_default(),
            warmup_steps: reader.u64("warmup_steps", 0).unwrap_or(0),
            warmup_ratio: reader
                .f64("warmup_ratio", Bounds::from(0.0).up_to(1.0))
                .unwrap_or(0.03),
            weight_decay: reader
                .f64("weight_decay", Bounds::from(0.0).up_to(1.0))
                .unwrap_or(0.0),
            adam_beta1: reader
                .f64("adam_beta1", Bounds::from(0.0).below(1.0))
                .unwrap_or(0.9),
            adam_beta2: reader
                .f64("adam_beta2", Bounds::from(0.0).below(1.0))
                .unwrap_or(0.999),
            adam_epsilon: reader
                .f64("adam_epsilon", Bounds::above(0.0).up_to(0.1))
                .unwrap_or(1e-8),
            max_grad_norm: reader
                .f64("max_grad_norm", Bounds::from(0.0).up_to(1e6))
                .unwrap_or(1.0),
            mixed_precision: reader.mixed_precision(),
            seed: reader.u64("seed", 0).unwrap_or(42),
            logging_steps: reader.u64("logging_steps", 1).unwrap_or(10),
            save_steps,
            save_total_limit: reader.u32("save_total_limit", 1, 10_000).unwrap_or(3),
            gradient_checkpointing: reader.flag("gradient_checkpointing").unwrap_or(false),
            use_peft,
            lora_r,
            lora_alpha: reader
                .f64("lora_alpha", ALPHA_BOUNDS)
                .unwrap_or(2.0 * f64::from(lora_r)),
            lora_dropout: reader
                .f64("lora_dropout", Bounds::from(0.0).below(1.0))
                .unwrap_or(0.0),
            target_modules: reader.target_modules().unwrap_or_default(),
            use_rslora: reader.flag("use_rslora").unwrap_or(false),
            rank_pattern: reader.ranks("rank_pattern").unwrap_or_default(),
            alpha_pattern: reader.alphas("alpha_pattern").unwrap_or_default(),
            modules_to_save: reader.names("modules_to_save").unwrap_or_default(),
            packing: reader.flag("packing").unwrap_or(true),
            max_length: reader.u32("max_length", 2, 1_048_576).unwrap_or(1024),
            train_on: reader.word("train_on", TrainOn::WORDS).unwrap_or_default(),
            eval_split: reader
                .f64("eval_split", Bounds::from(0.0).below(1.0))
                .unwrap_or(0.0),
            eval_steps: reader.u64("eval_steps", 1).unwrap_or(save_steps),
            early_stopping_patience: reader.u32("early_stopping_patience", 1, 10_000),
            load_best_model_at_end: reader.flag("load_best_model_at_end").unwrap_or(false),
            resume_from_checkpoint: reader.text("resume_from_checkpoint"),
            load_in_4bit: reader.flag("load_in_4bit").unwrap_or(false),
            load_in_8bit: reader.flag("load_in_8bit").unwrap_or(false),
            low_memory: reader.flag("low_memory").unwrap_or(false),
        };
        config.refuse_adapter_settings(reader);
        config.refuse_without_evaluation(reader);
        config.refuse_holding(reader);
        Self::refuse_unsupported(reader);
        config
    }

    /// A base model is held in one way, and what is trained in full is held in f32.
    fn refuse_holding(&self, reader: &mut Reader<'_>) {
        if self.load_in_4bit && self.load_in_8bit {
            reader.contradiction(
                "load_in_8bit",
                "contradicts load_in_4bit",
                "set one of the two",
            );
        }
        for (field, is_set) in [
            ("load_in_4bit", self.load_in_4bit),
            ("load_in_8bit", self.load_in_8bit),
            ("low_memory", self.low_memory),
        ] {
            if is_set && !self.use_peft {
                reader.contradiction(
                    field,
                    "is about a frozen base model, and use_peft is false",
                    "leave it out, or train an adapter",
                );
            }
        }
    }

    /// What needs evaluations has none without rows for them.
    fn refuse_without_evaluation(&self, reader: &mut Reader<'_>) {
        if self.eval_split > 0.0 {
            return;
        }
        for (field, is_set) in [
            (
                "early_stopping_patience",
                self.early_stopping_patience.is_some(),
            ),
            ("load_best_model_at_end", self.load_best_model_at_end),
        ] {
            if is_set {
                reader.contradiction(
                    field,
                    "needs evaluations, and eval_split is 0",
                    "set eval_split to the part of the rows that is kept for evaluation, as 0.1",
                );
            }
        }
    }

    /// Without an adapter, settings of one have no meaning: they must be left at their defaults.
    fn refuse_adapter_settings(&self, reader: &mut Reader<'_>) {
        if self.use_peft {
            return;
        }
        let r = f64::from(self.lora_r);
        for (field, is_set) in [
            ("lora_r", self.lora_r != DEFAULT_LORA_R),
            ("lora_alpha", self.lora_alpha != 2.0 * r),
            ("lora_dropout", self.lora_dropout != 0.0),
            (
                "target_modules",
                self.target_modules != TargetModules::default(),
            ),
            ("use_rslora", self.use_rslora),
            ("rank_pattern", !self.rank_pattern.is_empty()),
            ("alpha_pattern", !self.alpha_pattern.is_empty()),
            ("modules_to_save", !self.modules_to_save.is_empty()),
        ] {
            if is_set {
                reader.contradiction(
                    field,
                    "is about an adapter, and use_peft is false",
                    "leave it out, or set use_peft to true",
                );
            }
        }
    }

    /// What is known by name and not built: refused, so that it is never silently ignored.
    fn refuse_unsupported(reader: &mut Reader<'_>) {
        for field in fields::NOT_SUPPORTED {
            if reader.flag(field) == Some(true) {
                reader.unsupported(field, "leave it out or set it to false");
            }
        }
    }
}

/// Whether a switch is left out where a config is written.
fn is_off(switch: &bool) -> bool {
    !switch
}

impl Default for TrainingConfig {
    fn default() -> Self {
        Self::read(&mut Reader::new(&Map::new()))
    }
}

#[cfg(test)]
mod tests;
