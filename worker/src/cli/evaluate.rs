//! `trainyard-worker evaluate`: how well a model predicts data, with or without an adapter.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use chrono::Local;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use trainyard_shared::training::TrainOn;

use super::error::CliError;
use super::output::{Output, remark};
use super::signals::stop_when_asked_to_end;
use crate::config::{FormatArgs, ModelArgs};
use crate::engine::adapter;
use crate::engine::data::{RowEncoder, read_examples};
use crate::engine::evaluate::{Evaluated, Evaluation, evaluate};
use crate::engine::model::{Holding, Llama};
use crate::engine::weights::ModelFiles;
use crate::tasks::StopSignal;

/// Options of `evaluate`.
#[derive(Args)]
pub struct Options {
    /// The base model: a folder, a .gguf file or a hub name
    #[arg(long, value_name = "MODEL")]
    model: String,
    /// Folder of a LoRA adapter in PEFT's form
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
    /// The data, in any form that training takes
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    #[command(flatten)]
    format: FormatArgs,
    /// Rows that are computed at once; the figures are the same whatever it is
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: u32,
    /// Longest row in tokens; longer ones are cut
    #[arg(long, default_value_t = 1024, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    max_length: u32,
    /// So many bad rows are skipped
    #[arg(long, default_value_t = 0, value_name = "N")]
    max_bad_rows: u64,
    #[command(flatten)]
    models: ModelArgs,
}

/// Measures and prints the figures.
pub fn run(options: Options, output: &Output) -> Result<(), CliError> {
    let settings = options.models.model_settings()?;
    let token_cache = options.models.token_cache()?;
    let data = options.format.data_file(&options.data);
    let path = super::model::find(&options.model, Path::new(""), settings)?;
    let files = ModelFiles::open(&path)?;
    let stop = StopSignal::default();
    stop_when_asked_to_end(&stop)?;
    let is_stopped = || stop.is_set();
    let chat = files.chat(Local::now())?;
    let encoder = RowEncoder {
        chat: &chat,
        train_on: TrainOn::Auto,
        max_length: (options.max_length as usize).min(files.config.max_position_embeddings),
        vocab_size: files.config.vocab_size,
    };
    let read = read_examples(
        &data,
        &encoder,
        options.max_bad_rows,
        &token_cache,
        &is_stopped,
    );
    if is_stopped() {
        return Err(stopped(0));
    }
    let (examples, report) = read?;
    for (count, what) in [
        (report.skipped_rows, "bad rows are skipped"),
        (
            report.dropped_rows,
            "rows with nothing to predict are dropped",
        ),
        (report.truncated_rows, "rows are cut to the longest length"),
    ] {
        if count > 0 {
            remark(&format!("{count} {what}"));
        }
    }
    let adapter = options
        .adapter
        .as_deref()
        .map(|folder| adapter::load_all(folder, &files.config))
        .transpose()?;
    let mut model = Llama::load_as(&files, Holding::AsStored)?;
    if let Some(adapter) = &adapter {
        adapter.whole.put_into(&mut model)?;
    }
    files.release_memory();
    let bar = bar(examples.len() as u64, output);
    let mut done = 0;
    let evaluated = evaluate(
        Arc::new(model),
        adapter.as_ref().map(|saved| &saved.pairs),
        &examples,
        options.batch_size as usize,
        &is_stopped,
        &mut |rows| {
            done = rows;
            bar.set_position(rows as u64);
        },
    );
    bar.finish_and_clear();
    match evaluated? {
        Evaluated::Completed(figures) => show(&figures, report.examples, output),
        Evaluated::Stopped => Err(stopped(done)),
    }
}

/// A bar for a person at a terminal, else nothing.
fn bar(rows: u64, output: &Output) -> ProgressBar {
    if output.is_json() || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} rows {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(rows).with_style(style)
}

fn show(figures: &Evaluation, rows: u64, output: &Output) -> Result<(), CliError> {
    let Evaluation {
        loss,
        perplexity,
        token_accuracy,
        tokens,
    } = *figures;
    let in_words = format!(
        "perplexity {perplexity:.4}, loss {loss:.4}, token accuracy {:.2} %, over {tokens} tokens of {rows} rows",
        100.0 * token_accuracy
    );
    let result = json!({
        "perplexity": perplexity,
        "loss": loss,
        "token_accuracy": token_accuracy,
        "tokens": tokens,
        "rows": rows,
    });
    output.result(&result, &in_words)
}

fn stopped(rows: usize) -> CliError {
    CliError::Stopped(format!("stopped after {rows} rows"))
}
