//! `trainyard jobs`: training jobs.

pub mod download;
mod export;
mod progress;
mod show;
pub mod submit;
pub mod watch;

use clap::{Subcommand, ValueEnum};
use serde_json::{Value, json};
use std::process::ExitCode;

use super::client::Platform;
use super::error::CliError;
use super::output::{Output, cell, figure, items, printable, table, time};

/// Commands on jobs.
#[derive(Subcommand)]
pub enum Command {
    /// Make a job.
    Submit(submit::Options),
    /// List the jobs.
    List {
        /// Only jobs that stand so.
        #[arg(long, value_enum)]
        status: Option<Status>,
    },
    /// Show one job with its checkpoints and files.
    Show {
        /// The job's number.
        id: u64,
    },
    /// Follow a job live until it ends; the exit code is 0 only if it completed.
    Watch {
        /// The job's number.
        id: u64,
    },
    /// Print the job's log.
    Logs {
        /// The job's number.
        id: u64,
    },
    /// Stop a job; its worker saves a checkpoint first.
    Stop {
        /// The job's number.
        id: u64,
    },
    /// Go on with a failed or stopped job from its last checkpoint.
    Resume {
        /// The job's number.
        id: u64,
    },
    /// Delete a job with its checkpoints and all that it made.
    Delete {
        /// The job's number.
        id: u64,
    },
    /// Fetch what a job made.
    Download(download::Options),
    /// Have what a job made written in another form: merged weights, or GGUF for llama.cpp.
    Export(export::Options),
    /// List a job's exports and how they stand.
    Exports {
        /// The job's number.
        id: u64,
    },
    /// Cancel an export, or delete the files of one that has ended.
    DeleteExport {
        /// The job's number.
        id: u64,
        /// The export's number, as `jobs exports` shows it.
        export: u64,
    },
}

/// Where a job stands.
#[derive(Clone, Copy, ValueEnum)]
pub enum Status {
    /// Waits for a worker.
    Queued,
    /// Sent to a worker.
    Assigned,
    /// Trains.
    Running,
    /// Is being stopped.
    Stopping,
    /// Ended with a result.
    Completed,
    /// Ended without one.
    Failed,
    /// Ended by request.
    Stopped,
}

/// Runs a command on jobs.
pub async fn run(
    command: Command,
    platform: &Platform,
    output: &Output,
) -> Result<ExitCode, CliError> {
    match command {
        Command::Submit(options) => return submit::run(&options, platform, output).await,
        Command::Watch { id } => return watch::run(id, platform, output).await,
        Command::Export(options) => return export::run(&options, platform, output).await,
        Command::List { status } => {
            let query: Vec<_> = status
                .map(|status| ("status", status.word().to_owned()))
                .into_iter()
                .collect();
            output.result(
                &platform.all(&["api", "jobs"], &query).await?,
                list_in_words,
            )?;
        }
        Command::Show { id } => {
            let job = platform.get(&["api", "jobs", &id.to_string()], &[]).await?;
            output.result(&job, show::in_words)?;
        }
        Command::Logs { id } => {
            let log = platform
                .all(&["api", "jobs", &id.to_string(), "logs"], &[])
                .await?;
            print_log(&log, output)?;
        }
        Command::Stop { id } => {
            let job = platform
                .post(&["api", "jobs", &id.to_string(), "stop"], &json!({}))
                .await?;
            output.result(&job, |job| format!("job {id} is {}", cell(job, "/status")))?;
        }
        Command::Resume { id } => {
            let job = platform
                .post(&["api", "jobs", &id.to_string(), "resume"], &json!({}))
                .await?;
            output.result(&job, |job| {
                let mut words = format!(
                    "job {id} is {}, attempt {}",
                    cell(job, "/status"),
                    cell(job, "/attempt")
                );
                if let Some(why) = job["begins_anew_because"].as_str() {
                    words.push_str(&format!("; it begins anew: {why}"));
                }
                words
            })?;
        }
        Command::Delete { id } => {
            platform.delete(&["api", "jobs", &id.to_string()]).await?;
            output.result(&json!({"id": id, "deleted": true}), |_| {
                format!("job {id} is deleted")
            })?;
        }
        Command::Exports { id } => export::list(id, platform, output).await?,
        Command::DeleteExport { id, export } => {
            export::delete(id, export, platform, output).await?;
        }
        Command::Download(options) => download::run(&options, platform, output).await?,
    }
    Ok(ExitCode::SUCCESS)
}

impl Status {
    const fn word(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Assigned => "assigned",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
        }
    }
}

fn print_log(log: &Value, output: &Output) -> Result<(), CliError> {
    for line in items(log) {
        output.result(line, |line| {
            let text = line["line"].as_str().map(printable).unwrap_or_default();
            format!("{} {:<5} {text}", time(line, "/at"), cell(line, "/level"))
        })?;
    }
    Ok(())
}

fn list_in_words(list: &Value) -> String {
    let row = |job: &Value| {
        let step = format!(
            "{}/{}",
            cell(job, "/progress/step"),
            cell(job, "/progress/total_steps")
        );
        vec![
            cell(job, "/id"),
            cell(job, "/name"),
            cell(job, "/base_model/huggingface_id"),
            cell(job, "/status"),
            step.replace("-/-", "-"),
            figure(job, "/progress/loss"),
            cell(job, "/worker_id"),
            time(job, "/created_at"),
        ]
    };
    let rows: Vec<_> = items(list).iter().map(row).collect();
    table(
        &[
            "ID", "NAME", "MODEL", "STATUS", "STEP", "LOSS", "WORKER", "CREATED",
        ],
        &rows,
    )
}
