//! How far an evaluation is.

use serde::{Deserialize, Serialize};

use super::parts::TaskProgressData;
use crate::ids::EvaluationId;

/// `evaluation_progress`: so much is done.
///
/// Worker to platform and on to dashboards, at most once a second. Only the newest matters. Ours:
/// PROTOCOL 8.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvaluationProgress {
    /// The sender's UUID, or the beginning of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The evaluation.
    pub evaluation_id: EvaluationId,
    /// How far.
    pub data: TaskProgressData,
}
