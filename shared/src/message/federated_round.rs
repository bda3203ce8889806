//! How a federated session goes on, for dashboards.

use serde::{Deserialize, Serialize};

use crate::ids::FederatedSessionId;
use crate::number;

/// `federated_round`: a round began, got a result or closed.
///
/// Platform to dashboards, at each such change. The newest says all: repeats are harmless. Ours:
/// PROTOCOL 9.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FederatedRound {
    /// The session.
    pub session_id: FederatedSessionId,
    /// Where it stands.
    pub data: FederatedRoundData,
}

/// Content of [`FederatedRound`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FederatedRoundData {
    /// The round, from 1.
    #[serde(deserialize_with = "number::count")]
    pub round: u64,
    /// Rounds of the session.
    #[serde(deserialize_with = "number::count")]
    pub total_rounds: u64,
    /// `waiting` (for workers), `open`, `merging`, `closed`; at the session's end `finished`, `stopped` or `failed`.
    pub status: String,
    /// Results so far.
    #[serde(deserialize_with = "number::count")]
    pub updates: u64,
    /// Results that close the round before its time.
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub needed: Option<u64>,
    /// Why the round does not go on, for a person; missing while it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_because: Option<String>,
    /// Mean of the results' losses, in nats.
    #[serde(
        default,
        deserialize_with = "number::metric",
        skip_serializing_if = "Option::is_none"
    )]
    pub loss: Option<f64>,
}
