//! How a job stands, for dashboards.

use serde::{Deserialize, Serialize};

use super::training_progress::TrainingProgressData;
use crate::ids::JobId;
use crate::{FailureKind, JobStatus};

/// `job_update`: the job's present state and newest metrics.
///
/// Platform to dashboards: on `subscribe_job`, then at every change; a slow reader gets the newest
/// only. Each one says all it names: repeats are harmless. Source: "job_update".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobUpdate {
    /// The job.
    pub job_id: JobId,
    /// The state.
    pub data: JobUpdateData,
}

/// Content of [`JobUpdate`]. The fields from `attempt` on are ours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobUpdateData {
    /// Where the job stands.
    pub status: JobStatus,
    /// The newest step of this attempt, as its worker told it; none before the first.
    #[serde(flatten)]
    pub progress: Option<TrainingProgressData>,
    /// Which attempt, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Whether the job runs on a worker whose connection is lost for the moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub awaiting_worker: Option<bool>,
    /// Why a queued job waits, for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_because: Option<String>,
    /// Why an attempt that follows another begins anew instead of going on from a checkpoint, for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begins_anew_because: Option<String>,
    /// Whose the failure is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_kind: Option<FailureKind>,
    /// Why it failed, for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl JobUpdateData {
    /// An update that says nothing but where the job stands.
    pub const fn of(status: JobStatus) -> Self {
        Self {
            status,
            progress: None,
            attempt: None,
            awaiting_worker: None,
            waiting_because: None,
            begins_anew_because: None,
            failure_kind: None,
            error: None,
        }
    }
}
