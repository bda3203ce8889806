//! `trainyard datasets`: the data to train on.

pub mod add;
pub mod check;

use clap::Subcommand;
use reqwest::Method;
use serde_json::{Value, json};
use std::path::Path;
use trainyard_shared::dataset::DatasetFormat;

use super::client::Platform;
use super::error::CliError;
use super::output::{Output, bytes, cell, items, table, time};

/// Commands on data sets.
#[derive(Subcommand)]
pub enum Command {
    /// Upload a file; the platform checks every row of it.
    Add(add::Options),
    /// List the data sets.
    List,
    /// Check a file's rows here, without a platform.
    Check(check::Options),
    /// Show one data set.
    Show {
        /// The data set's number, as `datasets list` shows it.
        id: u64,
    },
    /// Delete a data set.
    Delete {
        /// The data set's number, as `datasets list` shows it.
        id: u64,
        /// Also where stopped or failed jobs could not be resumed without it.
        #[arg(long)]
        force: bool,
    },
}

/// Runs a command on data sets at the platform.
pub async fn run(command: Command, platform: &Platform, output: &Output) -> Result<(), CliError> {
    match command {
        Command::Add(options) => add::run(&options, platform, output).await,
        Command::List => output.result(
            &platform.all(&["api", "datasets"], &[]).await?,
            list_in_words,
        ),
        Command::Check(options) => check::run(&options, output).map(|_| ()),
        Command::Show { id } => {
            let dataset = platform
                .get(&["api", "datasets", &id.to_string()], &[])
                .await?;
            output.result(&dataset, add::in_words)
        }
        Command::Delete { id, force } => {
            let request =
                platform.request(Method::DELETE, &["api", "datasets", &id.to_string()])?;
            let request = if force {
                request.query(&[("force", "true")])
            } else {
                request
            };
            platform.json(request).await?;
            output.result(&json!({ "id": id, "deleted": true }), |_| {
                format!("data set {id} is deleted")
            })
        }
    }
}

fn list_in_words(list: &Value) -> String {
    let row = |dataset: &Value| {
        let size = dataset["bytes"]
            .as_u64()
            .map_or_else(|| "-".to_owned(), bytes);
        vec![
            cell(dataset, "/id"),
            cell(dataset, "/name"),
            cell(dataset, "/rows"),
            size,
            shapes_in_words(&dataset["row_shapes"]),
            time(dataset, "/created_at"),
        ]
    };
    let rows: Vec<_> = items(list).iter().map(row).collect();
    table(&["ID", "NAME", "ROWS", "SIZE", "SHAPES", "ADDED"], &rows)
}

/// The format of a file: as it was said, else by the end of its name, else JSON lines.
fn format_of(file: &Path, said: Option<DatasetFormat>) -> DatasetFormat {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    said.or_else(|| DatasetFormat::of_file_name(&name))
        .unwrap_or_default()
}

/// How many rows there are of each shape, as `120 messages, 3 text`.
fn shapes_in_words(shapes: &Value) -> String {
    let shapes = shapes.as_object().into_iter().flatten();
    let words: Vec<_> = shapes
        .map(|(shape, count)| format!("{count} {shape}"))
        .collect();
    if words.is_empty() {
        "-".to_owned()
    } else {
        words.join(", ")
    }
}
