//! The trainer's own numbers in a checkpoint.

use std::fs;
use std::path::Path;

use chrono::{DateTime, FixedOffset};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{TRAINER_STATE, exact};
use crate::EngineError;

/// What the trainer knows besides weights and moments. The data's order and dropout follow from the
/// config's seed and the step, so they need no state of their own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainerState {
    /// Optimizer steps done.
    pub step: u64,
    /// Updates made: steps less those that were skipped.
    pub updates: u64,
    /// Steps skipped in a row, up to now.
    pub skipped_in_a_row: u64,
    /// Steps skipped in all.
    pub skipped_steps: u64,
    /// The loss of the first step.
    #[serde(default, with = "exact::optional")]
    pub first_loss: Option<f64>,
    /// The newest finite loss.
    #[serde(default, with = "exact::optional")]
    pub last_loss: Option<f64>,
    /// The smoothed loss.
    #[serde(default, with = "exact::optional")]
    pub loss_ema: Option<f64>,
    /// The gradient norm of the newest step, where it is finite.
    #[serde(default, with = "exact::optional")]
    pub last_grad_norm: Option<f64>,
    /// Time spent in training, in seconds, over all attempts.
    pub training_seconds: f64,
    /// Tokens run through the model in training.
    pub tokens: u64,
    /// What evaluations have found.
    #[serde(default)]
    pub evaluations: Evaluations,
    /// Sequences in one micro-batch as it runs, where memory asked for less than the config; never more again.
    #[serde(default)]
    pub micro_batch_size: Option<u32>,
    /// Whether activations are computed again, though the config does not ask for it.
    #[serde(default)]
    pub saves_memory: bool,
    /// What chat templates are told to be the time, RFC 3339; the same for the whole run.
    pub chat_time: String,
    /// What the run is.
    pub run: RunIdentity,
}

/// What evaluations in a run have found up to now.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluations {
    /// The step after which the newest one was made; 0 before the first.
    pub newest_step: u64,
    /// The loss that it found; none where it was not finite.
    #[serde(default, with = "exact::optional")]
    pub newest_loss: Option<f64>,
    /// The one with the lowest loss.
    pub best: Option<Best>,
    /// Evaluations since then.
    pub since_best: u32,
}

/// The weights with the lowest loss.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// The step after which they were measured.
    pub step: u64,
    /// The loss over the rows kept for evaluation, in nats.
    #[serde(with = "exact::figure")]
    pub loss: f64,
}

impl Evaluations {
    /// Takes up what the evaluation after `step` has found; none where the loss was not finite.
    pub fn record(&mut self, step: u64, loss: Option<f64>) {
        self.newest_step = step;
        self.newest_loss = loss;
        match loss {
            Some(loss) if self.best.is_none_or(|best| loss < best.loss) => {
                self.best = Some(Best { step, loss });
                self.since_best = 0;
            }
            _ => self.since_best += 1,
        }
    }

    /// The loss of the evaluation after `step`, if there was one.
    pub fn loss_at(&self, step: u64) -> Option<f64> {
        self.newest_loss.filter(|_| self.newest_step == step)
    }

    /// Whether the newest weights that were measured, those of `step`, are the best.
    pub fn is_best(&self, step: u64) -> bool {
        self.best.is_some_and(|best| best.step == step)
    }
}

/// What must be the same for a checkpoint to be gone on from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunIdentity {
    /// The base model's name.
    pub base_model: String,
    /// SHA-256 of the data set's file.
    pub dataset_sha256: String,
    /// Rows that are trained on.
    pub examples: u64,
    /// The job's config with all defaults, by the wire's names.
    pub config: Map<String, Value>,
}

impl TrainerState {
    /// The state before the first step. `chat_time` is what chat templates are told to be the time.
    pub fn new(chat_time: impl Into<DateTime<FixedOffset>>, run: RunIdentity) -> Self {
        Self {
            step: 0,
            updates: 0,
            skipped_in_a_row: 0,
            skipped_steps: 0,
            first_loss: None,
            last_loss: None,
            loss_ema: None,
            last_grad_norm: None,
            training_seconds: 0.0,
            tokens: 0,
            evaluations: Evaluations::default(),
            micro_batch_size: None,
            saves_memory: false,
            chat_time: chat_time.into().to_rfc3339(),
            run,
        }
    }

    /// Writes the state into a checkpoint's folder.
    ///
    /// # Errors
    /// [`EngineError::Io`] where the disk does not take it.
    pub fn write(&self, folder: &Path) -> Result<(), EngineError> {
        let path = folder.join(TRAINER_STATE);
        let text = serde_json::to_string_pretty(self).expect("plain fields are written as JSON");
        fs::write(&path, text + "\n").map_err(|error| EngineError::io("write", path, error))
    }

    /// Reads the state of a checkpoint.
    ///
    /// # Errors
    /// [`EngineError::InvalidCheckpoint`] where it is missing or not one.
    pub fn read(folder: &Path) -> Result<Self, EngineError> {
        let path = folder.join(TRAINER_STATE);
        let invalid = |message: String| EngineError::InvalidCheckpoint {
            path: path.clone(),
            message,
        };
        let text = fs::read_to_string(&path).map_err(|error| invalid(error.to_string()))?;
        serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))
    }
}
