//! `trainyard-worker export`: a model or an adapter in another form.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use trainyard_shared::{ExportFormat, WeightType};

use super::error::CliError;
use super::output::Output;
use super::signals::stop_when_asked_to_end;
use crate::config::ModelArgs;
use crate::engine::EngineError;
use crate::engine::adapter;
use crate::engine::export::{Existing, Export, Watch, export, files_of};
use crate::engine::weights::ModelFiles;
use crate::tasks::{StopSignal, engine_format};

/// Options of `export`.
#[derive(Args)]
pub struct Options {
    /// The base model: a folder, a .gguf file or a hub name
    #[arg(long, value_name = "MODEL")]
    model: String,
    /// Folder of a LoRA adapter in PEFT's form; without one the model itself is converted
    #[arg(long, value_name = "DIR", required_if_eq("format", "gguf_lora"))]
    adapter: Option<PathBuf>,
    /// What is written: merged_safetensors (a folder that transformers loads) or gguf_merged (one file for llama.cpp),
    /// the adapter merged into the weights; gguf_lora (the adapter alone, which llama.cpp adds to its base model)
    #[arg(long, value_parser = format_named, value_name = "FORMAT")]
    format: ExportFormat,
    /// Type of the weights: f32, f16, bf16 or, for gguf_merged, q8_0 [default: the base model's for
    /// merged_safetensors, f16 for gguf_merged, f32 for gguf_lora]
    #[arg(long = "type", visible_alias = "dtype", value_parser = weights_named, value_name = "TYPE")]
    weights: Option<WeightType>,
    /// The folder (merged_safetensors) or file (gguf_merged, gguf_lora)
    #[arg(long, value_name = "PATH")]
    output: PathBuf,
    /// Replace an export that stands there
    #[arg(long)]
    overwrite: bool,
    /// Weights are spread over files of at most so many MB (merged_safetensors)
    #[arg(long, default_value_t = 5000, value_name = "MB", value_parser = clap::value_parser!(u64).range(1..))]
    max_shard_size: u64,
    #[command(flatten)]
    models: ModelArgs,
}

/// Writes the export and prints what it is made of.
pub fn run(options: Options, output: &Output) -> Result<(), CliError> {
    let max_shard_bytes = options.max_shard_size.saturating_mul(1_000_000);
    let format =
        engine_format(options.format, options.weights, max_shard_bytes).map_err(CliError::Input)?;
    let path = super::model::find(
        &options.model,
        Path::new(""),
        options.models.model_settings()?,
    )?;
    let base = ModelFiles::open(&path)?;
    let adapter = options
        .adapter
        .as_deref()
        .map(|folder| adapter::load_all(folder, &base.config))
        .transpose()?;
    let stop = StopSignal::default();
    stop_when_asked_to_end(&stop)?;
    let bar = bar(output);
    let written = export(
        &Export {
            base: &base,
            adapter: adapter.as_ref(),
            name: &name(&options),
            format,
            output: &options.output,
            existing: match options.overwrite {
                true => Existing::Replace,
                false => Existing::Keep,
            },
        },
        &mut Watch {
            is_stopped: &|| stop.is_set(),
            tell: &mut |done, total| {
                bar.set_length(total);
                bar.set_position(done);
            },
        },
    );
    bar.finish_and_clear();
    match written {
        Err(EngineError::Stopped) => Err(CliError::Stopped("stopped; nothing was written".into())),
        other => Ok(other?),
    }?;
    show(&options, output)
}

fn format_named(word: &str) -> Result<ExportFormat, String> {
    ExportFormat::from_word(word).ok_or_else(|| {
        let words: Vec<_> = ExportFormat::ALL
            .iter()
            .map(|format| format.as_str())
            .collect();
        format!("it is none of {}", words.join(", "))
    })
}

fn weights_named(word: &str) -> Result<WeightType, String> {
    WeightType::from_word(&word.to_ascii_lowercase()).ok_or_else(|| {
        let words: Vec<_> = WeightType::ALL
            .iter()
            .map(|weights| weights.as_str())
            .collect();
        format!("it is none of {}", words.join(", "))
    })
}

/// What a GGUF file calls itself: the model's last name, and the adapter's where there is one.
fn name(options: &Options) -> String {
    let last = |path: &Path| {
        path.file_stem()
            .map(|name| name.to_string_lossy().into_owned())
    };
    let names = [
        last(Path::new(&options.model)),
        options.adapter.as_deref().and_then(last),
    ];
    names.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// A bar for a person at a terminal, else nothing.
fn bar(output: &Output) -> ProgressBar {
    if output.is_json() || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {percent} % {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
}

fn show(options: &Options, output: &Output) -> Result<(), CliError> {
    let files = files_of(&options.output)?;
    let bytes: u64 = files.iter().map(|(_, bytes)| bytes).sum();
    let result = json!({
        "format": options.format.to_string(),
        "output": options.output,
        "size_bytes": bytes,
        "files": files.iter().map(|(path, bytes)| json!({"path": path, "size_bytes": bytes})).collect::<Vec<_>>(),
    });
    let in_words = format!("{}: {:.1} MB", options.output.display(), bytes as f64 / 1e6);
    output.result(&result, &in_words)
}
