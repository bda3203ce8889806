//! Judges a coordinator of Coordinator protocol v1: plays volunteers against one of its sessions, good ones and
//! hostile ones, and looks at what it answers.
//!
//! Field names are the protocol's Turkish ones: `tur` round, `parca` shard, `isci` worker, `gorev` task, `agirlik`
//! weights, `sonuc` result, `bekle` wait, `bitti` finished, `hata` error. The rounds of the session go on while it is
//! judged; a check that wants an open round to stand still gets one with enough results still missing, and is made
//! again where a round closed under it.

mod adapter;
mod data;
mod ending;
mod general;
mod keys;
mod line;
mod names;
mod raw;
mod results;
mod rounds;
mod session;
mod tasks;
mod turns;
mod uploads;
mod validation;
mod weights;

use std::time::Duration;

use trainyard_shared::Secret;
use url::Url;

use super::check::check;
use super::report::{Finding, Outcome, Problem, Report, Rule};
use line::{Ask, Shown};
use session::Session;

pub use line::{Authority, authorities};

/// A rule about a coordinator.
type Check = super::check::Check<Session>;

/// How often a check is made again where a round closed under it.
const TRIES: u32 = 3;

/// The session to judge, and how to get in.
#[derive(Debug, Clone)]
pub struct Target {
    /// What the protocol's paths are below.
    pub url: Url,
    /// The shared key, where the session has one.
    pub key: Option<Secret>,
    /// Authorities that are trusted beside the machine's own.
    pub authorities: Vec<Authority>,
}

/// How long the judge waits.
#[derive(Debug, Clone)]
pub struct Pace {
    /// For an answer.
    pub answer_within: Duration,
    /// For what must not happen.
    pub quiet_for: Duration,
    /// For a round that has enough results to be merged.
    pub merge_within: Duration,
    /// For a round to close by its timeout; zero leaves that out.
    pub timeout_within: Duration,
    /// Whether the session is played to its end.
    pub to_the_end: bool,
}

const CHECKS: &[&[Check]] = &[
    keys::CHECKS,
    names::CHECKS,
    tasks::CHECKS,
    weights::CHECKS,
    data::CHECKS,
    results::CHECKS,
    uploads::CHECKS,
    validation::CHECKS,
    rounds::CHECKS,
    ending::CHECKS,
    general::CHECKS,
];

/// Plays against the coordinator, one check after the other; `progress` is told of each finding. Where there is
/// nothing to play against the report only says why.
///
/// # Errors
/// The HTTP client does not start.
pub async fn judge(
    target: Target,
    pace: Pace,
    mut progress: impl FnMut(&Finding),
) -> reqwest::Result<Report> {
    let mut session = Session::new(target, pace)?;
    let mut report = Report {
        not_judged: obstacle(&mut session).await,
        ..Report::default()
    };
    if report.not_judged.is_some() {
        return Ok(report);
    }
    for check in CHECKS.iter().copied().flatten() {
        let finding = Finding {
            rule: check.rule,
            verdict: look(check, &mut session).await.into(),
        };
        progress(&finding);
        report.findings.push(finding);
    }
    Ok(report)
}

/// Why nothing can be judged there: nobody answers, there is no session, or it does not let the judge in.
async fn obstacle(session: &mut Session) -> Option<String> {
    let worker = session.newcomer();
    let ask = Ask::get("gorev", format!("isci={worker}"));
    let answer = match session.line.ask(ask).await {
        Ok(answer) => answer,
        Err(Problem::Broken { got: why, .. } | Problem::Blocked(why)) => return Some(why),
    };
    match answer.status {
        401 if !session.line.has_key() => {
            Some("the session wants its shared key: give it with --anahtar".to_owned())
        }
        401 => Some(format!(
            "the session refuses the key that was given: {}",
            answer.describe()
        )),
        404 => {
            let ask = Ask::get("bilgi", "").showing(Shown::Nothing);
            let is_elsewhere =
                matches!(session.line.ask(ask).await, Ok(answer) if answer.status == 404);
            is_elsewhere.then(|| {
                let url = session.line.base();
                format!("there is no session at {url}: {}", answer.describe())
            })
        }
        _ => None,
    }
}

/// All rules that a coordinator is judged by, in order.
pub fn rules() -> impl Iterator<Item = Rule> {
    CHECKS.iter().copied().flatten().map(|check| check.rule)
}

/// Makes a check; again where rounds went on by themselves meanwhile, since that can look like a broken rule or stand in
/// the way.
async fn look(check: &Check, session: &mut Session) -> Outcome {
    let mut broken = None;
    for tries in 1.. {
        let before = session.surprises();
        let Err(problem) = (check.run)(session).await else {
            break;
        };
        let disturbed = session.was_surprised_since(before).await;
        let problem = match problem {
            Problem::Broken { expected, got } if disturbed => Problem::Broken {
                expected,
                got: format!("{got} (rounds closed without the judge's doing meanwhile)"),
            },
            problem => problem,
        };
        let is_broken = matches!(problem, Problem::Broken { .. });
        if !disturbed || tries == TRIES {
            // Where nothing more can be seen, what was seen counts.
            return Err(broken.filter(|_| !is_broken).unwrap_or(problem));
        }
        if is_broken {
            broken = Some(problem);
        }
    }
    Ok(())
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
