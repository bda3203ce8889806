//! `trainyard conformance`: judges a platform, a worker or a coordinator, ours or another's, from outside.

mod coordinator;
mod platform;
mod worker;

use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use trainyard_platform::conformance::{Finding, Level, Report, Verdict};

use super::error::CliError;
use super::output::{Output, printable};
use super::{Common, block_on};

/// What is judged.
#[derive(Subcommand)]
pub enum Command {
    /// Judge a platform: play workers and dashboards against it.
    Platform(Box<platform::Options>),
    /// Judge a worker: play the platform that it connects to.
    Worker(Box<worker::Options>),
    /// Judge a coordinator of volunteers: play volunteers against one of its sessions, good ones and hostile ones.
    Coordinator(Box<coordinator::Options>),
}

/// Judges, and says by the exit code whether every required rule holds.
pub fn run(command: Command, common: &Common, output: &Output) -> Result<ExitCode, CliError> {
    let report = match command {
        Command::Platform(options) => {
            block_on(async { platform::run(&options, common, output).await })?
        }
        Command::Worker(options) => worker::run(&options, output)?,
        Command::Coordinator(options) => {
            block_on(async { coordinator::run(&options, output).await })?
        }
    };
    if output.is_json() {
        output.line(&report.to_json().to_string())?;
    } else {
        output.line(&summary(&report))?;
    }
    Ok(if report.conforms() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Prints a finding for a person as soon as it is there.
fn show(finding: &Finding, output: &Output) {
    if !output.is_json() {
        // Where standard output is closed, the last line tells so.
        let _ = output.line(&in_words(finding));
    }
}

fn in_words(finding: &Finding) -> String {
    let (word, detail) = match &finding.verdict {
        Verdict::Pass => ("pass", String::new()),
        Verdict::Fail { expected, got } => {
            let (expected, got) = (on_one_line(expected), on_one_line(got));
            (
                "FAIL",
                format!("\n      expected  {expected}\n      got       {got}"),
            )
        }
        Verdict::Skip { reason } => ("skip", format!("\n      {}", on_one_line(reason))),
    };
    let level = match finding.rule.level {
        Level::Required => "required",
        Level::Recommended => "recommended",
    };
    let (id, says) = (finding.rule.id, finding.rule.says);
    format!("{word}  {level:<11}  {id}: {says}{detail}")
}

fn on_one_line(text: &str) -> String {
    printable(&text.replace('\n', " "))
}

fn summary(report: &Report) -> String {
    if let Some(why) = &report.not_judged {
        return format!("not judged: {}", on_one_line(why));
    }
    let json = report.to_json();
    let line = |level: &str| {
        let counts = &json[level];
        format!(
            "{level:<11}  {} passed, {} failed, {} skipped",
            counts["passed"], counts["failed"], counts["skipped"]
        )
    };
    let unseen = json["required"]["skipped"].as_u64().unwrap_or(0);
    let verdict = match (report.conforms(), unseen) {
        (true, 0) => "conforms: every required rule holds".to_owned(),
        (true, unseen) => {
            format!("conforms: no required rule is broken; {unseen} could not be looked at")
        }
        (false, _) => "does not conform".to_owned(),
    };
    format!("\n{}\n{}\n{verdict}", line("required"), line("recommended"))
}

/// Reads seconds, with a fraction or without.
fn seconds(text: &str) -> Result<Duration, String> {
    text.parse::<f64>()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| format!("{text:?} is no number of seconds"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainyard_platform::conformance::Rule;

    #[test]
    fn a_broken_rule_is_told_with_what_was_expected_and_what_came() {
        let finding = Finding {
            rule: Rule::required("auth.status", "authenticated carries status ok"),
            verdict: Verdict::Fail {
                expected: "status ok".to_owned(),
                got: "status\nno\u{1b}".to_owned(),
            },
        };
        assert_eq!(
            in_words(&finding),
            "FAIL  required     auth.status: authenticated carries status ok\n      expected  status ok\n      \
             got       status no\u{fffd}"
        );
    }

    #[test]
    fn what_holds_is_one_line_and_what_could_not_be_seen_says_why() {
        let told = |level, verdict| {
            let rule = Rule {
                level,
                ..Rule::required("gorev.task", "a task has a round")
            };
            in_words(&Finding { rule, verdict })
        };
        assert_eq!(
            told(Level::Required, Verdict::Pass),
            "pass  required     gorev.task: a task has a round"
        );
        let reason = "no\nsession\u{1b}[2J".to_owned();
        assert_eq!(
            told(Level::Recommended, Verdict::Skip { reason }),
            "skip  recommended  gorev.task: a task has a round\n      no session\u{fffd}[2J"
        );
    }

    #[test]
    fn the_end_counts_what_was_found_by_how_binding_it_is() {
        let finding = |level, verdict| Finding {
            rule: Rule {
                level,
                ..Rule::required("a.rule", "something holds")
            },
            verdict,
        };
        let fail = || Verdict::Fail {
            expected: "a".to_owned(),
            got: "b".to_owned(),
        };
        let skip = || Verdict::Skip {
            reason: "no key".to_owned(),
        };
        let mut findings = vec![
            finding(Level::Required, Verdict::Pass),
            finding(Level::Required, Verdict::Pass),
            finding(Level::Required, skip()),
            finding(Level::Recommended, fail()),
            finding(Level::Recommended, Verdict::Pass),
        ];
        let told = |findings: &[Finding]| {
            summary(&Report {
                findings: findings.to_vec(),
                ..Report::default()
            })
        };
        assert_eq!(
            told(&findings),
            "\nrequired     2 passed, 0 failed, 1 skipped\nrecommended  1 passed, 1 failed, 0 skipped\n\
             conforms: no required rule is broken; 1 could not be looked at"
        );
        findings.push(finding(Level::Required, fail()));
        assert_eq!(
            told(&findings),
            "\nrequired     2 passed, 1 failed, 1 skipped\nrecommended  1 passed, 1 failed, 0 skipped\n\
             does not conform"
        );
    }

    #[test]
    fn rules_that_were_not_looked_at_are_told_beside_the_verdict() {
        let finding = |verdict| Finding {
            rule: Rule::required("a.rule", "something holds"),
            verdict,
        };
        let mut report = Report {
            findings: vec![finding(Verdict::Pass)],
            ..Report::default()
        };
        assert!(summary(&report).ends_with("\nconforms: every required rule holds"));
        let reason = "no login".to_owned();
        report.findings.push(finding(Verdict::Skip { reason }));
        let told = summary(&report);
        assert!(
            told.ends_with("no required rule is broken; 1 could not be looked at"),
            "{told}"
        );
        report.not_judged = Some("nobody answers".to_owned());
        assert_eq!(summary(&report), "not judged: nobody answers");
    }

    #[test]
    fn seconds_may_have_a_fraction() {
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        for wrong in ["", "-1", "NaN", "1s"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
