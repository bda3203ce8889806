//! Runs `trainyard conformance` and reads its report.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use tokio::process::Command;

use crate::process::{Process, binary};

/// How long a judge may take. Many of them, with a platform each, share the machine.
const REPORT_DEADLINE: Duration = Duration::from_secs(600);

/// What the judge came to.
#[derive(Debug)]
pub struct Judged {
    /// The exit code of the process.
    pub exit_code: Option<i32>,
    /// The report, as `--json` prints it.
    pub report: Value,
}

/// Starts `trainyard conformance` with these arguments and settings.
pub fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Process {
    let mut command = Command::new(binary("trainyard"));
    command
        .args(["--json", "conformance"])
        .args(arguments)
        .env_clear()
        .envs(environment.iter().copied());
    Process::start("trainyard conformance", command)
}

/// Waits for the judge's end and reads its report.
pub async fn judged(mut process: Process) -> Judged {
    let report = process
        .line_within(REPORT_DEADLINE, "a report", |line| {
            let report: Value = serde_json::from_str(line).ok()?;
            report["rules"].is_array().then_some(report)
        })
        .await;
    Judged {
        exit_code: process.ended().await,
        report,
    }
}

impl Judged {
    /// The rules with that result.
    pub fn with_result(&self, result: &str) -> BTreeSet<&str> {
        self.rules()
            .filter(|rule| rule["result"] == result)
            .map(|rule| rule["id"].as_str().expect("a rule has a name"))
            .collect()
    }

    /// Panics unless every rule passes but for those that are expected to be skipped.
    pub fn assert_conforms(&self, skipped: &[&str]) {
        let skipped = skipped.iter().copied().collect();
        assert_eq!(
            (self.with_result("fail"), self.with_result("skip")),
            (BTreeSet::new(), skipped),
            "{}",
            self.faults()
        );
        assert_eq!(self.exit_code, Some(0));
    }

    /// The findings that are no pass, one a line, for the message of a failed test.
    pub fn faults(&self) -> String {
        self.rules()
            .filter(|rule| rule["result"] != "pass")
            .map(|rule| format!("{rule}\n"))
            .collect()
    }

    fn rules(&self) -> impl Iterator<Item = &Value> {
        self.report["rules"].as_array().expect("a list").iter()
    }
}
