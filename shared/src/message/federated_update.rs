//! What a worker made of a round.

use serde::{Deserialize, Serialize};

use crate::ids::{FederatedSessionId, MessageId};
use crate::number;

/// `federated_update`: the round's result is stored.
///
/// Worker to platform, once for each round. A repeat is acknowledged and counts once. Ours:
/// PROTOCOL 8.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FederatedUpdate {
    /// The sender's UUID, or the beginning of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The session.
    pub session_id: FederatedSessionId,
    /// Wants an `ack` that carries it (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// The result.
    pub data: FederatedUpdateData,
}

/// Content of [`FederatedUpdate`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FederatedUpdateData {
    /// The round, from 1.
    #[serde(deserialize_with = "number::count")]
    pub round: u64,
    /// Examples that were trained on.
    #[serde(deserialize_with = "number::count")]
    pub num_examples: u64,
    /// Optimizer steps that were done.
    #[serde(deserialize_with = "number::count")]
    pub steps: u64,
    /// Mean loss over the round's labelled tokens, in nats.
    #[serde(
        default,
        deserialize_with = "number::metric",
        skip_serializing_if = "Option::is_none"
    )]
    pub loss: Option<f64>,
    /// Storage key of the adapter; with secure aggregation of the masked change.
    pub key: String,
    /// SHA-256 of the file, 64 lower-case hex digits.
    pub sha256: String,
    /// Length in bytes.
    #[serde(deserialize_with = "number::count")]
    pub size_bytes: u64,
    /// With secure aggregation: the attempt that the change is masked for.
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub attempt: Option<u64>,
}
