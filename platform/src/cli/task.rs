//! Follows an evaluation or an export to its end.

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use super::client::Platform;
use super::error::CliError;
use super::output::{Output, cell, remark};

/// Between two looks at how far it is.
const LOOK: Duration = Duration::from_millis(500);

/// A task under way, and how it is shown.
pub struct Task<'a> {
    /// What it is called, as `export 7`.
    pub name: &'a str,
    /// The path at which the API shows it.
    pub path: &'a [&'a str],
    /// What its progress counts.
    pub unit: &'static str,
}

impl Task<'_> {
    /// Returns the task as the API shows it, once it has ended.
    pub async fn follow(&self, platform: &Platform, output: &Output) -> Result<Value, CliError> {
        let bar = (io::stderr().is_terminal() && !output.is_json()).then(|| bar(self.unit));
        let mut told = String::new();
        let mut shown = platform.get(self.path, &[]).await?;
        loop {
            let status = cell(&shown, "/status");
            if !["queued", "running"].contains(&status.as_str()) {
                if let Some(bar) = &bar {
                    bar.finish_and_clear();
                }
                return Ok(shown);
            }
            let figure = |name| shown.pointer(name).and_then(Value::as_u64).unwrap_or(0);
            match &bar {
                Some(bar) => {
                    bar.set_message(status);
                    bar.set_length(figure("/progress/total"));
                    bar.set_position(figure("/progress/done"));
                }
                None if told != status && !output.is_json() => {
                    remark(&format!("{} is {status}", self.name));
                    told = status;
                }
                None => {}
            }
            tokio::time::sleep(LOOK).await;
            shown = platform.get_again(self.path).await?;
        }
    }
}

/// Success only for a task that completed.
pub fn exit_code(ended: &Value) -> ExitCode {
    if ended["status"] == "completed" {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn bar(unit: &str) -> ProgressBar {
    let template = format!("{{msg}} [{{wide_bar}}] {{human_pos}}/{{human_len}} {unit}");
    let style =
        ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
}
