//! `trainyard jobs submit`: makes a job from flags and a config file.

use clap::Args;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::watch;
use crate::cli::client::Platform;
use crate::cli::error::CliError;
use crate::cli::output::{Output, cell};

/// Options of `jobs submit`.
#[derive(Args)]
pub struct Options {
    /// The data set's number, as `datasets list` shows it.
    #[arg(long, value_name = "ID")]
    dataset: u64,
    /// The base model's name at the Hugging Face hub, as HuggingFaceTB/SmolLM2-135M-Instruct.
    #[arg(long, value_name = "NAME")]
    model: String,
    /// A field of the training config, as epochs=1 or lora_r=8; wins over the file.
    #[arg(long = "set", value_name = "FIELD=VALUE", value_parser = field)]
    fields: Vec<(String, Value)>,
    /// TOML or JSON file with the training config.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The job's name.
    #[arg(long)]
    name: Option<String>,
    /// Only this worker may take it: the number that `workers list` shows.
    #[arg(long, value_name = "ID")]
    worker: Option<u64>,
    /// Jobs of higher priority are started first.
    #[arg(long)]
    priority: Option<i64>,
    /// Try again so many times when it fails.
    #[arg(long, value_name = "COUNT")]
    max_retries: Option<u64>,
    /// Follow the job until it ends; the exit code is 0 only if it completed.
    #[arg(long)]
    watch: bool,
}

/// Makes the job, and follows it where that was asked for.
pub async fn run(
    options: &Options,
    platform: &Platform,
    output: &Output,
) -> Result<ExitCode, CliError> {
    let job = platform.post(&["api", "jobs"], &request(options)?).await?;
    output.result(&job, |job| {
        format!("job {} is {}", cell(job, "/id"), cell(job, "/status"))
    })?;
    if !options.watch {
        return Ok(ExitCode::SUCCESS);
    }
    let id = job["id"]
        .as_u64()
        .ok_or_else(|| CliError::UnexpectedAnswer("a job without a number".to_owned()))?;
    watch::run(id, platform, output).await
}

/// The body of POST /api/jobs.
fn request(options: &Options) -> Result<Value, CliError> {
    let mut config = match &options.config {
        Some(path) => read_config(path)?,
        None => Map::new(),
    };
    config.extend(options.fields.iter().cloned());
    let mut body = json!({
        "dataset_id": options.dataset,
        "base_model": { "huggingface_id": options.model },
        "config": config,
    });
    let optional = [
        ("name", options.name.as_ref().map(|name| json!(name))),
        ("worker_id", options.worker.map(|worker| json!(worker))),
        ("priority", options.priority.map(|priority| json!(priority))),
        ("max_retries", options.max_retries.map(|count| json!(count))),
    ];
    for (field, value) in optional {
        if let Some(value) = value {
            body[field] = value;
        }
    }
    Ok(body)
}

/// The fields of a training config in a TOML or JSON file.
///
/// # Errors
/// A file that cannot be read, or holds something else.
pub fn read_config(path: &Path) -> Result<Map<String, Value>, CliError> {
    let name = path.display();
    let text =
        std::fs::read_to_string(path).map_err(|source| CliError::io(name.to_string(), source))?;
    let is_json = path
        .extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    let value: Result<Value, String> = if is_json {
        trainyard_shared::json::parse(&text).map_err(|error| error.to_string())
    } else {
        toml::from_str(&text).map_err(|error| error.to_string())
    };
    match value.map_err(|error| CliError::Input(format!("{name}: {error}")))? {
        Value::Object(config) => Ok(config),
        other => {
            let kind = trainyard_shared::json::kind(&other);
            Err(CliError::Input(format!(
                "{name}: the fields of the config are expected, not {kind}"
            )))
        }
    }
}

/// Reads `FIELD=VALUE`. What is no JSON value is text, so that `lr_scheduler_type=cosine` needs no quotes.
///
/// # Errors
/// Text without a name and a `=`.
pub fn field(text: &str) -> Result<(String, Value), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => {
            let value = trainyard_shared::json::parse(value).unwrap_or_else(|_| Value::from(value));
            Ok((name.to_owned(), value))
        }
        _ => Err("FIELD=VALUE is expected, as epochs=1".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn body(arguments: &[&str]) -> Value {
        let line = [&["x", "--dataset", "3", "--model", "org/name"], arguments].concat();
        request(&Line::try_parse_from(line).unwrap().options).unwrap()
    }

    #[test]
    fn flags_become_the_request() {
        assert_eq!(
            body(&[
                "--name",
                "n",
                "--worker",
                "2",
                "--max-retries",
                "1",
                "--set",
                "epochs=1"
            ]),
            json!({
                "dataset_id": 3, "base_model": {"huggingface_id": "org/name"}, "config": {"epochs": 1},
                "name": "n", "worker_id": 2, "max_retries": 1,
            })
        );
    }

    #[test]
    fn values_are_json_where_they_can_be_and_text_otherwise() {
        let arguments = [
            "packing=false",
            "learning_rate=2e-4",
            "lr_scheduler_type=cosine",
            "target_modules=[\"q_proj\"]",
        ];
        let arguments: Vec<_> = arguments
            .iter()
            .flat_map(|argument| ["--set", argument])
            .collect();
        assert_eq!(
            body(&arguments)["config"],
            json!({"packing": false, "learning_rate": 2e-4, "lr_scheduler_type": "cosine", "target_modules": ["q_proj"]})
        );
        assert!(field("epochs").is_err());
        assert!(field("=1").is_err());
    }

    #[test]
    fn a_flag_wins_over_the_file_and_both_formats_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let (toml, json) = (folder.path().join("c.toml"), folder.path().join("c.json"));
        std::fs::write(
            &toml,
            "epochs = 3\nlora_r = 8\ntarget_modules = [\"q_proj\"]\n",
        )
        .unwrap();
        std::fs::write(
            &json,
            r#"{"epochs": 3, "lora_r": 8, "target_modules": ["q_proj"]}"#,
        )
        .unwrap();
        for file in [&toml, &json] {
            let config =
                body(&["--config", file.to_str().unwrap(), "--set", "epochs=1"])["config"].clone();
            assert_eq!(
                config,
                json!({"epochs": 1, "lora_r": 8, "target_modules": ["q_proj"]})
            );
        }
        std::fs::write(&json, "[]").unwrap();
        assert!(
            read_config(&json)
                .unwrap_err()
                .to_string()
                .contains("not an array")
        );
    }
}
