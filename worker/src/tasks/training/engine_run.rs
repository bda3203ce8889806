//! The engine on a thread of its own: its events become messages, its outcome the job's.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use tokio::sync::oneshot;
use trainyard_shared::FailureKind;
use trainyard_shared::ids::MessageId;
use trainyard_shared::message::{
    self, ArtifactFile, CheckpointSavedData, FromWorker, JobCompletedData, JobStarted,
    JobStartedData, TrainingProgress, TrainingProgressData,
};

use super::job_log::JobLog;
use super::prepare::{Prepared, checkpoint_prefix};
use crate::config::Device;
use crate::connection::Reports;
use crate::engine::trainer::{
    CheckpointSaved, LogLevel, Started, StepReport, TrainingEvent, TrainingOutcome, TrainingRun,
    train,
};
use crate::engine::weights::ModelFiles;
use crate::hardware::free_memory_bytes;
use crate::tasks::StopSignal;
use crate::tasks::artifacts::described;
use crate::tasks::failure::Failure;

/// Everything that one run of the engine needs.
#[derive(Debug)]
pub(super) struct EngineRun {
    pub(super) base_model: String,
    /// Prefix of the job's result at the platform, as `models/job-123/`.
    pub(super) output_path: String,
    pub(super) device: Device,
    pub(super) prepared: Prepared,
    pub(super) log: JobLog,
    pub(super) reports: Reports,
    pub(super) progress: Progress,
    pub(super) stop: StopSignal,
}

/// How the run ended that did not fail.
#[derive(Debug)]
pub(super) enum Outcome {
    Completed(Completed),
    Stopped,
}

/// A result, described for the platform.
#[derive(Debug)]
pub(super) struct Completed {
    pub(super) data: JobCompletedData,
    pub(super) files: Vec<(ArtifactFile, PathBuf)>,
}

/// How far an attempt has come.
#[derive(Debug, Clone, Default)]
pub(super) struct Reached {
    pub(super) step: u64,
    /// Where the platform keeps the newest checkpoint.
    pub(super) last_checkpoint: Option<String>,
}

/// How far an attempt has come, shared between its thread and whoever reports its end.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress(Arc<Mutex<Reached>>);

impl Progress {
    pub(super) fn new(resumed: Option<Reached>) -> Self {
        Self(Arc::new(Mutex::new(resumed.unwrap_or_default())))
    }

    pub(super) fn get(&self) -> Reached {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn update(&self, change: impl FnOnce(&mut Reached)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl EngineRun {
    /// Trains; a panic of the engine is a failure like any other.
    pub(super) async fn on_its_own_thread(self) -> Result<Outcome, Failure> {
        let (report, reported) = oneshot::channel();
        let work = move || {
            let result = catch_unwind(AssertUnwindSafe(|| self.train()))
                .unwrap_or_else(|panic| Err(Failure::from_panic(&*panic)));
            // Nobody waits any more only when the whole worker has ended.
            let _ = report.send(result);
        };
        thread::Builder::new()
            .name("training".to_owned())
            .spawn(work)
            .map_err(|error| {
                Failure::new(
                    FailureKind::Internal,
                    format!("no thread for training: {error}"),
                )
            })?;
        reported.await.unwrap_or_else(|_| {
            Err(Failure::new(
                FailureKind::Internal,
                "the training thread has gone",
            ))
        })
    }

    fn train(self) -> Result<Outcome, Failure> {
        let model =
            ModelFiles::open(&self.prepared.model).map_err(|error| Failure::from_model(&error))?;
        let run = TrainingRun {
            model: &model,
            base_model: self.base_model.clone(),
            dataset: self.prepared.dataset.clone(),
            max_bad_rows: self.prepared.max_bad_rows,
            config: self.prepared.config.clone(),
            output_dir: self.prepared.output.clone(),
            resume_from: self.prepared.resume_from.clone(),
            available_bytes: free_memory_bytes(),
            token_cache: self.prepared.token_cache.clone(),
        };
        let is_stopped = || self.stop.is_set();
        match train(&run, &is_stopped, &mut |event| self.tell(event))? {
            TrainingOutcome::Completed {
                final_loss,
                total_steps,
                training_time,
                folder,
            } => {
                let prefix = format!("{}/final/", self.output_path.trim_end_matches('/'));
                let files = described(&folder, &prefix)?;
                let data = JobCompletedData {
                    final_loss: Some(final_loss.unwrap_or(f64::NAN)),
                    total_steps: Some(total_steps),
                    training_time_seconds: Some(training_time.as_secs_f64()),
                    s3_prefix: Some(prefix),
                    files: files.iter().map(|(file, _)| file.clone()).collect(),
                };
                Ok(Outcome::Completed(Completed { data, files }))
            }
            TrainingOutcome::Stopped { .. } => Ok(Outcome::Stopped),
        }
    }

    fn tell(&self, event: TrainingEvent) {
        match event {
            TrainingEvent::Started(started) => self.started(&started),
            TrainingEvent::Step(step) => self.step(&step),
            TrainingEvent::CheckpointSaved(saved) => self.checkpoint(saved),
            TrainingEvent::Log { level, line } => match level {
                LogLevel::Info => self.log.info(&line),
                LogLevel::Warning => self.log.warn(&line),
            },
        }
    }

    fn started(&self, started: &Started) {
        let job = self.log.job();
        let data = &started.dataset;
        self.log.info(&format!(
            "training on {} rows in {} steps, {} of {} parameters",
            started.training_rows,
            started.total_steps,
            started.trainable_parameters,
            started.total_parameters
        ));
        if started.evaluation_rows > 0 {
            let rows = started.evaluation_rows;
            self.log
                .info(&format!("{rows} rows are kept for evaluation"));
        }
        self.reports
            .keep_or_send(FromWorker::JobStarted(JobStarted {
                worker_id: None,
                job_id: job.job_id,
                attempt: job.attempt,
                message_id: Some(MessageId::random()),
                data: JobStartedData {
                    total_steps: Some(started.total_steps),
                    trainable_parameters: Some(started.trainable_parameters),
                    total_parameters: Some(started.total_parameters),
                    dataset_examples: Some(started.training_rows),
                    device: Some(self.device.to_string()),
                    skipped_rows: Some(data.skipped_rows),
                    dropped_rows: Some(data.dropped_rows),
                    truncated_rows: Some(data.truncated_rows),
                },
            }));
    }

    fn step(&self, step: &StepReport) {
        let job = self.log.job();
        self.progress.update(|reached| reached.step = step.step);
        let epochs = self.prepared.config.epochs;
        self.log.status(&format!(
            "Epoch {}/{epochs}, step {}/{}",
            step.epoch, step.step, step.total_steps
        ));
        self.reports
            .send(FromWorker::TrainingProgress(TrainingProgress {
                worker_id: None,
                job_id: job.job_id,
                attempt: job.attempt,
                data: TrainingProgressData {
                    epoch: Some(step.epoch),
                    step: step.step,
                    total_steps: Some(step.total_steps),
                    loss: shown(step.loss),
                    learning_rate: Some(step.learning_rate),
                    grad_norm: shown(step.grad_norm),
                    throughput: step.throughput,
                    perplexity: shown(step.perplexity),
                    token_throughput: step.token_throughput.map(f64::round),
                    loss_ema: shown(step.loss_ema),
                    eval_loss: step.evaluation.and_then(|found| shown(found.loss)),
                    eval_perplexity: step.evaluation.and_then(|found| shown(found.perplexity)),
                    micro_batch_size: Some(step.micro_batch_size.into()),
                    gradient_accumulation_steps: Some(step.gradient_accumulation_steps.into()),
                    eta_seconds: step.eta_seconds.map(f64::round),
                    ..TrainingProgressData::default()
                },
            }));
    }

    /// A checkpoint that cannot be kept for delivery is a line in the log: training goes on without it.
    fn checkpoint(&self, saved: CheckpointSaved) {
        let step = saved.step;
        if let Err(failure) = self.keep_checkpoint(saved) {
            self.log.warn(&format!(
                "the checkpoint of step {step} is not stored at the platform: {}",
                failure.message
            ));
        }
    }

    fn keep_checkpoint(&self, saved: CheckpointSaved) -> Result<(), Failure> {
        let job = self.log.job();
        let prefix = checkpoint_prefix(job.job_id, saved.step);
        let files = described(&saved.folder, &prefix)?;
        let message = FromWorker::CheckpointSaved(message::CheckpointSaved {
            worker_id: None,
            job_id: job.job_id,
            attempt: job.attempt,
            message_id: Some(MessageId::random()),
            data: CheckpointSavedData {
                step: saved.step,
                epoch: Some(saved.epoch),
                path: prefix.clone(),
                metrics: saved.metrics,
                files: files.iter().map(|(file, _)| file.clone()).collect(),
            },
        });
        self.reports
            .keep(message, files)
            .map_err(|error| Failure::new(FailureKind::Storage, error.to_string()))?;
        self.progress
            .update(|reached| reached.last_checkpoint = Some(prefix));
        Ok(())
    }
}

/// A figure that was worked out but is not finite is told as such (null), not left out.
fn shown(figure: Option<f64>) -> Option<f64> {
    Some(figure.unwrap_or(f64::NAN))
}
