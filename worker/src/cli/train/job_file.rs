//! A job as a TOML file: the body of `POST /api/jobs`, with a data set and a model of this machine.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};
use trainyard_shared::dataset::DatasetFormat;
use trainyard_shared::training::TrainingConfig;

use crate::cli::error::CliError;
use crate::engine::data::DataFile;

/// A job that was read and checked.
#[derive(Debug)]
pub(super) struct JobFile {
    path: PathBuf,
    /// The data set.
    pub(super) dataset: DataFile,
    /// Bad rows that may be skipped.
    pub(super) max_bad_rows: u64,
    /// The model as it was named.
    pub(super) model: String,
    /// How to train.
    pub(super) config: TrainingConfig,
}

/// What stands in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default, rename = "name")]
    _name: Option<String>,
    dataset: Option<String>,
    format: Option<String>,
    dataset_id: Option<Value>,
    #[serde(default)]
    max_bad_rows: u64,
    model: Option<String>,
    base_model: Option<WrittenModel>,
    #[serde(default)]
    config: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenModel {
    huggingface_id: String,
}

impl JobFile {
    /// Reads a job. Paths in it start from its own folder.
    pub(super) fn read(path: &Path) -> Result<Self, CliError> {
        let wrong = |message: String| CliError::Input(format!("{}: {message}", path.display()));
        let text = fs::read_to_string(path)
            .map_err(|source| CliError::io(path.display().to_string(), source))?;
        let written: Written = toml::from_str(&text)
            .map_err(|error| wrong(error.to_string().trim_end().to_owned()))?;
        if written.dataset_id.is_some() {
            return Err(wrong(
                "dataset_id: data sets have numbers at a platform only; give `dataset`, a file"
                    .to_owned(),
            ));
        }
        let dataset = written
            .dataset
            .ok_or_else(|| wrong("dataset: missing (a file)".to_owned()))?;
        let model = match (written.model, written.base_model) {
            (Some(model), None) => model,
            (None, Some(base)) => base.huggingface_id,
            (Some(_), Some(_)) => {
                return Err(wrong(
                    "model and base_model: one of them is enough".to_owned(),
                ));
            }
            (None, None) => {
                return Err(wrong(
                    "model: missing (a folder, a .gguf file or a hub name)".to_owned(),
                ));
            }
        };
        let config = TrainingConfig::parse(&Value::Object(written.config)).map_err(|problems| {
            let lines: Vec<String> = problems
                .iter()
                .map(|problem| match &problem.hint {
                    Some(hint) => format!("config.{problem} ({hint})"),
                    None => format!("config.{problem}"),
                })
                .collect();
            wrong(lines.join("\n"))
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut dataset = DataFile::by_name(folder.join(dataset));
        if let Some(format) = written.format {
            dataset.format = format
                .parse::<DatasetFormat>()
                .map_err(|error| wrong(format!("format: {error}")))?;
        }
        Ok(Self {
            dataset,
            path: path.to_owned(),
            max_bad_rows: written.max_bad_rows,
            model,
            config,
        })
    }

    /// Where paths in the file start from.
    pub(super) fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<JobFile, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job.toml");
        fs::write(&path, text).unwrap();
        JobFile::read(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn a_job_is_read_with_its_paths_beside_it() {
        let job = read(
            r#"
            name = "aye aye"
            dataset = "chats.jsonl"
            model = "org/name"
            [config]
            epochs = 2
            learning_rate = 1e-3
            target_modules = ["q_proj"]
            "#,
        )
        .unwrap();
        assert_eq!(job.dataset.path, job.folder().join("chats.jsonl"));
        assert_eq!(job.dataset.format, DatasetFormat::Jsonl);
        assert_eq!(job.model, "org/name");
        assert_eq!((job.config.epochs, job.config.learning_rate), (2, 1e-3));
    }

    #[test]
    fn the_format_is_told_by_the_name_or_by_itself() {
        let format = |text: &str| read(text).map(|job| job.dataset.format);
        let named = "dataset = \"d.csv\"\nmodel = \"m\"";
        assert_eq!(format(named), Ok(DatasetFormat::Csv));
        let told = "dataset = \"d\"\nformat = \"parquet\"\nmodel = \"m\"";
        assert_eq!(format(told), Ok(DatasetFormat::Parquet));
        let error = format("dataset = \"d\"\nformat = \"xls\"\nmodel = \"m\"").unwrap_err();
        assert!(error.contains("format: `xls` is no format"), "{error}");
    }

    #[test]
    fn the_body_of_the_api_is_taken_too() {
        let job = read("dataset = \"d\"\n[base_model]\nhuggingface_id = \"org/name\"").unwrap();
        assert_eq!(job.model, "org/name");
    }

    #[test]
    fn what_is_wrong_is_named_by_field() {
        for (text, part) in [
            ("model = \"m\"", "dataset: missing"),
            ("dataset = \"d\"", "model: missing"),
            (
                "dataset_id = 4\nmodel = \"m\"",
                "dataset_id: data sets have numbers",
            ),
            (
                "dataset = \"d\"\nmodel = \"m\"\n[config]\nlearning_rat = 1",
                "config.learning_rat",
            ),
            (
                "dataset = \"d\"\nmodel = \"m\"\nepochs = 3",
                "unknown field `epochs`",
            ),
            ("dataset = ", "TOML"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(part), "{part} is not in: {error}");
        }
    }
}
