//! What a worker trains with in the rounds of a federated session: a job's config and what rounds add to it.

use serde_json::{Map, Value};

use super::fields::aliases;
use super::{FieldProblem, TrainingConfig};
use crate::json;

/// Most optimizer steps of one round.
const MAX_LOCAL_STEPS: u64 = 1_000_000;
/// Optimizer steps of a round.
const LOCAL_STEPS: &str = "local_steps";
/// Whether the optimizer's moments are kept from round to round.
const KEEP_OPTIMIZER: &str = "keep_optimizer";

/// Fields of a job's config that rounds leave no meaning to.
const ABOUT_WHOLE_RUNS: &[&str] = &[
    "epochs",
    "max_steps",
    "eval_split",
    "eval_steps",
    "early_stopping_patience",
    "load_best_model_at_end",
    "resume_from_checkpoint",
    "save_steps",
    "save_total_limit",
];

/// The config of a session, as the worker gets it.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalConfig {
    /// What is trained, and how. Schedules go over the steps of all rounds.
    pub training: TrainingConfig,
    /// Optimizer steps of a round.
    pub local_steps: u64,
    /// Whether AdamW's moments are kept from round to round.
    pub keep_optimizer: bool,
}

impl LocalConfig {
    /// Reads the config of `start_federated_training`: fields of a job's config, `local_steps`, and
    /// `keep_optimizer` (true when left out).
    ///
    /// # Errors
    ///
    /// Every problem at once: those of [`TrainingConfig::parse`], and fields that rounds leave no meaning to.
    pub fn parse(config: &Map<String, Value>) -> Result<Self, Vec<FieldProblem>> {
        let mut fields = config.clone();
        let mut problems = Vec::new();
        let local_steps = match fields.remove(LOCAL_STEPS) {
            None | Some(Value::Null) => {
                problems.push(problem(LOCAL_STEPS, "is missing", None));
                None
            }
            Some(value) => {
                let steps = value.as_u64();
                let steps = steps.filter(|steps| (1..=MAX_LOCAL_STEPS).contains(steps));
                if steps.is_none() {
                    let message = format!("must be a whole number from 1 to {MAX_LOCAL_STEPS}");
                    problems.push(problem(LOCAL_STEPS, &message, None));
                }
                steps
            }
        };
        let keep_optimizer = match fields.remove(KEEP_OPTIMIZER) {
            None | Some(Value::Null) => Some(true),
            Some(Value::Bool(keep)) => Some(keep),
            Some(other) => {
                let message = format!("true or false is expected, not {}", json::kind(&other));
                problems.push(problem(KEEP_OPTIMIZER, &message, None));
                None
            }
        };
        for field in ABOUT_WHOLE_RUNS {
            let given = std::iter::once(field).chain(aliases(field));
            for name in given.filter(|name| fields.get(**name).is_some_and(|it| !it.is_null())) {
                let hint = "leave it out; rounds and local_steps say how long it trains";
                problems.push(problem(name, "has no meaning in rounds", Some(hint)));
            }
        }
        let training = TrainingConfig::parse(&Value::Object(fields));
        if let Ok(training) = &training {
            if !training.use_peft {
                let message = "only adapters are trained in rounds";
                problems.push(problem("use_peft", message, Some("leave it out")));
            }
            if !training.modules_to_save.is_empty() {
                let message = "only an adapter's own weights go round";
                problems.push(problem("modules_to_save", message, Some("leave it out")));
            }
        }
        match (training, local_steps, keep_optimizer) {
            (Ok(training), Some(local_steps), Some(keep_optimizer)) if problems.is_empty() => {
                Ok(Self {
                    training,
                    local_steps,
                    keep_optimizer,
                })
            }
            (Err(more), ..) => {
                problems.extend(more);
                Err(problems)
            }
            _ => Err(problems),
        }
    }
}

fn problem(field: &str, message: &str, hint: Option<&str>) -> FieldProblem {
    FieldProblem {
        field: field.to_owned(),
        message: message.to_owned(),
        hint: hint.map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(config: Value) -> Result<LocalConfig, Vec<FieldProblem>> {
        LocalConfig::parse(config.as_object().unwrap())
    }

    #[test]
    fn a_config_of_rounds_is_that_of_a_job_with_local_steps() {
        let config = parse(json!({"lora_r": 8, "local_steps": 20})).unwrap();
        assert_eq!((config.local_steps, config.keep_optimizer), (20, true));
        assert_eq!(config.training.lora_r, 8);
        let reset = parse(json!({"local_steps": 1, "keep_optimizer": false})).unwrap();
        assert!(!reset.keep_optimizer);
    }

    #[test]
    fn everything_that_does_not_fit_is_named_at_once() {
        let refused = parse(json!({
            "local_steps": 0, "keep_optimizer": 1, "epochs": 3, "eval_split": 0.1, "lora_rr": 8
        }));
        let problems = refused.unwrap_err();
        for field in [
            "local_steps",
            "keep_optimizer",
            "epochs",
            "eval_split",
            "lora_rr",
        ] {
            let named = problems.iter().filter(|it| it.field == field).count();
            assert_eq!(named, 1, "{field}: {problems:?}");
        }
        for (config, field) in [
            (json!({}), "local_steps"),
            (json!({"local_steps": 2.5}), "local_steps"),
            (json!({"local_steps": 2, "use_peft": false}), "use_peft"),
            (
                json!({"local_steps": 2, "modules_to_save": ["lm_head"]}),
                "modules_to_save",
            ),
        ] {
            let problems = parse(config).unwrap_err();
            assert!(problems.iter().any(|it| it.field == field), "{problems:?}");
        }
    }
}
