//! A job's bad end, for dashboards.

use serde::{Deserialize, Serialize};

use crate::FailureKind;
use crate::ids::JobId;
use crate::number;

/// `training_failed`: the job's attempt failed.
///
/// Platform to dashboards, once for each failed attempt. Repeats are harmless. Source:
/// "training_failed".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainingFailed {
    /// The job.
    pub job_id: JobId,
    /// What happened.
    pub data: TrainingFailedData,
}

/// Content of [`TrainingFailed`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainingFailedData {
    /// Why, for a person.
    pub error: String,
    /// Step of the newest checkpoint; null for none.
    #[serde(default, deserialize_with = "number::optional_count")]
    pub last_checkpoint_step: Option<u64>,
    /// Whose the failure is (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_kind: Option<FailureKind>,
}
