//! A job's good end.

use serde::{Deserialize, Serialize};

use super::parts::ArtifactFile;
use crate::ids::{JobId, MessageId};
use crate::number;

/// `job_completed`: training is done and its result is stored.
///
/// Worker to platform, once for each attempt; platform to dashboards likewise. A repeat is
/// acknowledged and changes nothing. Source: "job_completed".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobCompleted {
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
    /// The result.
    pub data: JobCompletedData,
}

/// Content of [`JobCompleted`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct JobCompletedData {
    /// Loss of the last step, in nats; null when it is not finite.
    #[serde(
        default,
        deserialize_with = "number::metric",
        skip_serializing_if = "Option::is_none"
    )]
    pub final_loss: Option<f64>,
    /// Optimizer steps that were done.
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub total_steps: Option<u64>,
    /// Time spent training, in seconds.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "number::shortest"
    )]
    pub training_time_seconds: Option<f64>,
    /// Where the result's files are, as `models/job-123/final/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3_prefix: Option<String>,
    /// The result's files (ours); they count once all are stored and checked (PROTOCOL 6).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<ArtifactFile>,
}
