//! A job's end by request.

use serde::{Deserialize, Serialize};

use crate::ids::{JobId, MessageId};
use crate::number;

/// `job_stopped`: training stopped as asked, after its checkpoint was saved.
///
/// Worker to platform, once for each attempt. A repeat is acknowledged and changes nothing. Ours:
/// PROTOCOL 5.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobStopped {
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
    /// Where it stopped.
    #[serde(default)]
    pub data: JobStoppedData,
}

/// Content of [`JobStopped`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct JobStoppedData {
    /// Steps that were done.
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub step: Option<u64>,
    /// The newest checkpoint, as `checkpoints/job-123/step-400/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<String>,
}
