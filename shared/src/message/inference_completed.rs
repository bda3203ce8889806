//! An answer's end, good or bad.

use serde::{Deserialize, Serialize};

use crate::ids::{InferenceId, MessageId};
use crate::number;
use crate::{FailureKind, FinishReason};

/// `inference_completed`: the answer is whole.
///
/// Worker to platform and on to dashboards, once for each request. A repeat is acknowledged and
/// changes nothing. Source: "inference_completed".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InferenceCompleted {
    /// The sender's UUID, or the beginning of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The request.
    pub inference_id: InferenceId,
    /// Wants an `ack` that carries it (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// The result.
    pub data: InferenceCompletedData,
}

/// Content of [`InferenceCompleted`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct InferenceCompletedData {
    /// Tokens that were generated.
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub tokens_generated: Option<u64>,
    /// How long it took.
    #[serde(default)]
    pub metrics: InferenceMetrics,
    /// The whole text (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Why there is no more of it (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<FinishReason>,
    /// Tokens of the chat that was continued, the template's included (ours).
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub prompt_tokens: Option<u64>,
}

/// How fast an answer came.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct InferenceMetrics {
    /// Time to the first token, in milliseconds.
    #[serde(
        default,
        deserialize_with = "number::metric",
        skip_serializing_if = "Option::is_none"
    )]
    pub ttft_ms: Option<f64>,
    /// Tokens a second after the first.
    #[serde(
        default,
        deserialize_with = "number::metric",
        skip_serializing_if = "Option::is_none"
    )]
    pub tps: Option<f64>,
    /// Time for all of it, in milliseconds.
    #[serde(
        default,
        deserialize_with = "number::metric",
        skip_serializing_if = "Option::is_none"
    )]
    pub total_time_ms: Option<f64>,
}

/// `inference_failed`: there will be no (further) answer.
///
/// Worker to platform and on to dashboards, once for each request. A repeat is acknowledged and
/// changes nothing. Ours: PROTOCOL 8.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InferenceFailed {
    /// The sender's UUID, or the beginning of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The request.
    pub inference_id: InferenceId,
    /// Wants an `ack` that carries it (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// What happened.
    pub data: InferenceFailedData,
}

/// Content of [`InferenceFailed`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InferenceFailedData {
    /// Why, for a person; names the field of `start_inference` where that is at fault.
    pub error: String,
    /// Whose it is: `bad_config` for a request that nobody could answer (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_kind: Option<FailureKind>,
}
