//! A point from which a job can go on.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::parts::ArtifactFile;
use crate::ids::{JobId, MessageId};
use crate::number;

/// `checkpoint_saved`: a checkpoint is stored.
///
/// Worker to platform, every `save_steps` and at a stop; platform to dashboards likewise. A repeat is
/// acknowledged and changes nothing. Source: "checkpoint_saved".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckpointSaved {
    /// The sender's UUID, or the beginning of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The job.
    pub job_id: JobId,
    /// Which attempt at the job, from 1, as in `start_training` (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Wants an `ack` that carries it (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// The checkpoint.
    pub data: CheckpointSavedData,
}

/// Content of [`CheckpointSaved`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckpointSavedData {
    /// Step after which it was saved.
    #[serde(deserialize_with = "number::count")]
    pub step: u64,
    /// Epoch that the step belongs to, from 1.
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub epoch: Option<u64>,
    /// Where its files are, as `checkpoints/job-123/step-1000/`.
    pub path: String,
    /// Metrics at that step, as `loss` and `eval_loss`; null where not finite.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, Option<f64>>,
    /// Its files (ours); they count once all are stored and checked (PROTOCOL 6).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<ArtifactFile>,
}
