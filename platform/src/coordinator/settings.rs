//! What only volunteer sessions have, as it is kept with them.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use trainyard_shared::coordinator::Mode;
use trainyard_shared::training::{FieldProblem, TrainingConfig};

use crate::database::{DatabaseError, from_json_text};
use crate::rounds::store::SessionRow;

/// How volunteers train in a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Optimizer steps of a round.
    pub local_steps: u64,
    /// Sequences in a batch.
    pub batch_size: u64,
    /// Length of a sequence in tokens.
    pub sequence_length: u64,
    /// Learning rate.
    pub learning_rate: f64,
    /// What is trained.
    pub mode: Mode,
    /// Of the fresh adapter, and of what volunteers do.
    pub seed: u64,
    /// The fresh adapter; none where a job's is the first.
    pub lora: Option<Lora>,
}

/// A fresh adapter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lora {
    /// Rank.
    pub r: u32,
    /// Its output is scaled by `alpha / r`.
    pub alpha: f64,
    /// Which linear layers get it.
    pub target_modules: Value,
}

impl Lora {
    /// As a job's config says it.
    ///
    /// # Errors
    /// What does not fit, by the names of a job's config.
    pub fn as_config(&self) -> Result<TrainingConfig, Vec<FieldProblem>> {
        TrainingConfig::parse(&json!({
            "lora_r": self.r,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "target_modules": self.target_modules,
        }))
    }
}

impl Settings {
    /// Those of a session.
    ///
    /// # Errors
    /// When what is stored cannot be read.
    pub fn of(session: &SessionRow) -> Result<Self, DatabaseError> {
        from_json_text(&session.settings)
    }
}
