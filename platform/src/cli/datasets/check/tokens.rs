//! The part of `datasets check` that needs a tokenizer: what a job would see of the data.

use std::path::{Path, PathBuf};

use chrono::Local;
use clap::Args;
use serde_json::{Map, Value, json};
use trainyard_platform::config::{Config, Sources};
use trainyard_shared::dataset::DatasetFormat;
use trainyard_shared::training::TrainingConfig;
use trainyard_worker::config::ModelSettings;
use trainyard_worker::engine::EngineError;
use trainyard_worker::engine::data::{DataFile, TokenFigures, measure};
use trainyard_worker::engine::weights::{ModelFiles, chat_of_folder};
use trainyard_worker::tasks::base_model::ModelSource;
use trainyard_worker::tasks::transfers::{Http, RetryPolicy};

use crate::cli::block_on;
use crate::cli::error::CliError;
use crate::cli::output::cell;

/// Options by which rows become tokens.
#[derive(Args, Default)]
pub(super) struct TokenOptions {
    /// Count tokens as a job on this model would: a folder, a .gguf file, or a name at the hub (looked for in
    /// MODELS_DIR, then in the hub's cache on this machine).
    #[arg(long, value_name = "MODEL", conflicts_with = "tokenizer")]
    model: Option<String>,
    /// Count tokens with this tokenizer: a folder with tokenizer.json, which needs no weights.
    #[arg(long, value_name = "DIR")]
    tokenizer: Option<PathBuf>,
    /// Longest row in tokens, as max_length of a job [default: 1024]
    #[arg(long, value_name = "TOKENS")]
    max_length: Option<u64>,
    /// What is learned, as train_on of a job: auto, assistant, completion or all [default: auto]
    #[arg(long, value_name = "PART")]
    train_on: Option<String>,
    /// Sequences in a batch, as batch_size of a job [default: 4]
    #[arg(long, value_name = "COUNT")]
    batch_size: Option<u64>,
    /// Batches in a step, as gradient_accumulation_steps of a job [default: 1]
    #[arg(long, value_name = "COUNT")]
    gradient_accumulation_steps: Option<u64>,
    /// One row a sequence, as packing = false of a job.
    #[arg(long)]
    no_packing: bool,
}

impl TokenOptions {
    /// The figures, where a model or tokenizer is given.
    pub(super) fn measure(
        &self,
        file: &Path,
        format: DatasetFormat,
    ) -> Result<Option<TokenFigures>, CliError> {
        let config = self.config()?;
        let refused = |error: EngineError| CliError::Input(error.to_string());
        let (chat, vocab_size) = match (&self.model, &self.tokenizer) {
            (Some(name), _) => {
                let model = ModelFiles::open(&found(name)?).map_err(refused)?;
                let chat = model.chat(Local::now()).map_err(refused)?;
                (chat, Some(model.config.vocab_size))
            }
            (None, Some(folder)) => (chat_of_folder(folder, Local::now()).map_err(refused)?, None),
            (None, None) => return Ok(None),
        };
        let data = DataFile {
            path: file.to_owned(),
            format,
            sha256: None,
        };
        // It is interrupted as every command is: by the signal.
        measure(&data, &chat, vocab_size, &config, &|| false)
            .map(Some)
            .map_err(refused)
    }

    fn config(&self) -> Result<TrainingConfig, CliError> {
        let mut fields = Map::new();
        for (name, value) in [
            ("max_length", self.max_length.map(Value::from)),
            ("train_on", self.train_on.clone().map(Value::from)),
            ("batch_size", self.batch_size.map(Value::from)),
            (
                "gradient_accumulation_steps",
                self.gradient_accumulation_steps.map(Value::from),
            ),
            ("packing", self.no_packing.then(|| json!(false))),
        ] {
            fields.extend(value.map(|value| (name.to_owned(), value)));
        }
        TrainingConfig::parse(&Value::Object(fields)).map_err(|problems| {
            let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
            CliError::Input(lines.join("\n"))
        })
    }
}

/// The files of a model: at that path or, by its name at the hub, on this machine.
fn found(name: &str) -> Result<PathBuf, CliError> {
    let path = PathBuf::from(name);
    if path.exists() {
        return Ok(path);
    }
    let config = Config::resolve(&Sources::from_environment())
        .map_err(|error| CliError::Input(error.to_string()))?;
    let local = ModelSettings {
        hub_offline: true,
        ..config.models
    };
    let source = Http::new(RetryPolicy::default())
        .map(|http| ModelSource::new(local, http))
        .map_err(|error| CliError::Input(error.to_string()))?;
    block_on(async {
        let found = source.find_description(name).await;
        found.map_err(|error| CliError::Input(error.to_string()))
    })
}

/// The figures for a person.
pub(super) fn in_words(figures: &Value) -> String {
    let count = |name: &str| figures[name].as_u64().unwrap_or(0);
    let percent = |name: &str| 100.0 * figures[name].as_f64().unwrap_or(0.0);
    let max_length = count("max_length");
    let mut words = String::from("\n");
    if let Some(lengths) = figures["lengths"].as_object() {
        let of = |name: &str| lengths[name].as_u64().unwrap_or(0);
        words += &format!(
            "\ntokens a row: min {}, median {}, p90 {}, p99 {}, max {}\n{}",
            of("min"),
            of("median"),
            of("p90"),
            of("p99"),
            of("max"),
            histogram(&lengths["histogram"])
        );
    }
    words += &format!(
        "\nlonger than max_length {max_length}, cut in training: {} rows, {} tokens",
        count("truncated_rows"),
        count("truncated_tokens")
    );
    if count("dropped_rows") > 0 {
        words += &format!(
            "\nwith nothing to learn, dropped in training: {}",
            count("dropped_rows")
        );
    }
    if count("unrenderable_rows") > 0 {
        words += &format!(
            "\nthe chat template or tokenizer refuses: {}",
            count("unrenderable_rows")
        );
        let problems = figures["problems"].as_array().map(Vec::as_slice);
        words += &super::problems_in_words(problems.unwrap_or_default());
    }
    words += &format!(
        "\nan epoch: {} tokens of {} rows, {} of them learned, {:.1} % masked",
        count("tokens"),
        cell(figures, "/examples"),
        count("trained_tokens"),
        percent("masked_share")
    );
    let kind = if figures["packing"].as_bool() == Some(true) {
        "packed"
    } else {
        "one row each"
    };
    words += &format!(
        "\nsequences ({kind}): {}, {:.1} % of max_length filled\nsteps an epoch: {}",
        count("sequences"),
        percent("packing_efficiency"),
        count("steps_per_epoch")
    );
    words
}

/// A bar for every class of lengths.
fn histogram(classes: &Value) -> String {
    const WIDTH: u64 = 40;
    let classes = classes.as_array().map(Vec::as_slice).unwrap_or_default();
    let rows = |class: &Value| class["rows"].as_u64().unwrap_or(0);
    let most = classes.iter().map(rows).max().unwrap_or(0).max(1);
    let line = |class: &Value| {
        let range = format!("{}-{}", cell(class, "/from"), cell(class, "/to"));
        let bar = "#".repeat((rows(class) * WIDTH).div_ceil(most) as usize);
        format!("  {range:>15} {:>9} {bar}", rows(class))
            .trim_end()
            .to_owned()
    };
    let lines: Vec<String> = classes.iter().map(line).collect();
    lines.join("\n")
}
