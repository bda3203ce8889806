//! A piece of an answer.

use serde::{Deserialize, Serialize};

use crate::ids::InferenceId;

/// `inference_tokens`: tokens as they come.
///
/// Worker to platform and on to dashboards, in batches of five tokens or 50 ms. Order matters and a
/// repeat shows the text twice: never sent again. Source: "inference_tokens".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InferenceTokens {
    /// The sender's UUID, or the beginning of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The request.
    pub inference_id: InferenceId,
    /// The tokens.
    pub data: InferenceTokensData,
}

/// Content of [`InferenceTokens`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct InferenceTokensData {
    /// Text of each token; joined they are the answer's next piece.
    pub tokens: Vec<String>,
}
