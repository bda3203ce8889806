//! A worker's word that its result of a round is ready to be masked.

use serde::{Deserialize, Serialize};

use crate::ids::{FederatedSessionId, MessageId};
use crate::number;

/// `round_trained`: the round is trained; the result stays here until it can be masked.
///
/// Worker to platform, once for each round of a session with secure aggregation, again when the round is ordered again.
/// Repeats are harmless. Ours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoundTrained {
    /// The sender's UUID, or the beginning of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The session.
    pub session_id: FederatedSessionId,
    /// Wants an `ack` that carries it (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// What was trained.
    pub data: RoundTrainedData,
}

/// Content of [`RoundTrained`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoundTrainedData {
    /// The round, from 1.
    #[serde(deserialize_with = "number::count")]
    pub round: u64,
    /// Examples that were trained on.
    #[serde(deserialize_with = "number::count")]
    pub num_examples: u64,
    /// Optimizer steps that were done.
    #[serde(deserialize_with = "number::count")]
    pub steps: u64,
}
