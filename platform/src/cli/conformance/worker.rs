//! `trainyard conformance worker`: where the played platform listens, and how long is waited.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use trainyard_platform::conformance::Report;
use trainyard_platform::conformance::worker::{Judge, Pace, Timings};
use url::Url;

use super::{seconds, show};
use crate::cli::error::CliError;
use crate::cli::output::{Output, remark};

/// Options of `conformance worker`.
#[derive(Args)]
pub struct Options {
    /// Address to listen on; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS:PORT")]
    bind: SocketAddr,
    /// Address under which the worker reaches this machine, where it is another one than the one bound.
    #[arg(long, value_name = "URL")]
    public_url: Option<Url>,
    /// Base model that the jobs train: one that the worker has or can fetch.
    #[arg(long, value_name = "ID")]
    model: String,
    /// How long is waited for the worker to connect and register, in seconds.
    #[arg(long, default_value = "300", value_name = "SECONDS", value_parser = seconds)]
    connect_within: Duration,
    /// How long an answer may take, in seconds.
    #[arg(long, default_value = "20", value_name = "SECONDS", value_parser = seconds)]
    answer_within: Duration,
    /// How long a job may take to get under way, and to end, in seconds.
    #[arg(long, default_value = "600", value_name = "SECONDS", value_parser = seconds)]
    train_within: Duration,
    /// Look at timings too: heartbeats, metrics, and the delays between tries to connect.
    #[arg(long)]
    timing: bool,
    /// The worker's HEARTBEAT_INTERVAL, in seconds.
    #[arg(long, default_value = "30", value_name = "SECONDS", value_parser = seconds)]
    heartbeat_interval: Duration,
    /// The worker's METRICS_INTERVAL, in seconds.
    #[arg(long, default_value = "5", value_name = "SECONDS", value_parser = seconds)]
    metrics_interval: Duration,
    /// The worker's RECONNECT_DELAY, in seconds.
    #[arg(long, default_value = "5", value_name = "SECONDS", value_parser = seconds)]
    reconnect_delay: Duration,
    /// What the delay doubles up to, in seconds.
    #[arg(long, default_value = "60", value_name = "SECONDS", value_parser = seconds)]
    longest_reconnect_delay: Duration,
    /// How much late something may come, in seconds.
    #[arg(long, default_value = "3", value_name = "SECONDS", value_parser = seconds)]
    tolerance: Duration,
}

/// Waits for a worker and judges it.
pub fn run(options: &Options, output: &Output) -> Result<Report, CliError> {
    actix_web::rt::System::new().block_on(async {
        let judge = Judge::listen(options.bind, options.public_url.as_ref())
            .await
            .map_err(|source| CliError::io(options.bind.to_string(), source))?;
        remark(&format!(
            "start the worker with PLATFORM_URL={} WORKER_KEY={}",
            judge.url(),
            judge.enrollment_key().expose()
        ));
        let pace = Pace {
            connect_within: options.connect_within,
            answer_within: options.answer_within,
            train_within: options.train_within,
            slow: options.timing,
            timings: Timings {
                heartbeat_interval: options.heartbeat_interval,
                metrics_interval: options.metrics_interval,
                reconnect_delay: options.reconnect_delay,
                longest_reconnect_delay: options.longest_reconnect_delay,
                tolerance: options.tolerance,
            },
        };
        let report = judge.judge(&options.model, &pace).await;
        report
            .findings
            .iter()
            .for_each(|finding| show(finding, output));
        Ok(report)
    })
}
