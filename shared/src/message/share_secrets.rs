//! Secure aggregation, second stage: every worker splits its secrets among all.

use serde::{Deserialize, Serialize};

use super::announce_keys::MaskingKeys;
use crate::HexBytes;
use crate::ids::{FederatedSessionId, MessageId};
use crate::number;

/// `share_secrets`: who takes part; split your secrets among them.
///
/// Platform to worker, once for each attempt, again after a reconnect. To a repeat the worker answers the same. Ours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShareSecrets {
    /// The session.
    pub session_id: FederatedSessionId,
    /// Among whom.
    pub data: ShareSecretsData,
}

/// Content of [`ShareSecrets`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShareSecretsData {
    /// The round, from 1.
    #[serde(deserialize_with = "number::count")]
    pub round: u64,
    /// The try at summing the round's results: masks of one are of no use in another.
    #[serde(deserialize_with = "number::count")]
    pub attempt: u64,
    /// Shares that put a secret together; more than half of the members.
    pub threshold: u8,
    /// Who takes part; the first is number 1.
    pub members: Vec<MaskingKeys>,
}

/// `secrets_shared`: the worker's shares for all others.
///
/// Worker to platform, once for each attempt. Repeats are harmless. Ours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SecretsShared {
    /// The sender's UUID, or the beginning of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The session.
    pub session_id: FederatedSessionId,
    /// Wants an `ack` that carries it (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// The shares.
    pub data: SecretsSharedData,
}

/// Content of [`SecretsShared`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SecretsSharedData {
    /// The round, from 1.
    #[serde(deserialize_with = "number::count")]
    pub round: u64,
    /// The try at summing the round's results: masks of one are of no use in another.
    #[serde(deserialize_with = "number::count")]
    pub attempt: u64,
    /// One for each other member.
    pub shares: Vec<ShareTo>,
}

/// Two shares on their way, which only their receiver can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareTo {
    /// Number of the member that they are for.
    pub to: u8,
    /// ChaCha20-Poly1305 over both shares.
    pub sealed: HexBytes<80>,
}
