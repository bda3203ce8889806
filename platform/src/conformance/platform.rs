//! Judges a platform: plays workers and dashboards against it and looks at what comes back.
//!
//! Only the WebSocket messages are judged. What the source document leaves to a REST API (the dashboard's token,
//! submitting and stopping jobs) is asked for as `docs/api.md` says; where a platform has no such route, or no login
//! is given, the checks that need it are skipped.

mod authentication;
mod dashboards;
mod enrollment;
mod faults;
mod line;
mod liveness;
mod registration;
mod rest;
mod training;
mod work;
mod yard;

use std::time::Duration;

use trainyard_shared::Secret;
use url::Url;

use super::check::check;
use super::report::{Finding, Outcome, Report, Rule};
use yard::Yard;

/// The platform to judge, and how to get in.
#[derive(Debug, Clone)]
pub struct Target {
    /// Its http or https base address.
    pub url: Url,
    /// A key with which workers enrol; made with the token where there is none.
    pub enrollment_key: Option<Secret>,
    /// Bearer token of a login, for the REST API.
    pub token: Option<Secret>,
}

/// How long the judge waits.
#[derive(Debug, Clone)]
pub struct Pace {
    /// For an answer that must come.
    pub answer_within: Duration,
    /// For what must not come.
    pub quiet_for: Duration,
    /// The platform's timings, where the slow checks are wanted.
    pub timings: Option<Timings>,
}

/// What the platform is set to. The defaults are the source document's, and ours where that is silent.
#[derive(Debug, Clone)]
pub struct Timings {
    /// `WORKER_HEARTBEAT_TIMEOUT`
    pub heartbeat_timeout: Duration,
    /// How often all workers are looked at.
    pub check_interval: Duration,
    /// How long a `pong` may take.
    pub ping_grace: Duration,
    /// How long a dashboard's token is valid.
    pub token_lifetime: Duration,
    /// How long a worker may take to authenticate.
    pub authenticate_within: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            heartbeat_timeout: Duration::from_secs(90),
            check_interval: Duration::from_secs(60),
            ping_grace: Duration::from_secs(10),
            token_lifetime: Duration::from_secs(60),
            authenticate_within: Duration::from_secs(10),
        }
    }
}

/// A rule about a platform.
type Check = super::check::Check<Yard>;

const CHECKS: &[&[Check]] = &[
    enrollment::CHECKS,
    authentication::CHECKS,
    registration::CHECKS,
    dashboards::CHECKS,
    training::CHECKS,
    work::CHECKS,
    faults::CHECKS,
    liveness::CHECKS,
    &[
        check!(required "format.json_with_type": "every message of the platform is a JSON object with a type", every_message_is_json),
        check!(required "format.timestamps": "every timestamp of the platform is RFC 3339", every_timestamp_is_rfc_3339),
    ],
];

/// Plays against the platform, one check after the other; `progress` is told of each finding.
pub async fn judge(target: Target, pace: Pace, mut progress: impl FnMut(&Finding)) -> Report {
    let mut yard = Yard::new(target, pace);
    yard.keep_a_token_to_age().await;
    let mut report = Report::default();
    for check in CHECKS.iter().copied().flatten() {
        let finding = Finding {
            rule: check.rule,
            verdict: (check.run)(&mut yard).await.into(),
        };
        progress(&finding);
        report.findings.push(finding);
    }
    yard.clear_away().await;
    report
}

/// All rules that a platform is judged by, in order.
pub fn rules() -> impl Iterator<Item = Rule> {
    CHECKS.iter().copied().flatten().map(|check| check.rule)
}

async fn every_message_is_json(yard: &mut Yard) -> Outcome {
    yard.heard.readable()
}

async fn every_timestamp_is_rfc_3339(yard: &mut Yard) -> Outcome {
    yard.heard.timestamps_fit()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_rule_has_a_name_of_its_own() {
        let names: Vec<_> = rules().map(|rule| rule.id).collect();
        let distinct: BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
    }
}
