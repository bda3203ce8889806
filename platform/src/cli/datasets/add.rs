//! `trainyard datasets add`: streams a file to the platform.

use clap::Args;
use futures_util::TryStreamExt;
use indicatif::{ProgressBar, ProgressStyle};
use reqwest::{Body, Method, header};
use serde_json::Value;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use tokio::fs::File;
use tokio_util::io::ReaderStream;
use trainyard_shared::dataset::DatasetFormat;

use super::check::problems_in_words;
use super::shapes_in_words;
use crate::cli::client::Platform;
use crate::cli::error::CliError;
use crate::cli::output::{Output, bytes, cell};

/// Bytes that are read and sent at a time.
const CHUNK_BYTES: usize = 256 * 1024;

/// Options of `datasets add`.
#[derive(Args)]
pub struct Options {
    /// The file.
    file: PathBuf,
    /// The data set's name; else the file's.
    #[arg(long)]
    name: Option<String>,
    /// The file's format: jsonl, json, csv, tsv, parquet or text; else the end of its name tells it, else it is jsonl.
    #[arg(long)]
    format: Option<DatasetFormat>,
    /// Take the data set although it has up to so many bad rows; they are skipped in training.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    max_bad_rows: u64,
}

/// Uploads the file and prints the platform's report.
pub async fn run(options: &Options, platform: &Platform, output: &Output) -> Result<(), CliError> {
    let failed = |source| CliError::io(options.file.display().to_string(), source);
    let file = File::open(&options.file).await.map_err(failed)?;
    let metadata = file.metadata().await.map_err(failed)?;
    if !metadata.is_file() {
        return Err(CliError::Input(format!(
            "{} is no file",
            options.file.display()
        )));
    }
    let file_name = options
        .file
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    let name = options.name.clone().or(file_name).unwrap_or_default();
    let format = super::format_of(&options.file, options.format);
    let query = [
        ("name", name),
        ("format", format.to_string()),
        ("max_bad_rows", options.max_bad_rows.to_string()),
    ];

    let bar = upload_bar(metadata.len(), output);
    let sent = bar.clone();
    let chunks = ReaderStream::with_capacity(file, CHUNK_BYTES)
        .inspect_ok(move |chunk| sent.inc(chunk.len() as u64));
    let request = platform
        .request(Method::POST, &["api", "datasets"])?
        .query(&query)
        .header(header::CONTENT_TYPE, "application/octet-stream")
        .header(header::CONTENT_LENGTH, metadata.len())
        .body(Body::wrap_stream(chunks));
    let made = platform.json(request).await;
    bar.finish_and_clear();
    output.result(&made?, in_words)
}

/// A data set in words.
pub fn in_words(dataset: &Value) -> String {
    let size = dataset["bytes"]
        .as_u64()
        .map_or_else(|| "-".to_owned(), bytes);
    let mut words = format!(
        "data set {}: {} rows ({}), {size}",
        cell(dataset, "/id"),
        cell(dataset, "/rows"),
        shapes_in_words(&dataset["row_shapes"])
    );
    let problems = dataset["problems"].as_array().map(Vec::as_slice);
    words.push_str(&problems_in_words(problems.unwrap_or_default()));
    if dataset["rows"].is_u64() && dataset["rows"] == dataset["untrainable_rows"] {
        words.push_str(
            "\nthere is nothing to train on: jobs on it will fail, but for those with train_on=all where it holds chats",
        );
    }
    words
}

fn upload_bar(length: u64, output: &Output) -> ProgressBar {
    if output.is_json() || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}");
    ProgressBar::new(length).with_style(style.expect("the template is fixed and valid"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_data_set_with_nothing_to_train_on_is_told_so_when_it_is_added() {
        let mut made = json!({"id": 4, "rows": 2, "untrainable_rows": 2, "row_shapes": {"messages": 2}, "bytes": 64});
        let told = in_words(&made);
        assert!(told.contains("there is nothing to train on"), "{told}");
        made["untrainable_rows"] = json!(1);
        let told = in_words(&made);
        assert!(!told.contains("nothing to train on"), "{told}");
    }
}
