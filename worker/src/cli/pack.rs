//! `trainyard-worker pack`: a data set as token shards for volunteers.

use std::path::{Path, PathBuf};

use chrono::Local;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use trainyard_shared::coordinator::Mode;

use super::error::CliError;
use super::output::{Output, remark};
use super::signals::stop_when_asked_to_end;
use crate::config::{FormatArgs, ModelArgs};
use crate::engine::EngineError;
use crate::engine::data::Packing;
use crate::engine::weights::ModelFiles;
use crate::tasks::StopSignal;

/// The file that says what a folder of shards holds.
const MANIFEST: &str = "shards.json";

/// Options of `pack`.
#[derive(Args)]
pub struct Options {
    /// The data set, in any form that training takes
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    #[command(flatten)]
    format: FormatArgs,
    /// The model whose tokenizer and chat template are used: a folder, a .gguf file or a hub name
    #[arg(long, value_name = "MODEL")]
    model: String,
    /// How many shards
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    shards: u32,
    /// What is learned
    #[arg(
        long = "mode",
        visible_alias = "mod",
        value_enum,
        default_value = "cpt"
    )]
    mode: PackMode,
    /// So many bad rows are skipped
    #[arg(long, default_value_t = 0, value_name = "N")]
    max_bad_rows: u64,
    /// Where the shards and shards.json go; made if need be
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
    /// Replace the shards that are in that folder
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    models: ModelArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PackMode {
    /// Every token: text, or rows as text, one behind the other
    Cpt,
    /// The assistant's tokens of chats
    Sft,
}

/// Packs, and prints what the shards hold.
pub fn run(options: Options, output: &Output) -> Result<(), CliError> {
    make_way(&options.output, options.overwrite)?;
    let settings = options.models.model_settings()?;
    let path = super::model::find(&options.model, Path::new(""), settings)?;
    let files = ModelFiles::open(&path)?;
    let stop = StopSignal::default();
    stop_when_asked_to_end(&stop)?;
    let packing = Packing {
        dataset: &options.format.data_file(&options.data),
        max_bad_rows: options.max_bad_rows,
        chat: &files.chat(Local::now())?,
        vocab_size: files.config.vocab_size,
        mode: match options.mode {
            PackMode::Cpt => Mode::Cpt,
            PackMode::Sft => Mode::Sft,
        },
        shards: options.shards,
    };
    let packed = packing.write(&options.output, &|| stop.is_set());
    if packed.is_err() {
        // Goes only where nothing is in it.
        let _ = std::fs::remove_dir(&options.output);
    }
    let packed = match packed {
        Err(EngineError::Stopped) => return Err(CliError::Stopped("stopped".to_owned())),
        packed => packed?,
    };
    for (count, what) in [
        (packed.dataset.skipped_rows, "bad rows are skipped"),
        (
            packed.dataset.dropped_rows,
            "rows with nothing to learn are dropped",
        ),
    ] {
        if count > 0 {
            remark(&format!("{count} {what}"));
        }
    }
    let in_words = format!(
        "{} tokens, {} of them learned, of {} rows in {}: {}",
        packed.tokens,
        packed.learned_tokens,
        packed.dataset.examples,
        match packed.shards.len() {
            1 => "one shard".to_owned(),
            count => format!("{count} shards"),
        },
        options.output.display()
    );
    let mut result = serde_json::to_value(&packed).expect("plain fields are written as JSON");
    if let Value::Object(fields) = &mut result {
        fields.insert("folder".to_owned(), json!(options.output));
    }
    output.result(&result, &in_words)
}

/// Shards of another data set must not lie beside the new ones: they go where that is meant.
fn make_way(folder: &Path, overwrite: bool) -> Result<(), CliError> {
    let is_shard = |name: &str| {
        name == MANIFEST || (name.starts_with("shard-") && name.ends_with(".safetensors"))
    };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if !is_shard(&entry.file_name().to_string_lossy()) {
            continue;
        }
        if !overwrite {
            return Err(CliError::Input(format!(
                "{} holds shards already: name another folder, or say --overwrite",
                folder.display()
            )));
        }
        let path = entry.path();
        std::fs::remove_file(&path)
            .map_err(|error| CliError::io(format!("cannot remove {}", path.display()), error))?;
    }
    Ok(())
}
