//! The worker's sign of life.

use serde::{Deserialize, Serialize};

use crate::WorkerStatus;
use crate::ids::{EvaluationId, ExportId, FederatedSessionId, InferenceId, JobId};

/// `heartbeat`: the worker lives.
///
/// Worker to platform, every 30 s (`HEARTBEAT_INTERVAL`), whatever the training does. Repeats are
/// harmless. Source: "heartbeat".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The sender's UUID, or the beginning of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// What the worker does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<WorkerStatus>,
    /// The job that it runs. Missing says nothing about the job (PROTOCOL 3); our worker sends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_job_id: Option<JobId>,
    /// The answers that it works at or has not delivered (ours). Missing says nothing about them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_inference_ids: Option<Vec<InferenceId>>,
    /// The evaluations that it works at or has not delivered (ours). Missing says nothing about them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_evaluation_ids: Option<Vec<EvaluationId>>,
    /// The exports that it works at or has not delivered (ours). Missing says nothing about them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_export_ids: Option<Vec<ExportId>>,
    /// The federated sessions that it takes part in, or has an undelivered result of (ours). Missing says
    /// nothing about them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_session_ids: Option<Vec<FederatedSessionId>>,
}
