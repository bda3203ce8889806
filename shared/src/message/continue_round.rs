//! The next round's start.

use serde::{Deserialize, Serialize};

use super::parts::UploadTarget;
use crate::ids::FederatedSessionId;
use crate::number;

/// `continue_round`: train this round.
///
/// Platform to worker, once for each round. A repeat of the same round starts nothing twice. Source:
/// "Federated training messages"; fields: PROTOCOL 7.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContinueRound {
    /// The session.
    pub session_id: FederatedSessionId,
    /// The round.
    pub data: ContinueRoundData,
}

/// Content of [`ContinueRound`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContinueRoundData {
    /// The round to train, from 1.
    #[serde(deserialize_with = "number::count")]
    pub round: u64,
    /// Where its result goes.
    pub upload: UploadTarget,
    /// When the round closes: RFC 3339, UTC. Only shown; the platform keeps the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
}
