//! `trainyard jobs export`: has a job's result written in another form, and waits for the files.

use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use trainyard_shared::ExportFormat;

use super::download::{Place, export_path, fetch_export};
use crate::cli::client::Platform;
use crate::cli::error::CliError;
use crate::cli::output::{Output, bytes, cell, items, table, time};
use crate::cli::task::{Task, exit_code};

/// Options of `jobs export`.
#[derive(Args)]
pub struct Options {
    /// The job's number.
    id: u64,
    /// What is written: merged_safetensors (a folder that transformers loads) or gguf_merged (one file for
    /// llama.cpp), the adapter merged into the weights; gguf_lora (the adapter alone, which llama.cpp adds to its
    /// base model).
    #[arg(long, value_name = "FORMAT", value_parser = format_named)]
    format: ExportFormat,
    /// Type of the weights: f32, f16, bf16 or, for gguf_merged, q8_0; else the base model's for merged_safetensors,
    /// f16 for gguf_merged, f32 for gguf_lora.
    #[arg(long = "type", visible_alias = "dtype", value_name = "TYPE")]
    weights: Option<String>,
    /// Fetch the files into this folder once they are there.
    #[arg(long, value_name = "FOLDER", conflicts_with = "no_wait")]
    output: Option<PathBuf>,
    /// Replace files in that folder that are there and differ.
    #[arg(long, requires = "output")]
    overwrite: bool,
    /// Only ask for it.
    #[arg(long)]
    no_wait: bool,
}

fn format_named(word: &str) -> Result<ExportFormat, String> {
    ExportFormat::from_word(word).ok_or_else(|| {
        let words = ExportFormat::ALL.iter().map(|format| format.as_str());
        format!("it is none of {}", words.collect::<Vec<_>>().join(", "))
    })
}

/// Asks for the export, follows it to its end, and fetches its files where a folder is named.
pub async fn run(
    options: &Options,
    platform: &Platform,
    output: &Output,
) -> Result<ExitCode, CliError> {
    let job = options.id.to_string();
    let body = json!({"format": options.format, "type": options.weights});
    let made = platform
        .post(&["api", "jobs", &job, "export"], &body)
        .await?;
    let export = cell(&made, "/id");
    if options.no_wait {
        output.result(&made, |made| {
            format!("export {export} is {}", cell(made, "/status"))
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let task = Task {
        name: &format!("export {export}"),
        path: &export_path(&job, &export),
        unit: "weights",
    };
    let ended = task.follow(platform, output).await?;
    let exit_code = exit_code(&ended);
    output.result(&ended, in_words)?;
    if let (Some(folder), Some(export)) = (&options.output, ended["id"].as_u64())
        && exit_code == ExitCode::SUCCESS
    {
        let place = Place {
            output: Some(folder.clone()),
            overwrite: options.overwrite,
        };
        fetch_export(options.id, export, &place, platform, output).await?;
    }
    Ok(exit_code)
}

/// Lists the exports of a job.
pub async fn list(job: u64, platform: &Platform, output: &Output) -> Result<(), CliError> {
    let path = ["api", "jobs", &job.to_string(), "exports"];
    output.result(&platform.all(&path, &[]).await?, list_in_words)
}

/// Cancels an export that is under way; deletes one that has ended.
pub async fn delete(
    job: u64,
    export: u64,
    platform: &Platform,
    output: &Output,
) -> Result<(), CliError> {
    let (of, number) = (job.to_string(), export.to_string());
    let path = export_path(&of, &number);
    let before = platform.get(&path, &[]).await?;
    platform.delete(&path).await?;
    let deleted = !before["ended_at"].is_null();
    let word = if deleted { "deleted" } else { "cancelled" };
    output.result(&json!({"id": export, "deleted": deleted}), |_| {
        format!("export {export} of job {job} is {word}")
    })
}

fn list_in_words(list: &Value) -> String {
    let row = |export: &Value| {
        let files = export["files"].as_array().into_iter().flatten();
        let size: u64 = files.filter_map(|file| file["size_bytes"].as_u64()).sum();
        vec![
            cell(export, "/id"),
            cell(export, "/format"),
            cell(export, "/status"),
            if size > 0 {
                bytes(size)
            } else {
                "-".to_owned()
            },
            time(export, "/created_at"),
            cell(export, "/error"),
        ]
    };
    let rows: Vec<_> = items(list).iter().map(row).collect();
    table(
        &["ID", "FORMAT", "STATUS", "SIZE", "CREATED", "ERROR"],
        &rows,
    )
}

fn in_words(export: &Value) -> String {
    let head = format!(
        "export {} of job {} as {} is {}",
        cell(export, "/id"),
        cell(export, "/job_id"),
        cell(export, "/format"),
        cell(export, "/status")
    );
    let mut lines = vec![head];
    for file in export["files"].as_array().map_or(&[][..], Vec::as_slice) {
        let size = file["size_bytes"].as_u64().unwrap_or(0);
        lines.push(format!("  {}  {}", cell(file, "/path"), bytes(size)));
    }
    if !export["error"].is_null() {
        lines.push(format!("  error  {}", cell(export, "/error")));
    }
    lines.join("\n")
}
