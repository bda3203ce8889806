//! A job's bad end.

use serde::{Deserialize, Serialize};

use crate::FailureKind;
use crate::ids::{JobId, MessageId};
use crate::number;

/// `job_failed`: the job cannot go on.
///
/// Worker to platform, once for each attempt. A repeat is acknowledged and changes nothing. Source:
/// "job_failed".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobFailed {
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
    /// What happened.
    pub data: JobFailedData,
}

/// Content of [`JobFailed`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobFailedData {
    /// Why, for a person.
    pub error: String,
    /// The step at which it happened.
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub step: Option<u64>,
    /// The newest checkpoint, as `checkpoints/job-123/step-400/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<String>,
    /// Whose failure it is (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_kind: Option<FailureKind>,
}
