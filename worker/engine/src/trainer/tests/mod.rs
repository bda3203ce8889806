//! Whole runs on a tiny model: steps, figures, checkpoints, going on, and how runs end.

mod checkpoints;
mod evaluation;
mod memory;
mod steps;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::adapter;
use crate::checkpoint::Manifest;
use crate::golden;
use crate::weights::SafetensorsFile;

/// A model, a data set and a place for results.
struct Bench {
    model: TempDir,
    output: TempDir,
    rows: String,
    available_bytes: u64,
}

/// What a run told.
struct Told {
    outcome: Result<TrainingOutcome, EngineError>,
    steps: Vec<StepReport>,
    saved: Vec<u64>,
    /// Of each checkpoint.
    metrics: Vec<BTreeMap<String, Option<f64>>>,
    started: Option<Started>,
    log: Vec<String>,
}

impl Bench {
    /// Chats of different lengths.
    fn new(rows: usize) -> Self {
        let mut text = String::new();
        for row in 0..rows {
            let (question, answer) = (
                "what ".repeat(1 + row % 3),
                format!("answer {row}{}", "!".repeat(row % 5)),
            );
            let chat = json!({"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]});
            writeln!(text, "{chat}").unwrap();
        }
        Self {
            model: golden::model_with_tokenizer("tied"),
            output: tempfile::tempdir().unwrap(),
            rows: text,
            available_bytes: u64::MAX,
        }
    }

    fn run(&self, config: TrainingConfig) -> Told {
        self.run_until(config, None, u64::MAX)
    }

    /// Runs, from a checkpoint where one is given, and stops once `last_step` is done.
    fn run_until(
        &self,
        config: TrainingConfig,
        resume_from: Option<PathBuf>,
        last_step: u64,
    ) -> Told {
        let done = AtomicU64::new(0);
        let is_stopped = || done.load(Ordering::Relaxed) >= last_step;
        self.run_and_count(config, resume_from, &is_stopped, &done)
    }

    /// Runs, from a checkpoint where one is given, until `is_stopped` says so.
    fn run_with(
        &self,
        config: TrainingConfig,
        resume_from: Option<PathBuf>,
        is_stopped: &(dyn Fn() -> bool + Sync),
    ) -> Told {
        self.run_and_count(config, resume_from, is_stopped, &AtomicU64::new(0))
    }

    fn run_and_count(
        &self,
        config: TrainingConfig,
        resume_from: Option<PathBuf>,
        is_stopped: &(dyn Fn() -> bool + Sync),
        done: &AtomicU64,
    ) -> Told {
        let model = ModelFiles::open(self.model.path()).unwrap();
        let run = self.training_run(&model, config, resume_from);
        let mut told = Told {
            outcome: Ok(TrainingOutcome::Stopped {
                step: 0,
                checkpoint: None,
            }),
            steps: vec![],
            saved: vec![],
            metrics: vec![],
            started: None,
            log: vec![],
        };
        let outcome = train(&run, is_stopped, &mut |event| match event {
            TrainingEvent::Started(started) => told.started = Some(started),
            TrainingEvent::Step(step) => {
                done.store(step.step, Ordering::Relaxed);
                told.steps.push(step);
            }
            TrainingEvent::CheckpointSaved(saved) => {
                told.saved.push(saved.step);
                told.metrics.push(saved.metrics);
            }
            TrainingEvent::Log { line, .. } => told.log.push(line),
        });
        told.outcome = outcome;
        told
    }

    fn training_run<'a>(
        &self,
        model: &'a ModelFiles,
        config: TrainingConfig,
        resume_from: Option<PathBuf>,
    ) -> TrainingRun<'a> {
        let dataset = self.output.path().join("rows.jsonl");
        std::fs::write(&dataset, &self.rows).unwrap();
        TrainingRun {
            model,
            base_model: "test/tiny".into(),
            dataset: DataFile::by_name(dataset),
            max_bad_rows: 0,
            config,
            output_dir: self.output.path().to_owned(),
            resume_from,
            available_bytes: self.available_bytes,
            token_cache: TokenCache::new(self.output.path().join("tokens")),
        }
    }

    fn checkpoint(&self, step: u64) -> PathBuf {
        self.output
            .path()
            .join(CHECKPOINTS)
            .join(format!("step-{step}"))
    }

    /// The published weights, in the order of their names.
    fn published(&self) -> Vec<f32> {
        weights(&self.output.path().join(FINAL))
    }
}

/// The weights of an adapter or a model, in the order of their names.
fn weights(folder: &Path) -> Vec<f32> {
    let paths = [adapter::ADAPTER_WEIGHTS, "model.safetensors"].map(|name| folder.join(name));
    let path = paths.iter().find(|path| path.exists()).unwrap();
    let file = SafetensorsFile::open(path).unwrap();
    let names: Vec<String> = file.names().map(str::to_owned).collect();
    names
        .iter()
        .flat_map(|name| file.tensor(name).unwrap())
        .collect()
}

fn config() -> TrainingConfig {
    TrainingConfig {
        packing: false,
        epochs: 1,
        batch_size: 2,
        learning_rate: 1e-2,
        lora_r: 4,
        lora_alpha: 8.0,
        max_length: 128,
        seed: 7,
        ..TrainingConfig::default()
    }
}

fn losses(steps: &[StepReport]) -> Vec<f64> {
    steps.iter().map(|step| step.loss.unwrap()).collect()
}
