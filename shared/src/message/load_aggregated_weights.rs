//! The new global adapter after a round.

use serde::{Deserialize, Serialize};

use crate::Secret;
use crate::ids::FederatedSessionId;
use crate::number;

/// `load_aggregated_weights`: load the global adapter of this round.
///
/// Platform to worker, once for each round. A repeat loads the same again: harmless. Source:
/// "Federated training messages"; fields: PROTOCOL 7.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadAggregatedWeights {
    /// The session.
    pub session_id: FederatedSessionId,
    /// The adapter.
    pub data: LoadAggregatedWeightsData,
}

/// Content of [`LoadAggregatedWeights`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadAggregatedWeightsData {
    /// The round that the adapter begins.
    #[serde(deserialize_with = "number::count")]
    pub round: u64,
    /// Where to fetch it: an absolute, signed URL.
    pub download_url: Secret,
    /// SHA-256 of the file, 64 lower-case hex digits.
    pub sha256: String,
    /// Length in bytes.
    #[serde(deserialize_with = "number::count")]
    pub size_bytes: u64,
}
