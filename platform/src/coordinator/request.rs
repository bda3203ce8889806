//! The body of `POST /api/coordinators`, read strictly.

mod check;

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use trainyard_aggregation::Rule;
use trainyard_shared::ids::{DatasetId, JobId, UserId};
use trainyard_shared::json;
use utoipa::ToSchema;

use check::{Check, unknown};

use super::hosted::key_hash;
use super::settings::Settings;
use crate::database::{DatabaseError, to_json_text};
use crate::error::ApiError;
use crate::rounds::Kind;
use crate::rounds::state::Rules;
use crate::rounds::store::NewSession;

const MAX_ROUNDS: u64 = 1_000_000;
const MAX_SHARDS: u64 = 10_000;
const MAX_ENOUGH: u64 = 1_000;
/// Krum compares each two results.
const MAX_ENOUGH_OF_KRUM: u64 = 256;
const MAX_STEPS: u64 = 1_000_000;
const MAX_BATCH: u64 = 4_096;
const MAX_SEQUENCE: u64 = 1 << 20;

/// A volunteer session that is to be made. The names are the protocol's: `toplam_tur` rounds in all, `n_parca`
/// shards, `en_az` results that close a round, `ic_adim` optimizer steps of a round, `bs` sequences in a batch,
/// `seq` tokens in a sequence, `tur_zaman_asimi` timeout of a round, `anahtar` shared key.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CoordinatorRequest {
    /// 1 to 60 of letters, digits, `_`, `.`, `-`, beginning with a letter or digit: volunteers find the session at
    /// `/c/NAME/`.
    name: String,
    /// The base model's name at the hub, as text or as {huggingface_id}; this or `job_id`. A fresh adapter is made.
    #[serde(default, deserialize_with = "base_model")]
    #[schema(value_type = Option<Value>)]
    base_model: Option<String>,
    /// The job whose adapter is the first global one.
    #[schema(value_type = Option<i64>)]
    job_id: Option<JobId>,
    /// The data that volunteers get in shards; none: they bring their own.
    #[schema(value_type = Option<i64>)]
    dataset_id: Option<DatasetId>,
    /// 20 when absent.
    toplam_tur: Option<u64>,
    /// 4 when absent.
    n_parca: Option<u64>,
    /// 2 when absent, 3 with `krum`.
    en_az: Option<u64>,
    /// 20 when absent.
    ic_adim: Option<u64>,
    /// 4 when absent.
    bs: Option<u64>,
    /// 512 when absent.
    seq: Option<u64>,
    /// Learning rate; 0.0002 when absent.
    lr: Option<f64>,
    /// `cpt` (when absent) or `sft`.
    #[serde(rename = "mod")]
    mode: Option<String>,
    /// Seconds after which a round closes with the results that are there; 600 when absent, none when 0.
    tur_zaman_asimi: Option<f64>,
    /// The key that volunteers must send.
    anahtar: Option<String>,
    /// `nesterov` (when absent), `mean`, `weighted_mean`, `trimmed_mean`, `median` or `krum`.
    aggregation: Option<String>,
    /// Whether volunteers find the session at the root as well.
    default: Option<bool>,
    /// The fresh adapter; only with `base_model`.
    lora: Option<LoraRequest>,
    /// Of the fresh adapter and of what volunteers do; 0 when absent.
    seed: Option<u64>,
    /// Learning rate of the outer step; 1 when absent.
    outer_lr: Option<f64>,
    /// Momentum of the outer step; 0.5 when absent.
    outer_momentum: Option<f64>,
    /// Largest L2 norm of what one result may differ from the global adapter by; any when absent.
    max_delta_norm: Option<f64>,
    /// Uploads of one volunteer that are not valid, above which it gets no more tasks; any number when absent.
    max_refused: Option<u64>,
}

/// A fresh adapter.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LoraRequest {
    /// Rank; 8 when absent.
    r: Option<u64>,
    /// 16 when absent.
    alpha: Option<f64>,
    /// Names of linear layers, or `all-linear`; `q_proj` and `v_proj` when absent.
    target_modules: Option<Value>,
    /// `f32`.
    dtype: Option<String>,
}

/// Fields of the request and of `lora`.
const FIELDS: &[&str] = &[
    "name",
    "base_model",
    "job_id",
    "dataset_id",
    "toplam_tur",
    "n_parca",
    "en_az",
    "ic_adim",
    "bs",
    "seq",
    "lr",
    "mod",
    "tur_zaman_asimi",
    "anahtar",
    "aggregation",
    "default",
    "lora",
    "seed",
    "outer_lr",
    "outer_momentum",
    "max_delta_norm",
    "max_refused",
];
const LORA_FIELDS: &[&str] = &["r", "alpha", "target_modules", "dtype"];

/// A model's name, as text or as jobs have it.
fn base_model<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let wrong =
        || serde::de::Error::custom("must be a model's name at the hub, or {huggingface_id}");
    match Option::<Value>::deserialize(deserializer)? {
        None => Ok(None),
        Some(Value::String(name)) => Ok(Some(name)),
        Some(Value::Object(fields)) if fields.len() == 1 => match fields.get("huggingface_id") {
            Some(Value::String(name)) => Ok(Some(name.clone())),
            _ => Err(wrong()),
        },
        Some(_) => Err(wrong()),
    }
}

impl CoordinatorRequest {
    /// Reads a JSON object.
    ///
    /// # Errors
    /// 400 naming the field; for an unknown one with the nearest known name.
    pub fn read(body: &Map<String, Value>) -> Result<Self, ApiError> {
        let mut problems = unknown(body, FIELDS, "");
        if let Some(Value::Object(lora)) = body.get("lora") {
            problems.extend(unknown(lora, LORA_FIELDS, "lora."));
        }
        if !problems.is_empty() {
            return Err(ApiError::invalid(problems));
        }
        let value = Value::Object(body.clone());
        serde_path_to_error::deserialize(json::Typed(&value)).map_err(|error| {
            let path = error.path().to_string();
            let message = error.into_inner().to_string();
            let field = match (path.as_str(), message.strip_prefix("missing field `")) {
                (".", Some(rest)) => rest.split('`').next().unwrap_or_default().to_owned(),
                _ => path,
            };
            ApiError::invalid_field(&field, message)
        })
    }

    /// The job whose adapter is to be the first global one.
    pub fn job(&self) -> Option<JobId> {
        self.job_id
    }

    /// Checks everything at once. `base_model_of_job` is that of the job, where one is named.
    ///
    /// # Errors
    /// 400 naming every field that does not fit.
    pub fn checked(
        self,
        owner: UserId,
        base_model_of_job: Option<String>,
    ) -> Result<NewSession, ApiError> {
        let mut check = Check::default();
        check.name(&self.name);
        let base_model = check.base_model(
            self.base_model.clone(),
            base_model_of_job,
            self.lora.is_some(),
        );
        let whole = |check: &mut Check, field, value: Option<u64>, default, most| {
            check.whole(field, value.unwrap_or(default), most)
        };
        let total_rounds = whole(&mut check, "toplam_tur", self.toplam_tur, 20, MAX_ROUNDS);
        let shards = whole(&mut check, "n_parca", self.n_parca, 4, MAX_SHARDS);
        let rule = check.rule(self.aggregation.as_deref());
        let fewest = rule.fewest();
        let enough = whole(&mut check, "en_az", self.en_az, fewest.max(2), MAX_ENOUGH);
        let settings = Settings {
            local_steps: whole(&mut check, "ic_adim", self.ic_adim, 20, MAX_STEPS),
            batch_size: whole(&mut check, "bs", self.bs, 4, MAX_BATCH),
            sequence_length: whole(&mut check, "seq", self.seq, 512, MAX_SEQUENCE),
            learning_rate: check.above_0("lr", self.lr.unwrap_or(2e-4), 1e3),
            mode: check.mode(self.mode.as_deref()),
            seed: check.seed(self.seed.unwrap_or(0)),
            lora: match self.job_id {
                Some(_) => None,
                None => Some(check.lora(self.lora)),
            },
        };
        let timeout = check.timeout(self.tur_zaman_asimi.unwrap_or(600.0));
        let outer_lr = check.above_0("outer_lr", self.outer_lr.unwrap_or(1.0), 1e3);
        let outer_momentum = check.below_1("outer_momentum", self.outer_momentum.unwrap_or(0.5));
        let max_delta_norm = self
            .max_delta_norm
            .map(|norm| check.above_0("max_delta_norm", norm, f64::MAX));
        let max_refused = self.max_refused.map(|count| {
            u32::try_from(count).unwrap_or_else(|_| {
                check.wrong("max_refused", "is too large");
                0
            })
        });
        if rule == Rule::Krum && enough > MAX_ENOUGH_OF_KRUM {
            let message = format!("must not be above {MAX_ENOUGH_OF_KRUM} with krum");
            check.wrong("en_az", message);
        }
        if enough < fewest {
            let message = format!("must be at least {fewest} with krum, which compares results");
            check.wrong("en_az", message);
        }
        check.key(self.anahtar.as_deref());
        if !check.problems.is_empty() {
            return Err(ApiError::invalid(check.problems));
        }
        Ok(NewSession {
            owner,
            kind: Kind::Volunteers,
            name: self.name,
            is_default: self.default.unwrap_or(false),
            base_model,
            job: self.job_id,
            dataset: self.dataset_id,
            settings: to_json_text(&settings)
                .map_err(|error: DatabaseError| ApiError::from(error))?,
            shards,
            rules: Rules {
                total_rounds,
                enough: enough as usize,
                at_least: 1,
                timeout,
            },
            rule,
            outer_lr,
            outer_momentum,
            max_delta_norm,
            max_refused,
            key_hash: self.anahtar.map(|key| key_hash(key.as_bytes()).to_vec()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;
    use trainyard_shared::coordinator::Mode;

    fn read(body: Value) -> Result<NewSession, Value> {
        let body = body.as_object().unwrap().clone();
        let checked = CoordinatorRequest::read(&body).and_then(|it| it.checked(UserId(1), None));
        checked.map_err(|error| error.details().unwrap().clone())
    }

    #[test]
    fn what_is_left_out_has_the_documents_values() {
        let new = read(json!({"name": "masal", "base_model": "org/name"})).unwrap();
        assert_eq!(
            (new.rules.total_rounds, new.rules.enough, new.shards),
            (20, 2, 4)
        );
        assert_eq!(new.rules.timeout, Some(Duration::from_secs(600)));
        assert_eq!((new.outer_lr, new.outer_momentum), (1.0, 0.5));
        assert_eq!(new.rule, Rule::Nesterov);
        let settings: Settings = serde_json::from_str(&new.settings).unwrap();
        assert_eq!((settings.batch_size, settings.sequence_length), (4, 512));
        assert_eq!(settings.mode, Mode::Cpt);
        let new = read(
            json!({"name": "a", "base_model": {"huggingface_id": "org/name"}, "tur_zaman_asimi": 0}),
        );
        assert_eq!(new.unwrap().rules.timeout, None);
    }

    #[test]
    fn what_does_not_fit_is_named_and_unknown_names_get_a_hint() {
        let field = |body: Value| read(body).unwrap_err()[0]["field"].clone();
        for (more, wrong) in [
            (json!({"toplam_tur": 0}), "toplam_tur"),
            (json!({"n_parca": "4"}), "n_parca"),
            (json!({"en_az": 1.5}), "en_az"),
            (json!({"lr": 0}), "lr"),
            (json!({"mod": "dpo"}), "mod"),
            (json!({"tur_zaman_asimi": -1}), "tur_zaman_asimi"),
            (json!({"anahtar": "with space"}), "anahtar"),
            (json!({"aggregation": "best"}), "aggregation"),
            (json!({"aggregation": "krum", "en_az": 2}), "en_az"),
            (json!({"outer_momentum": 1}), "outer_momentum"),
            (json!({"lora": {"dtype": "f16"}}), "lora.dtype"),
            (json!({"lora": {"rank": 8}}), "lora.rank"),
            (
                json!({"lora": {"target_modules": 3}}),
                "lora.target_modules",
            ),
            (json!({"base_model": "../x"}), "base_model"),
            (json!({"name": "..".repeat(4)}), "name"),
        ] {
            let mut body = json!({"name": "a", "base_model": "org/name"});
            let fields = more.as_object().unwrap().clone();
            body.as_object_mut().unwrap().extend(fields);
            assert_eq!(field(body), wrong, "{more}");
        }
        assert_eq!(field(json!({"base_model": "org/name"})), "name");
        assert_eq!(field(json!({"name": "a"})), "base_model");
        let details = read(json!({"name": "a", "base_model": "o/n", "n_parça": 4})).unwrap_err();
        assert!(
            details[0]["hint"].as_str().unwrap().contains("n_parca"),
            "{details}"
        );
    }
}
