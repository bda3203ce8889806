//! A worker's drop-out from a round.

use serde::{Deserialize, Serialize};

use crate::FailureKind;
use crate::ids::{FederatedSessionId, MessageId};
use crate::number;

/// `federated_failed`: this worker has no result for the round, or cannot take part.
///
/// Worker to platform, once for each round. A repeat is acknowledged and changes nothing. Ours:
/// PROTOCOL 8.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FederatedFailed {
    /// The sender's UUID, or the beginning of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The session.
    pub session_id: FederatedSessionId,
    /// Wants an `ack` that carries it (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// What happened.
    pub data: FederatedFailedData,
}

/// Content of [`FederatedFailed`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FederatedFailedData {
    /// The round, from 1; missing when it failed before any.
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub round: Option<u64>,
    /// Why, for a person.
    pub error: String,
    /// Whose it is (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_kind: Option<FailureKind>,
}
