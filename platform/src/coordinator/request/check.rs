//! Checks of single fields of the request, each with what is said where it does not fit.

use serde_json::{Map, Value, json};
use std::time::Duration;
use trainyard_aggregation::Rule;
use trainyard_shared::coordinator::Mode;

use super::LoraRequest;
use crate::coordinator::settings::Lora;
use crate::error::FieldProblem;
use crate::models::is_hub_name;

/// How alike a name must be to be suggested.
const ALIKE: f64 = 0.8;
/// Longest name of a session, and longest shared key, in characters.
const MAX_NAME_CHARACTERS: usize = 60;
const MAX_KEY_CHARACTERS: usize = 200;
const MAX_RANK: u64 = 4_096;
const MAX_SECONDS: f64 = 1e9;
/// The largest number that JSON carries exactly.
const MAX_SEED: u64 = (1 << 53) - 1;

/// The fields that there are not, each with the nearest that there is.
pub(super) fn unknown(
    fields: &Map<String, Value>,
    known: &[&str],
    prefix: &str,
) -> Vec<FieldProblem> {
    let unknown = fields.keys().filter(|name| !known.contains(&name.as_str()));
    unknown
        .map(|name| {
            let nearest = known
                .iter()
                .map(|known| (*known, strsim::jaro_winkler(name, known)))
                .max_by(|(_, one), (_, other)| one.total_cmp(other))
                .filter(|(_, likeness)| *likeness >= ALIKE);
            let shown: String = name.chars().take(100).collect();
            FieldProblem {
                field: format!("{prefix}{shown}"),
                message: "there is no such field".to_owned(),
                hint: nearest.map(|(known, _)| format!("did you mean {prefix}{known}?")),
            }
        })
        .collect()
}

/// Collects what does not fit.
#[derive(Default)]
pub(super) struct Check {
    pub(super) problems: Vec<FieldProblem>,
}

impl Check {
    pub(super) fn wrong(&mut self, field: &str, message: impl Into<String>) {
        self.problems.push(FieldProblem::new(field, message));
    }

    pub(super) fn name(&mut self, name: &str) {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        let begins_well = name
            .bytes()
            .next()
            .is_some_and(|byte| byte.is_ascii_alphanumeric());
        if !begins_well || name.len() > MAX_NAME_CHARACTERS || !name.bytes().all(is_plain) {
            let message = format!(
                "must be 1 to {MAX_NAME_CHARACTERS} of a-z, A-Z, 0-9, _, . and -, beginning with a letter or digit"
            );
            self.wrong("name", message);
        }
    }

    pub(super) fn base_model(
        &mut self,
        given: Option<String>,
        of_job: Option<String>,
        has_lora: bool,
    ) -> String {
        if of_job.is_some() && has_lora {
            self.wrong("lora", "goes with base_model; a job's adapter is as it is");
        }
        match (given, of_job) {
            (Some(name), None) => {
                if !is_hub_name(&name) {
                    self.wrong(
                        "base_model",
                        "must be a model's name at the hub, as org/name",
                    );
                }
                name
            }
            (None, Some(name)) => name,
            (Some(_), Some(name)) => {
                self.wrong("base_model", "name a base model or a job, not both");
                name
            }
            (None, None) => {
                let message = "name a base model, or the job_id of an adapter to go on from";
                self.wrong("base_model", message);
                String::new()
            }
        }
    }

    pub(super) fn whole(&mut self, field: &str, value: u64, most: u64) -> u64 {
        if !(1..=most).contains(&value) {
            self.wrong(field, format!("must lie between 1 and {most}"));
        }
        value
    }

    pub(super) fn above_0(&mut self, field: &str, value: f64, most: f64) -> f64 {
        // Counted in single precision later on.
        if !(value.is_finite() && value as f32 > 0.0 && value <= most) {
            let message = match most < f64::MAX {
                true => format!("must be above 0 and at most {most}"),
                false => "must be above 0".to_owned(),
            };
            self.wrong(field, message);
        }
        value
    }

    pub(super) fn below_1(&mut self, field: &str, value: f64) -> f64 {
        if !(0.0..1.0).contains(&(value as f32)) {
            self.wrong(field, "must be at least 0 and below 1");
        }
        value
    }

    pub(super) fn seed(&mut self, seed: u64) -> u64 {
        if seed > MAX_SEED {
            self.wrong("seed", format!("must not be above {MAX_SEED}"));
        }
        seed
    }

    pub(super) fn mode(&mut self, mode: Option<&str>) -> Mode {
        match mode {
            None | Some("cpt") => Mode::Cpt,
            Some("sft") => Mode::Sft,
            Some(_) => {
                self.wrong("mod", "must be cpt or sft");
                Mode::Cpt
            }
        }
    }

    pub(super) fn timeout(&mut self, seconds: f64) -> Option<Duration> {
        if !(seconds.is_finite() && (0.0..=MAX_SECONDS).contains(&seconds)) {
            let message = format!("must be a number of seconds up to {MAX_SECONDS}; 0: none");
            self.wrong("tur_zaman_asimi", message);
            return None;
        }
        (seconds > 0.0).then(|| Duration::from_secs_f64(seconds).max(Duration::from_millis(1)))
    }

    pub(super) fn rule(&mut self, name: Option<&str>) -> Rule {
        match name.map(str::parse::<Rule>) {
            None => Rule::default(),
            Some(Ok(rule)) => rule,
            Some(Err(error)) => {
                self.wrong("aggregation", error.to_string());
                Rule::default()
            }
        }
    }

    pub(super) fn lora(&mut self, lora: Option<LoraRequest>) -> Lora {
        let lora = lora.unwrap_or(LoraRequest {
            r: None,
            alpha: None,
            target_modules: None,
            dtype: None,
        });
        if lora.dtype.is_some_and(|dtype| dtype != "f32") {
            self.wrong("lora.dtype", "must be f32");
        }
        let r = self.whole("lora.r", lora.r.unwrap_or(8), MAX_RANK);
        let targets = lora.target_modules.filter(|targets| !targets.is_null());
        let lora = Lora {
            r: u32::try_from(r).unwrap_or(u32::MAX),
            alpha: self.above_0("lora.alpha", lora.alpha.unwrap_or(16.0), 65_536.0),
            target_modules: targets.unwrap_or_else(|| json!(["q_proj", "v_proj"])),
        };
        for problem in lora.as_config().err().unwrap_or_default() {
            if problem.field == "target_modules" {
                self.wrong("lora.target_modules", problem.message);
            }
        }
        lora
    }

    pub(super) fn key(&mut self, key: Option<&str>) {
        let Some(key) = key else { return };
        let is_header = key.bytes().all(|byte| byte.is_ascii_graphic());
        if key.is_empty() || key.len() > MAX_KEY_CHARACTERS || !is_header {
            let message = format!(
                "must be 1 to {MAX_KEY_CHARACTERS} visible ASCII characters without spaces"
            );
            self.wrong("anahtar", message);
        }
    }
}
