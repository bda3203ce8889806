//! The platform's question whether a worker lives, and the answer.

use serde::{Deserialize, Serialize};

use crate::WorkerStatus;
use crate::ids::{EvaluationId, ExportId, FederatedSessionId, InferenceId, JobId};

/// `ping`: the worker must answer with [`Pong`].
///
/// Platform to worker, after three missed heartbeats and when the platform wants to know which job the
/// worker has. Repeats are harmless. Source: "ping"; PROTOCOL 7.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Ping {
    /// Comes back in the answer (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ping_id: Option<String>,
}

/// `pong`: the worker lives, and this is what it does.
///
/// Worker to platform, once for each `ping`. Repeats are harmless. Source: "pong".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pong {
    /// The sender's UUID, or the beginning of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// What the worker does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<WorkerStatus>,
    /// Whether it has work that keeps it from taking more.
    #[serde(default)]
    pub busy: bool,
    /// The job that it runs; missing and null both mean none.
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
    /// The `ping_id` that is answered (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ping_id: Option<String>,
}
