//! An evaluation's end, good or bad.

use serde::{Deserialize, Serialize};

use super::parts::TaskFailedData;
use crate::ids::{EvaluationId, MessageId};
use crate::number;

/// `evaluation_completed`: the figures.
///
/// Worker to platform and on to dashboards, once for each evaluation. A repeat is acknowledged and
/// changes nothing. Ours: PROTOCOL 8.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvaluationCompleted {
    /// The sender's UUID, or the beginning of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The evaluation.
    pub evaluation_id: EvaluationId,
    /// Wants an `ack` that carries it (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// The result.
    pub data: EvaluationCompletedData,
}

/// Content of [`EvaluationCompleted`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EvaluationCompletedData {
    /// The figures.
    pub metrics: EvaluationMetrics,
}

/// What an evaluation measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EvaluationMetrics {
    /// e to the power of the loss.
    #[serde(
        default,
        deserialize_with = "number::metric",
        skip_serializing_if = "Option::is_none"
    )]
    pub perplexity: Option<f64>,
    /// Mean loss over all labelled tokens, in nats.
    #[serde(
        default,
        deserialize_with = "number::metric",
        skip_serializing_if = "Option::is_none"
    )]
    pub loss: Option<f64>,
    /// Part of the labelled tokens that were the most likely ones, 0 to 1.
    #[serde(
        default,
        deserialize_with = "number::metric",
        skip_serializing_if = "Option::is_none"
    )]
    pub token_accuracy: Option<f64>,
    /// Labelled tokens.
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub tokens: Option<u64>,
}

/// `evaluation_failed`: there will be no figures.
///
/// Worker to platform and on to dashboards, once for each evaluation. A repeat is acknowledged and
/// changes nothing. Ours: PROTOCOL 8.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvaluationFailed {
    /// The sender's UUID, or the beginning of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The evaluation.
    pub evaluation_id: EvaluationId,
    /// Wants an `ack` that carries it (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// What happened.
    pub data: TaskFailedData,
}
