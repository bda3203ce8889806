//! What a dashboard wants to hear of.

use serde::{Deserialize, Serialize};

use crate::ids::JobId;

/// `subscribe_job`: send me this job's updates.
///
/// Dashboard to platform, whenever it likes. Answered at once by the job's present state as
/// `job_update`. Repeats are harmless. Source: "Dashboard WebSocket".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubscribeJob {
    /// The job.
    pub job_id: JobId,
}

/// `unsubscribe_job`: no more of this job's updates.
///
/// Dashboard to platform, whenever it likes. Repeats are harmless. Source: "Dashboard WebSocket".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UnsubscribeJob {
    /// The job.
    pub job_id: JobId,
}
