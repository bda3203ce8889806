//! The request to end a job early.

use serde::{Deserialize, Serialize};

use crate::ids::JobId;

/// `stop_training`: save a checkpoint and stop.
///
/// Platform to worker, on a user's request, or for a job that the worker should not have. Repeats are
/// harmless, also for a job that the worker does not have. Source: "stop_training".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StopTraining {
    /// The job.
    pub job_id: JobId,
}
