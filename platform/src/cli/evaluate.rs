//! `trainyard evaluate`: has a model measured on a data set, and waits for the figures; `trainyard evaluations`: looks
//! at those that there are.

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::process::ExitCode;

use super::chat::Model;
use super::client::Platform;
use super::error::CliError;
use super::output::{Output, cell, figure, items, table, time};
use super::task::{Task, exit_code};

/// Options of `evaluate`.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    model: Model,
    /// The data set's number, as `datasets list` shows it.
    #[arg(long, value_name = "ID")]
    dataset: u64,
    /// What to measure: perplexity, loss, token_accuracy; all of them when left out.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    metrics: Vec<String>,
    /// Sequences at a time.
    #[arg(long, value_name = "COUNT")]
    batch_size: Option<u32>,
    /// Longest sequence, in tokens.
    #[arg(long, value_name = "TOKENS")]
    max_length: Option<u32>,
    /// Only submit it.
    #[arg(long)]
    no_wait: bool,
}

/// Commands on evaluations that were submitted.
#[derive(Subcommand)]
pub enum Command {
    /// List the evaluations.
    List,
    /// Show one evaluation with its figures.
    Show {
        /// The evaluation's number.
        id: u64,
    },
    /// Follow an evaluation to its end; the exit code is 0 only if it completed.
    Watch {
        /// The evaluation's number.
        id: u64,
    },
    /// Cancel an evaluation.
    Cancel {
        /// The evaluation's number.
        id: u64,
    },
}

/// Runs a command on evaluations.
pub async fn look(
    command: Command,
    platform: &Platform,
    output: &Output,
) -> Result<ExitCode, CliError> {
    match command {
        Command::List => {
            let list = platform.all(&["api", "evaluations"], &[]).await?;
            output.result(&list, list_in_words)?;
        }
        Command::Show { id } => {
            let path = ["api", "evaluations", &id.to_string()];
            let evaluation = platform.get(&path, &[]).await?;
            output.result(&evaluation, in_words)?;
        }
        Command::Watch { id } => return follow(&id.to_string(), platform, output).await,
        Command::Cancel { id } => {
            platform
                .delete(&["api", "evaluations", &id.to_string()])
                .await?;
            output.result(&json!({"id": id, "cancelled": true}), |_| {
                format!("evaluation {id} is cancelled")
            })?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Submits the evaluation, and follows it to its end.
pub async fn run(
    options: &Options,
    platform: &Platform,
    output: &Output,
) -> Result<ExitCode, CliError> {
    let made = platform
        .post(&["api", "evaluations"], &body(options))
        .await?;
    let id = cell(&made, "/id");
    if options.no_wait {
        output.result(&made, |made| {
            format!("evaluation {id} is {}", cell(made, "/status"))
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    follow(&id, platform, output).await
}

async fn follow(id: &str, platform: &Platform, output: &Output) -> Result<ExitCode, CliError> {
    let task = Task {
        name: &format!("evaluation {id}"),
        path: &["api", "evaluations", id],
        unit: "examples",
    };
    let ended = task.follow(platform, output).await?;
    output.result(&ended, in_words)?;
    Ok(exit_code(&ended))
}

fn body(options: &Options) -> Value {
    let mut body = options.model.fields();
    body.insert("dataset_id".to_owned(), json!(options.dataset));
    let optional = [
        (
            "metrics",
            (!options.metrics.is_empty()).then(|| json!(options.metrics)),
        ),
        ("batch_size", options.batch_size.map(|size| json!(size))),
        ("max_length", options.max_length.map(|length| json!(length))),
    ];
    for (field, value) in optional {
        if let Some(value) = value {
            body.insert(field.to_owned(), value);
        }
    }
    Value::Object(body)
}

fn list_in_words(list: &Value) -> String {
    let row = |evaluation: &Value| {
        vec![
            cell(evaluation, "/id"),
            cell(evaluation, "/model"),
            cell(evaluation, "/dataset_id"),
            cell(evaluation, "/status"),
            figure(evaluation, "/result/perplexity"),
            figure(evaluation, "/result/loss"),
            time(evaluation, "/created_at"),
        ]
    };
    let rows: Vec<_> = items(list).iter().map(row).collect();
    table(
        &[
            "ID",
            "MODEL",
            "DATA SET",
            "STATUS",
            "PERPLEXITY",
            "LOSS",
            "CREATED",
        ],
        &rows,
    )
}

fn in_words(evaluation: &Value) -> String {
    let head = format!(
        "evaluation {} of {} on data set {} is {}",
        cell(evaluation, "/id"),
        cell(evaluation, "/model"),
        cell(evaluation, "/dataset_id"),
        cell(evaluation, "/status")
    );
    let mut lines = vec![head];
    for name in ["perplexity", "loss", "token_accuracy", "tokens"] {
        let pointer = format!("/result/{name}");
        if evaluation
            .pointer(&pointer)
            .is_some_and(|value| !value.is_null())
        {
            let value = match name {
                "tokens" => cell(evaluation, &pointer),
                _ => figure(evaluation, &pointer),
            };
            lines.push(format!("{name:>15}  {value}"));
        }
    }
    if !evaluation["error"].is_null() {
        lines.push(format!("{:>15}  {}", "error", cell(evaluation, "/error")));
    }
    lines.join("\n")
}
