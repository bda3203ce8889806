//! `trainyard conformance platform`: who logs in, and how long is waited.

use std::time::Duration;

use clap::Args;
use serde_json::json;
use trainyard_platform::conformance::Report;
use trainyard_platform::conformance::platform::{Pace, Target, Timings, judge};
use trainyard_shared::Secret;
use url::Url;

use super::{seconds, show};
use crate::cli::client::Platform;
use crate::cli::error::CliError;
use crate::cli::output::{Output, remark};
use crate::cli::{Common, terminal};

/// Options of `conformance platform`.
#[derive(Args)]
pub struct Options {
    /// Address of the platform, http or https; else as for all commands.
    #[arg(value_name = "URL")]
    url: Option<Url>,
    /// Key with which the played workers enrol; without one, the login makes one.
    #[arg(
        long,
        env = "TRAINYARD_ENROLLMENT_KEY",
        value_name = "KEY",
        hide_env_values = true
    )]
    enrollment_key: Option<String>,
    /// Who logs in to play dashboards and submit jobs; else the last `trainyard login` there counts. The password
    /// is read from TRAINYARD_PASSWORD, or asked for.
    #[arg(long, env = "TRAINYARD_EMAIL", value_name = "EMAIL")]
    email: Option<String>,
    /// Read the password from the first line of standard input.
    #[arg(long, requires = "email")]
    password_stdin: bool,
    /// How long an answer may take, in seconds.
    #[arg(long, default_value = "10", value_name = "SECONDS", value_parser = seconds)]
    answer_within: Duration,
    /// How long is waited for what must not come, in seconds.
    #[arg(long, default_value = "1", value_name = "SECONDS", value_parser = seconds)]
    quiet_for: Duration,
    /// Run the slow checks too, which wait for heartbeats to be missed and tokens to expire.
    #[arg(long)]
    timing: bool,
    /// The platform's WORKER_HEARTBEAT_TIMEOUT, in seconds.
    #[arg(long, default_value = "90", value_name = "SECONDS", value_parser = seconds)]
    heartbeat_timeout: Duration,
    /// How often the platform looks at its workers, in seconds.
    #[arg(long, default_value = "60", value_name = "SECONDS", value_parser = seconds)]
    check_interval: Duration,
    /// How long the platform waits for a pong, in seconds.
    #[arg(long, default_value = "10", value_name = "SECONDS", value_parser = seconds)]
    ping_grace: Duration,
    /// How long a dashboard's token is valid, in seconds.
    #[arg(long, default_value = "60", value_name = "SECONDS", value_parser = seconds)]
    token_lifetime: Duration,
    /// How long a worker may take to authenticate, in seconds.
    #[arg(long, default_value = "10", value_name = "SECONDS", value_parser = seconds)]
    authenticate_within: Duration,
}

/// Judges the platform.
pub async fn run(options: &Options, common: &Common, output: &Output) -> Result<Report, CliError> {
    let named = options.url.as_ref().or(common.platform.as_ref());
    let platform = log_in(options, named).await?;
    if platform.token().is_none() {
        remark("there is no login: what needs one is skipped");
    }
    let target = Target {
        url: platform.base().clone(),
        enrollment_key: options.enrollment_key.as_deref().map(Secret::from),
        token: platform.token().cloned(),
    };
    let timings = options.timing.then_some(Timings {
        heartbeat_timeout: options.heartbeat_timeout,
        check_interval: options.check_interval,
        ping_grace: options.ping_grace,
        token_lifetime: options.token_lifetime,
        authenticate_within: options.authenticate_within,
    });
    let pace = Pace {
        answer_within: options.answer_within,
        quiet_for: options.quiet_for,
        timings,
    };
    Ok(judge(target, pace, |finding| show(finding, output)).await)
}

async fn log_in(options: &Options, named: Option<&Url>) -> Result<Platform, CliError> {
    let Some(email) = &options.email else {
        return Platform::with_credentials(named);
    };
    let from_environment = std::env::var("TRAINYARD_PASSWORD").ok();
    let password = match from_environment.filter(|_| !options.password_stdin) {
        Some(password) => Secret::from(password),
        None => terminal::password("Password", options.password_stdin)?,
    };
    let anonymous = Platform::anonymous(named)?;
    let body = json!({"email": email, "password": password.expose()});
    let answer = anonymous
        .post_anonymous(&["api", "auth", "login"], &body)
        .await?;
    let token = answer["token"]
        .as_str()
        .ok_or_else(|| CliError::UnexpectedAnswer("no token".to_owned()))?;
    Platform::new(anonymous.base().clone(), Some(Secret::from(token)))
}
