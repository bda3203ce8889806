//! What a training run tells while it goes, and how it ends.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::data::DatasetReport;

/// Something that happened in a run.
#[derive(Debug, Clone, PartialEq)]
pub enum TrainingEvent {
    /// The data set is read and the model is loaded.
    Started(Started),
    /// An optimizer step is done, or was skipped.
    Step(StepReport),
    /// A checkpoint is whole on disk.
    CheckpointSaved(CheckpointSaved),
    /// A line for the job's log.
    Log {
        /// How much it matters.
        level: LogLevel,
        /// The line.
        line: String,
    },
}

/// How much a line of the log matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// For information.
    Info,
    /// Something to look at.
    Warning,
}

/// What a run came to before its first step.
#[derive(Debug, Clone, PartialEq)]
pub struct Started {
    /// Optimizer steps of the whole run.
    pub total_steps: u64,
    /// Steps that were done before, by the checkpoint that the run goes on from.
    pub resumed_from_step: u64,
    /// Weights that are trained.
    pub trainable_parameters: u64,
    /// Weights of the model with its adapter.
    pub total_parameters: u64,
    /// What became of the data set's rows.
    pub dataset: DatasetReport,
    /// Rows that are trained on.
    pub training_rows: u64,
    /// Rows that are kept for evaluation.
    pub evaluation_rows: u64,
}

/// One optimizer step. Figures that are not finite are none.
#[derive(Debug, Clone, PartialEq)]
pub struct StepReport {
    /// The epoch, from 1.
    pub epoch: u64,
    /// The step, from 1.
    pub step: u64,
    /// Steps of the whole run.
    pub total_steps: u64,
    /// Mean loss over the step's labelled tokens, in nats.
    pub loss: Option<f64>,
    /// The smoothed loss.
    pub loss_ema: Option<f64>,
    /// exp(loss).
    pub perplexity: Option<f64>,
    /// Norm of all gradients before clipping.
    pub grad_norm: Option<f64>,
    /// The learning rate of this step.
    pub learning_rate: f64,
    /// Whether the weights were left as they were, because loss or gradients were not finite.
    pub skipped: bool,
    /// Tokens that ran through the model in this step.
    pub tokens: u64,
    /// Sequences in one micro-batch, as it runs: no more than memory allows.
    pub micro_batch_size: u32,
    /// Micro-batches in one full step, as it runs.
    pub gradient_accumulation_steps: u32,
    /// What the evaluation after this step found, where there was one.
    pub evaluation: Option<EvaluationReport>,
    /// Rows a second.
    pub throughput: Option<f64>,
    /// Tokens a second.
    pub token_throughput: Option<f64>,
    /// Seconds to the end of the run, as it goes now.
    pub eta_seconds: Option<f64>,
}

/// An evaluation on the rows that are kept for it. Figures that are not finite are none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EvaluationReport {
    /// Mean loss over the rows' labelled tokens, in nats.
    pub loss: Option<f64>,
    /// exp(loss).
    pub perplexity: Option<f64>,
}

/// A checkpoint that is whole on disk.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckpointSaved {
    /// The step after which it was saved.
    pub step: u64,
    /// The epoch of that step, from 1.
    pub epoch: u64,
    /// Its folder.
    pub folder: PathBuf,
    /// Figures at that step.
    pub metrics: BTreeMap<String, Option<f64>>,
}

/// How a run ended that did not fail.
#[derive(Debug, Clone, PartialEq)]
pub enum TrainingOutcome {
    /// All steps are done and the result is published.
    Completed {
        /// The newest finite loss of a step.
        final_loss: Option<f64>,
        /// Steps of the whole run.
        total_steps: u64,
        /// Time spent in training, over all attempts.
        training_time: Duration,
        /// The folder of the result.
        folder: PathBuf,
    },
    /// It was stopped.
    Stopped {
        /// Steps that are done.
        step: u64,
        /// The checkpoint of that step; none where no step is done.
        checkpoint: Option<PathBuf>,
    },
}
