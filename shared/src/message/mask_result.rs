//! Secure aggregation, third stage: every worker masks its change and sends it.

use serde::{Deserialize, Serialize};

use super::parts::UploadTarget;
use crate::HexBytes;
use crate::ids::{FederatedSessionId, MessageId};
use crate::number;

/// `mask_result`: the shares of the others; mask your change against them and send it as a `federated_update`.
///
/// Platform to worker, once for each attempt, again after a reconnect. A repeat masks nothing twice. Ours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MaskResult {
    /// The session.
    pub session_id: FederatedSessionId,
    /// By what.
    pub data: MaskResultData,
}

/// Content of [`MaskResult`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MaskResultData {
    /// The round, from 1.
    #[serde(deserialize_with = "number::count")]
    pub round: u64,
    /// The try at summing the round's results: masks of one are of no use in another.
    #[serde(deserialize_with = "number::count")]
    pub attempt: u64,
    /// Those who take part: their shares for this worker.
    pub shares: Vec<ShareFrom>,
    /// The change is multiplied with the worker's number of examples divided by this before it is masked; taken as it
    /// is when missing.
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub examples_divisor: Option<u64>,
    /// Where the masked change goes.
    pub upload: UploadTarget,
}

/// Two shares that arrive, which only this worker can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareFrom {
    /// Number of the member whose secrets they are of.
    pub from: u8,
    /// ChaCha20-Poly1305 over both shares.
    pub sealed: HexBytes<80>,
}

/// `masking_failed`: the worker cannot go on with the attempt; its result is as good as before.
///
/// Worker to platform, once for each attempt. Repeats are harmless. Ours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MaskingFailed {
    /// The sender's UUID, or the beginning of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The session.
    pub session_id: FederatedSessionId,
    /// Wants an `ack` that carries it (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// What happened.
    pub data: MaskingFailedData,
}

/// Content of [`MaskingFailed`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MaskingFailedData {
    /// The round, from 1.
    #[serde(deserialize_with = "number::count")]
    pub round: u64,
    /// The try at summing the round's results: masks of one are of no use in another.
    #[serde(deserialize_with = "number::count")]
    pub attempt: u64,
    /// Why, for a person.
    pub error: String,
    /// Number of the member whose shares cannot be used, where it is that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because_of: Option<u8>,
}
