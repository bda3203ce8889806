//! How results of a session are kept private: what may be asked for, and what is shown of it.

use serde::{Deserialize, Serialize};
use trainyard_privacy::{GaussianMechanism, InvalidMechanism, epsilon};
use trainyard_shared::message::{DifferentialPrivacy, Privacy};
use utoipa::ToSchema;

use crate::error::FieldProblem;

const DEFAULT_DELTA: f64 = 1e-5;

/// How results are kept private.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PrivacyRequest {
    /// Every worker clips its change and adds noise before it sends it.
    differential_privacy: Option<DifferentialPrivacyRequest>,
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

impl PrivacyRequest {
    /// Checks everything at once.
    ///
    /// # Errors
    /// The fields that cannot be taken.
    pub fn check(self) -> Result<Privacy, Vec<FieldProblem>> {
        let asked = self.differential_privacy;
        let differential_privacy = asked.map(DifferentialPrivacyRequest::check).transpose()?;
        Ok(Privacy {
            differential_privacy,
        })
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

/// What is known of a session's privacy.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct PrivacyView {
    /// Clip and noise; null where they are not used.
    differential_privacy: Option<DifferentialPrivacyView>,
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
