//! `trainyard conformance coordinator`: which session is judged, and how long is waited.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use trainyard_platform::conformance::Report;
use trainyard_platform::conformance::coordinator::{Authority, Pace, Target, authorities, judge};
use trainyard_shared::Secret;
use url::Url;

use super::{seconds, show};
use crate::cli::error::CliError;
use crate::cli::output::Output;

/// Options of `conformance coordinator`.
#[derive(Args)]
pub struct Options {
    /// Address of the session, http or https: what /gorev is below.
    #[arg(value_name = "URL")]
    url: Url,
    /// The session's shared key, where it has one.
    #[arg(
        long,
        env = "TRAINYARD_ANAHTAR",
        value_name = "KEY",
        hide_env_values = true
    )]
    anahtar: Option<String>,
    /// PEM file of authorities that are trusted beside the machine's own.
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// How long an answer may take, in seconds.
    #[arg(long, default_value = "10", value_name = "SECONDS", value_parser = seconds)]
    answer_within: Duration,
    /// How long is waited for what must not happen, in seconds.
    #[arg(long, default_value = "1", value_name = "SECONDS", value_parser = seconds)]
    quiet_for: Duration,
    /// How long a round that has enough results may take to close, in seconds.
    #[arg(long, default_value = "60", value_name = "SECONDS", value_parser = seconds)]
    merge_within: Duration,
    /// How long is waited for a round to close by its timeout, in seconds: more than that timeout. 0 leaves it out.
    #[arg(long, default_value = "0", value_name = "SECONDS", value_parser = seconds)]
    wait_seconds: Duration,
    /// Play the session to its end; it cannot be used afterwards.
    #[arg(long)]
    to_the_end: bool,
}

/// Judges the coordinator.
pub async fn run(options: &Options, output: &Output) -> Result<Report, CliError> {
    let trusted = options.ca_file.as_deref().map(trusted).transpose()?;
    let target = Target {
        url: address(&options.url)?,
        key: options.anahtar.as_deref().map(Secret::from),
        authorities: trusted.unwrap_or_default(),
    };
    let pace = Pace {
        answer_within: options.answer_within,
        quiet_for: options.quiet_for,
        merge_within: options.merge_within,
        timeout_within: options.wait_seconds,
        to_the_end: options.to_the_end,
    };
    judge(target, pace, |finding| show(finding, output))
        .await
        .map_err(|error| CliError::Input(format!("the HTTP client does not start: {error}")))
}

fn address(url: &Url) -> Result<Url, CliError> {
    match url.scheme() {
        "http" | "https" if url.has_host() => Ok(url.clone()),
        _ => Err(CliError::Input(format!(
            "{url}: a coordinator's address begins with http:// or https://"
        ))),
    }
}

fn trusted(file: &Path) -> Result<Vec<Authority>, CliError> {
    let name = file.display().to_string();
    let pem = std::fs::read(file).map_err(|source| CliError::io(name.clone(), source))?;
    match authorities(&pem) {
        Ok(trusted) if !trusted.is_empty() => Ok(trusted),
        Ok(_) => Err(CliError::Input(format!("{name}: no certificate in it"))),
        Err(error) => Err(CliError::Input(format!("{name}: {error}"))),
    }
}
