//! How results of a session are kept private: what may be asked for, and what is shown of it.

use serde::{Deserialize, Serialize};
use trainyard_aggregation::Rule;
use trainyard_privacy::secure::MOST_PARTICIPANTS;
use trainyard_privacy::{GaussianMechanism, InvalidMechanism, epsilon};
use trainyard_shared::message::{DifferentialPrivacy, Privacy, SecureAggregation};
use utoipa::ToSchema;

use crate::error::FieldProblem;

const DEFAULT_DELTA: f64 = 1e-5;
/// The rules for which a sum is enough.
const SUMMED: [Rule; 3] = [Rule::Nesterov, Rule::Mean, Rule::WeightedMean];

/// How results are kept private.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PrivacyRequest {
    /// Every worker clips its change and adds noise before it sends it.
    differential_privacy: Option<DifferentialPrivacyRequest>,
    /// Workers mask their changes such that only the sum of all can be read.
    secure_aggregation: Option<SecureAggregationRequest>,
}

/// Masks that go away in the sum.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SecureAggregationRequest {
    /// Least number of results whose sum is ever read: more than half of `min_workers`, and no more than all of them; two
    /// thirds when absent.
    threshold: Option<u64>,
}

/// The Gaussian mechanism on a worker's change of the adapter.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DifferentialPrivacyRequest {
    /// Changes are scaled down to this L2 norm where they are larger.
    clip_norm: f64,
    /// Every value gets normal noise of this many times `clip_norm` as its standard deviation.
    noise_multiplier: f64,
    /// The delta that epsilon is shown for; 0.00001 when absent.
    delta: Option<f64>,
}

/// What else a session is asked for with, as far as privacy is concerned with it.
pub struct Session {
    /// Results that a round needs.
    pub min_workers: u64,
    /// Workers that take part at most.
    pub max_workers: u64,
    /// How results are merged.
    pub rule: Option<Rule>,
    /// Whether results that go too far are refused.
    pub limits_norm: bool,
}

impl PrivacyRequest {
    /// Checks everything at once.
    ///
    /// # Errors
    /// The fields that cannot be taken.
    pub fn check(self, session: &Session) -> Result<Privacy, Vec<FieldProblem>> {
        let differential_privacy = self.differential_privacy;
        let differential_privacy = differential_privacy.map(DifferentialPrivacyRequest::check);
        let secure_aggregation = self.secure_aggregation.map(|asked| asked.check(session));
        let mut problems = Vec::new();
        let mut taken = Privacy {
            differential_privacy: None,
            secure_aggregation: None,
        };
        match differential_privacy.transpose() {
            Ok(mechanism) => taken.differential_privacy = mechanism,
            Err(found) => problems.extend(found),
        }
        match secure_aggregation.transpose() {
            Ok(masks) => taken.secure_aggregation = masks,
            Err(found) => problems.extend(found),
        }
        match problems.is_empty() {
            true => Ok(taken),
            false => Err(problems),
        }
    }
}

impl SecureAggregationRequest {
    fn check(self, session: &Session) -> Result<SecureAggregation, Vec<FieldProblem>> {
        let Session {
            min_workers,
            max_workers,
            rule,
            limits_norm,
        } = *session;
        let threshold = self.threshold;
        let threshold = threshold.unwrap_or(min_workers.saturating_mul(2).div_ceil(3).max(2));
        let mut problems = Vec::new();
        let mut unless = |is_good: bool, field: &str, message: String| {
            if !is_good {
                problems.push(FieldProblem::new(field, &message));
            }
        };
        let sums = rule.is_none_or(|rule| SUMMED.contains(&rule));
        let rule = rule.unwrap_or_default();
        unless(
            sums,
            "aggregation",
            format!(
                "{rule} needs the results one by one, which privacy.secure_aggregation does not show"
            ),
        );
        unless(
            !limits_norm,
            "max_delta_norm",
            "needs the results one by one, which privacy.secure_aggregation does not show"
                .to_owned(),
        );
        unless(
            min_workers >= 2,
            "min_workers",
            "must be at least 2 with privacy.secure_aggregation: the sum of one is that one"
                .to_owned(),
        );
        let most = MOST_PARTICIPANTS as u64;
        unless(
            max_workers <= most,
            "max_workers",
            format!("must be at most {most} with privacy.secure_aggregation"),
        );
        unless(
            min_workers < 2 || (min_workers / 2 < threshold && threshold <= min_workers),
            "privacy.secure_aggregation.threshold",
            format!(
                "must be more than half of the {min_workers} workers that a round needs, and no more than all"
            ),
        );
        match problems.is_empty() {
            true => Ok(SecureAggregation { threshold }),
            false => Err(problems),
        }
    }
}

impl DifferentialPrivacyRequest {
    fn check(self) -> Result<DifferentialPrivacy, Vec<FieldProblem>> {
        let Self {
            clip_norm,
            noise_multiplier,
            delta,
        } = self;
        let delta = delta.unwrap_or(DEFAULT_DELTA);
        let problem = |field: &str, message: &str| {
            let field = format!("privacy.differential_privacy.{field}");
            FieldProblem::new(field, message)
        };
        let mut problems = Vec::new();
        if let Err(error) = GaussianMechanism::new(clip_norm, noise_multiplier) {
            let field = match error {
                InvalidMechanism::ClipNorm => "clip_norm",
                InvalidMechanism::NoiseMultiplier => "noise_multiplier",
            };
            problems.push(problem(field, "must be a number above 0"));
        }
        if !(delta > 0.0 && delta < 1.0) {
            problems.push(problem("delta", "must lie between 0 and 1"));
        }
        match problems.is_empty() {
            true => Ok(DifferentialPrivacy {
                clip_norm,
                noise_multiplier,
                delta,
            }),
            false => Err(problems),
        }
    }
}

/// What the final adapter's page says of how the results were kept private.
pub fn in_words(privacy: &Privacy, rounds: u64) -> String {
    let mut words = String::new();
    if let Some(asked) = &privacy.differential_privacy {
        let DifferentialPrivacy {
            clip_norm,
            noise_multiplier,
            delta,
        } = *asked;
        let epsilon = epsilon(noise_multiplier, rounds, delta);
        words.push_str(&format!(
            "Differential privacy: every worker clipped its change of a round to an L2 norm of {clip_norm} and added \
             Gaussian noise of {noise_multiplier} times that. A worker with a result in each of the {rounds} rounds has \
             given away an epsilon of {epsilon:.2} for a delta of {delta}.\n\n"
        ));
    }
    if let Some(asked) = &privacy.secure_aggregation {
        words.push_str(&format!(
            "Secure aggregation: sums of at least {} results were read, and no single one.\n\n",
            asked.threshold
        ));
    }
    words
}

/// What is known of a session's privacy.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct PrivacyView {
    /// Clip and noise; null where they are not used.
    differential_privacy: Option<DifferentialPrivacyView>,
    /// Masks; null where results are seen one by one.
    secure_aggregation: Option<SecureAggregationView>,
}

/// The masks.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct SecureAggregationView {
    /// Least number of results whose sum is ever read.
    threshold: u64,
}

/// The mechanism, and what has been given away.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct DifferentialPrivacyView {
    clip_norm: f64,
    noise_multiplier: f64,
    delta: f64,
    /// Epsilon of a worker that sends one result in every round, up to the one that is open.
    epsilon: f64,
    /// The same at the session's end.
    epsilon_at_end: f64,
}

impl PrivacyView {
    /// After so many rounds of `total`.
    pub fn of(privacy: &Privacy, rounds: u64, total: u64) -> Self {
        let view = |asked: &DifferentialPrivacy| DifferentialPrivacyView {
            clip_norm: asked.clip_norm,
            noise_multiplier: asked.noise_multiplier,
            delta: asked.delta,
            epsilon: epsilon(asked.noise_multiplier, rounds, asked.delta),
            epsilon_at_end: epsilon(asked.noise_multiplier, total, asked.delta),
        };
        Self {
            differential_privacy: privacy.differential_privacy.as_ref().map(view),
            secure_aggregation: privacy.secure_aggregation.as_ref().map(|asked| {
                SecureAggregationView {
                    threshold: asked.threshold,
                }
            }),
        }
    }

    /// Epsilon of a worker that sent so many results.
    pub fn epsilon_after(&self, results: u64) -> Option<f64> {
        let mechanism = self.differential_privacy.as_ref()?;
        Some(epsilon(
            mechanism.noise_multiplier,
            results,
            mechanism.delta,
        ))
    }
}
