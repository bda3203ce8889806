//! What is found about each rule, and the list of it for people and programs.

use std::future::Future;

use serde::Serialize;
use serde_json::{Value, json};

/// How binding a rule is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The source document states it.
    Required,
    /// A decision of ours where the source document is silent.
    Recommended,
}

/// One rule of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Rule {
    /// Its name in reports, which stays.
    pub id: &'static str,
    /// How binding it is.
    pub level: Level,
    /// What must hold.
    pub says: &'static str,
}

/// What was found about a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "result", rename_all = "lowercase")]
pub enum Verdict {
    /// It holds.
    Pass,
    /// It does not.
    Fail {
        /// What had to come.
        expected: String,
        /// What came.
        got: String,
    },
    /// It could not be looked at.
    Skip {
        /// Why not.
        reason: String,
    },
}

/// A rule with what was found about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The rule.
    #[serde(flatten)]
    pub rule: Rule,
    /// What was found.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// Why a check does not pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// The rule is broken.
    Broken {
        /// What had to come.
        expected: String,
        /// What came.
        got: String,
    },
    /// Something that the check needs is missing: nothing is known about the rule.
    Blocked(String),
}

/// What a check comes to.
pub type Outcome<T = ()> = Result<T, Problem>;

impl Rule {
    /// A rule that the source document states.
    pub const fn required(id: &'static str, says: &'static str) -> Self {
        let level = Level::Required;
        Self { id, level, says }
    }

    /// A rule of ours.
    pub const fn recommended(id: &'static str, says: &'static str) -> Self {
        let level = Level::Recommended;
        Self { id, level, says }
    }
}

impl Problem {
    /// The rule is broken.
    pub fn broken(expected: impl Into<String>, got: impl Into<String>) -> Self {
        Self::Broken {
            expected: expected.into(),
            got: got.into(),
        }
    }

    /// The same problem where it only stands in the way of another rule.
    pub fn in_the_way(self) -> Self {
        match self {
            Self::Broken { expected, got } => {
                Self::Blocked(format!("expected {expected}, got {got}"))
            }
            blocked @ Self::Blocked(_) => blocked,
        }
    }
}

/// Turns what breaks a rule into what stands in the way of another one.
pub async fn needed<T>(work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    work.await.map_err(Problem::in_the_way)
}

/// Fails with what was expected and what came, unless `holds`.
pub fn expect(
    holds: bool,
    expected: impl Into<String>,
    got: impl FnOnce() -> String,
) -> Outcome<()> {
    if holds {
        Ok(())
    } else {
        Err(Problem::broken(expected, got()))
    }
}

impl From<Outcome<()>> for Verdict {
    fn from(outcome: Outcome<()>) -> Self {
        match outcome {
            Ok(()) => Self::Pass,
            Err(Problem::Broken { expected, got }) => Self::Fail { expected, got },
            Err(Problem::Blocked(reason)) => Self::Skip { reason },
        }
    }
}

/// All findings about one implementation, in the order of the checks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The findings.
    pub findings: Vec<Finding>,
    /// Why nothing was judged at all.
    pub not_judged: Option<String>,
}

impl Report {
    /// Whether no required rule is broken, and at least one was seen to hold.
    pub fn conforms(&self) -> bool {
        let required = |finding: &&Finding| finding.rule.level == Level::Required;
        let mut of_required = self.findings.iter().filter(required);
        let failed = of_required.any(|finding| matches!(finding.verdict, Verdict::Fail { .. }));
        !failed && self.count(Level::Required, |verdict| *verdict == Verdict::Pass) > 0
    }

    /// The report as one JSON object.
    pub fn to_json(&self) -> Value {
        let of = |level| {
            json!({
                "passed": self.count(level, |verdict| *verdict == Verdict::Pass),
                "failed": self.count(level, |verdict| matches!(verdict, Verdict::Fail { .. })),
                "skipped": self.count(level, |verdict| matches!(verdict, Verdict::Skip { .. })),
            })
        };
        let mut report = json!({
            "conforms": self.conforms(),
            "required": of(Level::Required),
            "recommended": of(Level::Recommended),
            "rules": self.findings,
        });
        if let Some(why) = &self.not_judged {
            report["not_judged"] = json!(why);
        }
        report
    }

    fn count(&self, level: Level, holds: impl Fn(&Verdict) -> bool) -> usize {
        self.findings
            .iter()
            .filter(|finding| finding.rule.level == level && holds(&finding.verdict))
            .count()
    }
}

/// A piece of what came, short enough to be read.
pub fn excerpt(text: &str) -> String {
    const LONGEST: usize = 400;
    match text.char_indices().nth(LONGEST) {
        None => text.to_owned(),
        Some((end, _)) => format!("{} … ({} bytes)", &text[..end], text.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(level: Level, verdict: Verdict) -> Finding {
        let (id, says) = ("a.rule", "something holds");
        let rule = Rule { id, level, says };
        Finding { rule, verdict }
    }

    fn fail() -> Verdict {
        Problem::broken("a", "b").into_verdict()
    }

    impl Problem {
        fn into_verdict(self) -> Verdict {
            Verdict::from(Err(self))
        }
    }

    #[test]
    fn only_required_rules_decide() {
        let mut report = Report::default();
        assert!(!report.conforms(), "nothing was seen");
        report
            .findings
            .push(finding(Level::Required, Verdict::Pass));
        report.findings.push(finding(Level::Recommended, fail()));
        assert!(report.conforms());
        report.findings.push(finding(Level::Required, fail()));
        assert!(!report.conforms());
    }

    #[test]
    fn the_report_counts_and_lists() {
        let skipped = Problem::Blocked("no login".to_owned()).into_verdict();
        let report = Report {
            findings: vec![
                finding(Level::Required, skipped),
                finding(Level::Recommended, fail()),
            ],
            not_judged: None,
        };
        assert_eq!(
            report.to_json(),
            json!({
                "conforms": false,
                "required": {"passed": 0, "failed": 0, "skipped": 1},
                "recommended": {"passed": 0, "failed": 1, "skipped": 0},
                "rules": [
                    {"id": "a.rule", "level": "required", "says": "something holds",
                     "result": "skip", "reason": "no login"},
                    {"id": "a.rule", "level": "recommended", "says": "something holds",
                     "result": "fail", "expected": "a", "got": "b"},
                ],
            })
        );
    }

    #[test]
    fn where_nothing_was_judged_nothing_conforms_and_the_report_says_why() {
        let report = Report {
            not_judged: Some("nobody answers".to_owned()),
            ..Report::default()
        };
        assert!(!report.conforms());
        assert_eq!(report.to_json()["not_judged"], "nobody answers");
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        assert_eq!(excerpt("short"), "short");
        assert!(excerpt(&"ü".repeat(1000)).ends_with("ü … (2000 bytes)"));
    }
}
