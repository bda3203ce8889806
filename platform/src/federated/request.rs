//! What a session is asked for with, and whether it can be made.

use serde::Deserialize;
use serde_json::{Map, Value};
use trainyard_aggregation::Rule;
use trainyard_shared::ids::{DatasetId, UserId, WorkerId};
use trainyard_shared::training::TrainingConfig;
use utoipa::ToSchema;

use super::privacy::PrivacyRequest;
use super::settings::Settings;
use crate::error::{ApiError, FieldProblem};
use crate::jobs::routes::{BaseModelRequest, problem_of_name};
use crate::models::is_hub_name;
use crate::rounds::Kind;
use crate::rounds::state::Rules;
use crate::rounds::store::NewSession;

const MAX_SHARDS: u64 = 10_000;
const MAX_ROUNDS: u64 = 100_000;
const MAX_TIMEOUT_SECONDS: f64 = 30.0 * 24.0 * 3600.0;
const DEFAULT_TIMEOUT_SECONDS: f64 = 3600.0;
const DEFAULT_DEVIATIONS: f64 = 4.0;
const MAX_DEVIATIONS: f64 = 1000.0;
const DEFAULT_OUTER_LR: f64 = 1.0;
const DEFAULT_OUTER_MOMENTUM: f64 = 0.5;

/// A federated session that is to be made.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionRequest {
    /// What to call it; `federated` when absent.
    name: Option<String>,
    /// A data set that is cut into shards: row n belongs to shard n modulo `shards`. This or `dataset_ids`.
    #[schema(value_type = Option<i64>)]
    dataset_id: Option<DatasetId>,
    /// Data sets, one for each shard.
    #[schema(value_type = Option<Vec<i64>>)]
    dataset_ids: Option<Vec<DatasetId>>,
    /// Parts of `dataset_id`; every worker that takes part gets one. 2 when absent.
    shards: Option<u64>,
    base_model: BaseModelRequest,
    /// What to train with: a job's config without what is about whole runs (`epochs`, `max_steps`, evaluations,
    /// checkpoints). Schedules go over the steps of all rounds.
    #[serde(default)]
    #[schema(value_type = TrainingConfig)]
    config: Map<String, Value>,
    /// How many.
    rounds: u64,
    /// Optimizer steps of each worker in a round.
    local_steps: u64,
    /// Whether AdamW's moments are kept from round to round; true when absent.
    keep_optimizer: Option<bool>,
    /// A round needs so many results; half of the shards when absent.
    min_workers: Option<u64>,
    /// So many workers take part at most; one for each shard, or all of `worker_ids`, when absent.
    max_workers: Option<u64>,
    /// A round closes after this time with `min_workers` results, in seconds; 3600 when absent.
    round_timeout_seconds: Option<f64>,
    /// A round's deadline lies so many median absolute deviations beyond the median of past times, never beyond
    /// `round_timeout_seconds`; 4 when absent, 0 for always at the timeout.
    deadline_deviations: Option<f64>,
    /// How results are merged: `nesterov` (when absent), `mean`, `weighted_mean`, `trimmed_mean`, `median`, `krum`.
    #[schema(value_type = Option<String>)]
    aggregation: Option<String>,
    /// Learning rate of the outer step; 1 when absent.
    outer_lr: Option<f64>,
    /// Momentum of the outer step; 0.5 when absent.
    outer_momentum: Option<f64>,
    /// Results whose difference from the round's weights has a larger L2 norm are refused; none when absent.
    max_delta_norm: Option<f64>,
    /// The only workers that may take part; any when absent.
    #[schema(value_type = Option<Vec<i64>>)]
    worker_ids: Option<Vec<WorkerId>>,
    /// Seed of the first adapter; `config.seed` when absent.
    seed: Option<u64>,
    /// How results are kept private; not at all when absent.
    privacy: Option<PrivacyRequest>,
}

/// A session that can be made, as far as the request alone tells.
#[derive(Debug, Clone)]
pub struct Checked {
    /// For the database.
    pub new: NewSession,
    /// What only sessions of workers have.
    pub settings: Settings,
}

impl SessionRequest {
    /// Checks everything at once.
    ///
    /// # Errors
    /// 400 with all fields that cannot be taken.
    pub fn check(self, owner: UserId) -> Result<Checked, ApiError> {
        let mut problems = Problems::default();
        let name = self.name.as_deref().map(str::trim).unwrap_or("federated");
        problems.0.extend(problem_of_name(name));
        let base_model = self.base_model.huggingface_id;
        problems.unless(
            is_hub_name(&base_model),
            "base_model.huggingface_id",
            "must be a model's name at the hub, as org/name",
        );
        let (dataset_ids, shards) = problems.data(self.dataset_id, self.dataset_ids, self.shards);
        problems.count("rounds", self.rounds, MAX_ROUNDS);
        let worker_count = self.worker_ids.as_ref().map(|workers| workers.len() as u64);
        if let Some(workers) = &self.worker_ids {
            problems.all_different("worker_ids", workers.iter().map(|id| id.get()).collect());
        }
        let max_workers = self.max_workers.or(worker_count).unwrap_or(shards);
        problems.count("max_workers", max_workers, MAX_SHARDS);
        let most = max_workers.min(worker_count.unwrap_or(max_workers));
        let rule = problems.rule(self.aggregation.as_deref());
        let fewest = rule.unwrap_or_default().fewest();
        let min_workers = self
            .min_workers
            .unwrap_or(shards.div_ceil(2).max(fewest).clamp(1, most.max(1)));
        problems.unless(
            min_workers >= fewest,
            "min_workers",
            &format!("must be at least {fewest} with krum, which compares results"),
        );
        problems.unless(
            (1..=most).contains(&min_workers),
            "min_workers",
            &format!("must lie between 1 and the {most} workers that can take part"),
        );
        let round_timeout_seconds = self
            .round_timeout_seconds
            .unwrap_or(DEFAULT_TIMEOUT_SECONDS);
        problems.unless(
            round_timeout_seconds > 0.0 && round_timeout_seconds <= MAX_TIMEOUT_SECONDS,
            "round_timeout_seconds",
            &format!("must be above 0 and at most {MAX_TIMEOUT_SECONDS}"),
        );
        let deadline_deviations = self.deadline_deviations.unwrap_or(DEFAULT_DEVIATIONS);
        problems.within("deadline_deviations", deadline_deviations, MAX_DEVIATIONS);
        let outer_lr = self.outer_lr.unwrap_or(DEFAULT_OUTER_LR);
        problems.unless(
            outer_lr > 0.0 && outer_lr <= 100.0,
            "outer_lr",
            "must be above 0 and at most 100",
        );
        let outer_momentum = self.outer_momentum.unwrap_or(DEFAULT_OUTER_MOMENTUM);
        problems.unless(
            (0.0..1.0).contains(&outer_momentum),
            "outer_momentum",
            "must be at least 0 and below 1",
        );
        if let Some(norm) = self.max_delta_norm {
            problems.unless(
                norm > 0.0 && norm.is_finite(),
                "max_delta_norm",
                "must be above 0",
            );
        }
        let mut settings = Settings {
            dataset_ids,
            shards,
            config: self.config,
            local_steps: self.local_steps,
            keep_optimizer: self.keep_optimizer.unwrap_or(true),
            min_workers,
            max_workers: most,
            round_timeout_seconds,
            deadline_deviations,
            worker_ids: self.worker_ids,
            seed: 0,
            privacy: self.privacy.and_then(|asked| {
                let checked = asked.check(&super::privacy::Session {
                    min_workers,
                    max_workers: most,
                    rule,
                    limits_norm: self.max_delta_norm.is_some(),
                });
                checked.map_err(|found| problems.0.extend(found)).ok()
            }),
        };
        match settings.parsed_config() {
            Ok(config) => settings.seed = self.seed.unwrap_or(config.training.seed),
            Err(found) => problems
                .0
                .extend(found.into_iter().map(|problem| FieldProblem {
                    field: match problem.field.as_str() {
                        own @ ("local_steps" | "keep_optimizer") => own.to_owned(),
                        other => format!("config.{other}"),
                    },
                    message: problem.message,
                    hint: problem.hint,
                })),
        }
        for own in ["local_steps", "keep_optimizer"] {
            if settings.config.contains_key(own) {
                let message = "stands beside config, not in it";
                problems
                    .0
                    .push(FieldProblem::new(format!("config.{own}"), message));
            }
        }
        let (Some(rule), true) = (rule, problems.0.is_empty()) else {
            return Err(ApiError::invalid(problems.0));
        };
        let new = NewSession {
            owner,
            kind: Kind::Workers,
            name: name.to_owned(),
            is_default: false,
            base_model,
            job: None,
            dataset: None,
            settings: serde_json::to_string(&settings).expect("plain fields are always JSON"),
            shards,
            rules: Rules {
                total_rounds: self.rounds,
                enough: usize::try_from(most).unwrap_or(usize::MAX),
                at_least: usize::try_from(min_workers).unwrap_or(usize::MAX),
                // Deadlines are given round by round.
                timeout: None,
            },
            rule,
            outer_lr,
            outer_momentum,
            max_delta_norm: self.max_delta_norm,
            max_refused: None,
            key_hash: None,
        };
        Ok(Checked { new, settings })
    }
}

/// What was found so far.
#[derive(Default)]
struct Problems(Vec<FieldProblem>);

impl Problems {
    fn unless(&mut self, is_good: bool, field: &str, message: &str) {
        if !is_good {
            self.0.push(FieldProblem::new(field, message));
        }
    }

    fn count(&mut self, field: &str, value: u64, most: u64) {
        let message = format!("must lie between 1 and {most}");
        self.unless((1..=most).contains(&value), field, &message);
    }

    fn within(&mut self, field: &str, value: f64, most: f64) {
        let message = format!("must lie between 0 and {most}");
        self.unless((0.0..=most).contains(&value), field, &message);
    }

    fn all_different(&mut self, field: &str, mut ids: Vec<i64>) {
        self.unless(!ids.is_empty(), field, "is empty");
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        self.unless(ids.len() == count, field, "names one twice");
    }

    fn rule(&mut self, name: Option<&str>) -> Option<Rule> {
        let Some(name) = name else {
            return Some(Rule::default());
        };
        let rule = name.parse().ok();
        let known: Vec<_> = Rule::ALL.iter().map(ToString::to_string).collect();
        let message = format!("is none of {}", known.join(", "));
        self.unless(rule.is_some(), "aggregation", &message);
        rule
    }

    /// The data sets, and how many shards they make.
    fn data(
        &mut self,
        one: Option<DatasetId>,
        several: Option<Vec<DatasetId>>,
        shards: Option<u64>,
    ) -> (Vec<DatasetId>, u64) {
        match (one, several) {
            (Some(one), None) => {
                let shards = shards.unwrap_or(2);
                self.count("shards", shards, MAX_SHARDS);
                (vec![one], shards)
            }
            (None, Some(several)) => {
                let count = several.len() as u64;
                self.all_different("dataset_ids", several.iter().map(|id| id.get()).collect());
                self.unless(
                    shards.is_none_or(|shards| shards == count),
                    "shards",
                    "every data set is one shard; leave it out",
                );
                (several, count.max(1))
            }
            _ => {
                let message = "name one data set, or dataset_ids with one for each shard";
                self.unless(false, "dataset_id", message);
                (Vec::new(), 1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(more: Value) -> Result<Checked, Vec<String>> {
        let mut body = json!({
            "dataset_id": 1, "base_model": {"huggingface_id": "yard/tiny"}, "rounds": 3, "local_steps": 5
        });
        for (field, value) in more.as_object().unwrap() {
            body[field] = value.clone();
        }
        let request: SessionRequest = serde_json::from_value(body).unwrap();
        request.check(UserId(1)).map_err(|error| {
            let details = error.details().unwrap().as_array().unwrap().clone();
            details
                .iter()
                .map(|problem| problem["field"].as_str().unwrap().to_owned())
                .collect()
        })
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let checked = check(json!({"shards": 5})).unwrap();
        let settings = checked.settings;
        assert_eq!((settings.min_workers, settings.max_workers), (3, 5));
        assert_eq!((settings.seed, settings.keep_optimizer), (42, true));
        assert_eq!(checked.new.rule, Rule::default());
        let named = check(json!({"worker_ids": [4], "shards": 4})).unwrap();
        assert_eq!(
            (named.settings.min_workers, named.settings.max_workers),
            (1, 1)
        );
        let several = check(json!({"dataset_id": null, "dataset_ids": [1, 2, 3]})).unwrap();
        assert_eq!(several.settings.shards, 3);
    }

    #[test]
    fn two_thirds_are_the_threshold_of_sums_where_none_is_given_and_means_can_be_had() {
        for (min_workers, threshold) in [(2, 2), (3, 2), (4, 3), (6, 4)] {
            let body = json!({"shards": 6, "min_workers": min_workers, "privacy": {"secure_aggregation": {}}});
            let privacy = check(body).unwrap().settings.privacy.unwrap();
            assert_eq!(privacy.secure_aggregation.unwrap().threshold, threshold);
        }
        for rule in ["nesterov", "mean", "weighted_mean"] {
            let body =
                json!({"shards": 4, "aggregation": rule, "privacy": {"secure_aggregation": {}}});
            assert!(check(body).is_ok(), "{rule}");
        }
    }

    #[test]
    fn every_field_that_does_not_fit_is_named() {
        for (more, field) in [
            (json!({"rounds": 0}), "rounds"),
            (json!({"local_steps": 0}), "local_steps"),
            (json!({"shards": 0}), "shards"),
            (json!({"dataset_ids": [1]}), "dataset_id"),
            (
                json!({"dataset_id": null, "dataset_ids": [1, 1]}),
                "dataset_ids",
            ),
            (
                json!({"dataset_id": null, "dataset_ids": []}),
                "dataset_ids",
            ),
            (
                json!({"dataset_id": null, "dataset_ids": [1, 2], "shards": 3}),
                "shards",
            ),
            (json!({"min_workers": 3}), "min_workers"),
            (json!({"min_workers": 2, "worker_ids": [7]}), "min_workers"),
            (json!({"worker_ids": [7, 7]}), "worker_ids"),
            (json!({"round_timeout_seconds": 0}), "round_timeout_seconds"),
            (json!({"deadline_deviations": -1}), "deadline_deviations"),
            (json!({"aggregation": "sum"}), "aggregation"),
            (json!({"outer_lr": 0}), "outer_lr"),
            (json!({"outer_momentum": 1}), "outer_momentum"),
            (json!({"max_delta_norm": 0}), "max_delta_norm"),
            (json!({"config": {"epochs": 3}}), "config.epochs"),
            (json!({"config": {"lora_rr": 3}}), "config.lora_rr"),
            (json!({"config": {"local_steps": 3}}), "config.local_steps"),
            (
                json!({"base_model": {"huggingface_id": "a b"}}),
                "base_model.huggingface_id",
            ),
            (json!({"name": ""}), "name"),
            (json!({"shards": 2, "aggregation": "krum"}), "min_workers"),
            (
                json!({"privacy": {"differential_privacy": {"clip_norm": 0, "noise_multiplier": 1}}}),
                "privacy.differential_privacy.clip_norm",
            ),
            (
                json!({"privacy": {"differential_privacy": {"clip_norm": 1, "noise_multiplier": -1}}}),
                "privacy.differential_privacy.noise_multiplier",
            ),
            (
                json!({"privacy": {"differential_privacy": {"clip_norm": 1, "noise_multiplier": 1, "delta": 1}}}),
                "privacy.differential_privacy.delta",
            ),
            (
                json!({"privacy": {"secure_aggregation": {"threshold": 2}}, "shards": 8}),
                "privacy.secure_aggregation.threshold",
            ),
            (
                json!({"privacy": {"secure_aggregation": {"threshold": 5}}, "shards": 8}),
                "privacy.secure_aggregation.threshold",
            ),
            (
                json!({"privacy": {"secure_aggregation": {}}}),
                "min_workers",
            ),
            (
                json!({"privacy": {"secure_aggregation": {}}, "shards": 256}),
                "max_workers",
            ),
            (
                json!({"privacy": {"secure_aggregation": {}}, "shards": 4, "max_delta_norm": 1}),
                "max_delta_norm",
            ),
            (
                json!({"privacy": {"secure_aggregation": {}}, "shards": 4, "aggregation": "krum"}),
                "aggregation",
            ),
        ] {
            let fields = check(more.clone()).unwrap_err();
            assert!(fields.contains(&field.to_owned()), "{more}: {fields:?}");
        }
    }
}
