//! Secure aggregation, first stage: every worker makes keys.

use serde::{Deserialize, Serialize};

use crate::HexBytes;
use crate::ids::{FederatedSessionId, MessageId};
use crate::number;

/// `announce_keys`: make fresh keys and say the public ones.
///
/// Platform to worker, once for each attempt, again after a reconnect. To a repeat the worker answers the same. Ours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnnounceKeys {
    /// The session.
    pub session_id: FederatedSessionId,
    /// What for.
    pub data: AnnounceKeysData,
}

/// Content of [`AnnounceKeys`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnnounceKeysData {
    /// The round, from 1.
    #[serde(deserialize_with = "number::count")]
    pub round: u64,
    /// The try at summing the round's results: masks of one are of no use in another.
    #[serde(deserialize_with = "number::count")]
    pub attempt: u64,
}

/// `keys_announced`: the worker's public keys.
///
/// Worker to platform, once for each attempt. Repeats are harmless. Ours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeysAnnounced {
    /// The sender's UUID, or the beginning of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The session.
    pub session_id: FederatedSessionId,
    /// Wants an `ack` that carries it (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// The keys.
    pub data: KeysAnnouncedData,
}

/// Content of [`KeysAnnounced`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeysAnnouncedData {
    /// The round, from 1.
    #[serde(deserialize_with = "number::count")]
    pub round: u64,
    /// The try at summing the round's results: masks of one are of no use in another.
    #[serde(deserialize_with = "number::count")]
    pub attempt: u64,
    /// The keys.
    #[serde(flatten)]
    pub keys: MaskingKeys,
}

/// What everybody is told of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaskingKeys {
    /// X25519 key by which shares are sealed for it.
    pub sealing_key: HexBytes<32>,
    /// X25519 key by which masks are agreed on.
    pub masking_key: HexBytes<32>,
    /// SHA-256 of the seed of its own mask.
    pub seed_digest: HexBytes<32>,
}
