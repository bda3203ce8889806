//! Secure aggregation, last stage: what takes the masks off the sum.

use serde::{Deserialize, Serialize};

use crate::HexBytes;
use crate::ids::{FederatedSessionId, MessageId};
use crate::number;

/// `reveal_shares`: whose masked changes are summed; reveal the shares that take the masks off the sum.
///
/// Platform to worker, once for each attempt, again after a reconnect. To a repeat the worker answers the same; by another
/// list it reveals nothing. Ours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RevealShares {
    /// The session.
    pub session_id: FederatedSessionId,
    /// Of whom.
    pub data: RevealSharesData,
}

/// Content of [`RevealShares`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RevealSharesData {
    /// The round, from 1.
    #[serde(deserialize_with = "number::count")]
    pub round: u64,
    /// The try at summing the round's results: masks of one are of no use in another.
    #[serde(deserialize_with = "number::count")]
    pub attempt: u64,
    /// Numbers of the members whose masked changes have arrived.
    pub arrived: Vec<u8>,
}

/// `shares_revealed`: shares of the seeds of those that have arrived, and of the masking keys of the others.
///
/// Worker to platform, once for each attempt. Repeats are harmless. Ours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SharesRevealed {
    /// The sender's UUID, or the beginning of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The session.
    pub session_id: FederatedSessionId,
    /// Wants an `ack` that carries it (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// The shares.
    pub data: SharesRevealedData,
}

/// Content of [`SharesRevealed`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SharesRevealedData {
    /// The round, from 1.
    #[serde(deserialize_with = "number::count")]
    pub round: u64,
    /// The try at summing the round's results: masks of one are of no use in another.
    #[serde(deserialize_with = "number::count")]
    pub attempt: u64,
    /// Of the seeds of those that have arrived.
    pub seeds: Vec<RevealedShare>,
    /// Of the masking keys of the others that take part.
    pub keys: Vec<RevealedShare>,
}

/// A share in clear.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevealedShare {
    /// Number of the member whose secret it is of.
    pub of: u8,
    /// The share.
    pub share: HexBytes<32>,
}
