//! The platform's word that a message is safe.

use serde::{Deserialize, Serialize};

use crate::ids::MessageId;

/// `ack`: the message with this id is in the database, or was already.
///
/// Platform to worker, once for each message that carries a `message_id`. Repeats are harmless.
/// Ours: PROTOCOL 4.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ack {
    /// The id of the message that is acknowledged.
    pub message_id: MessageId,
}
