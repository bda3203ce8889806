//! A worker's word that it has the global adapter.

use serde::{Deserialize, Serialize};

use crate::ids::FederatedSessionId;
use crate::number;

/// `weights_loaded`: the adapter of `load_aggregated_weights` is loaded.
///
/// Worker to platform, once for each round. Repeats are harmless. Ours: PROTOCOL 8.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WeightsLoaded {
    /// The sender's UUID, or the beginning of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The session.
    pub session_id: FederatedSessionId,
    /// Which adapter.
    pub data: WeightsLoadedData,
}

/// Content of [`WeightsLoaded`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WeightsLoadedData {
    /// The round that the adapter begins.
    #[serde(deserialize_with = "number::count")]
    pub round: u64,
}
