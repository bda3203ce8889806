//! Judges a worker: plays the platform that it connects to, lets it train, and looks at what it says.
//!
//! The play comes first (`acts`), and all that happens in it is written down (`story`). The rules are then pure
//! functions of that story, so that one fault of the worker breaks only the rules that it is about.

mod acts;
mod files;
mod host;
mod rules;
mod story;

use std::net::SocketAddr;
use std::time::Duration;

use trainyard_shared::Secret;
use url::Url;

use super::report::{Finding, Outcome, Problem, Report, Rule};
use acts::Stage;
use host::Host;
use story::Story;

/// How long the judge waits.
#[derive(Debug, Clone)]
pub struct Pace {
    /// For the worker to connect and register, its measurements included.
    pub connect_within: Duration,
    /// For an answer.
    pub answer_within: Duration,
    /// For a job to start, and for a job to end.
    pub train_within: Duration,
    /// Whether the slow parts are played too, in which timings are looked at.
    pub slow: bool,
    /// What the worker is set to.
    pub timings: Timings,
}

/// What the worker is set to. The defaults are the source document's.
#[derive(Debug, Clone)]
pub struct Timings {
    /// `HEARTBEAT_INTERVAL`
    pub heartbeat_interval: Duration,
    /// `METRICS_INTERVAL`
    pub metrics_interval: Duration,
    /// `RECONNECT_DELAY`
    pub reconnect_delay: Duration,
    /// What that doubles up to.
    pub longest_reconnect_delay: Duration,
    /// How much later than that something may come.
    pub tolerance: Duration,
}

/// A judge that waits for a worker.
pub struct Judge {
    host: Host,
}

/// A rule and how it is looked at.
struct Check {
    rule: Rule,
    look: fn(&Told) -> Outcome,
}

/// What rules are judged by.
struct Told {
    story: Story,
    enrollment_key: Secret,
    timings: Timings,
    slow: bool,
}

impl Told {
    /// Something can be said of the worker.
    fn joined(&self) -> Outcome {
        let why = "no worker registered";
        match self.story.heard("worker_register").is_empty() {
            true => Err(Problem::Blocked(why.to_owned())),
            false => Ok(()),
        }
    }
}

impl Judge {
    /// Begins to listen. Workers reach it at `url`, or at the address that is bound.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn listen(bind: SocketAddr, url: Option<&Url>) -> std::io::Result<Self> {
        let url = url.map(|url| url.as_str().trim_end_matches('/').to_owned());
        Host::start(bind, url).await.map(|host| Self { host })
    }

    /// Where the worker has to connect to, as an http address.
    pub fn url(&self) -> &str {
        &self.host.url
    }

    /// The key with which the worker has to be started.
    pub fn enrollment_key(&self) -> &Secret {
        &self.host.enrollment_key
    }

    /// Plays with the worker that connects, and judges it. Jobs train the base model of that name.
    pub async fn judge(&self, model: &str, pace: &Pace) -> Report {
        let host = &self.host;
        Stage { host, model, pace }.play().await;
        let told = Told {
            story: host.story.story(),
            enrollment_key: host.enrollment_key.clone(),
            timings: pace.timings.clone(),
            slow: pace.slow,
        };
        let findings = checks().map(|check| Finding {
            rule: check.rule,
            verdict: (check.look)(&told).into(),
        });
        Report {
            findings: findings.collect(),
            not_judged: None,
        }
    }
}

/// All rules that a worker is judged by, in order.
pub fn rules() -> impl Iterator<Item = Rule> {
    checks().map(|check| check.rule)
}

fn checks() -> impl Iterator<Item = &'static Check> {
    rules::CHECKS.iter().copied().flatten()
}
