//! A chat to continue, and the request to stop doing so.

use serde::{Deserialize, Serialize};

use super::parts::{ChatMessage, DownloadUrl};
use crate::ids::InferenceId;
use crate::number;

/// `start_inference`: continue this chat.
///
/// Platform to worker, once for each request. A repeat starts nothing twice. Source:
/// "start_inference"; the sampling options beyond temperature are ours (PROTOCOL 11).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StartInference {
    /// The request.
    pub inference_id: InferenceId,
    /// What to generate.
    pub data: StartInferenceData,
}

/// Content of [`StartInference`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StartInferenceData {
    /// Where the adapter is stored, as `models/job-123/final/`; null for the base model alone.
    #[serde(default)]
    pub model_path: Option<String>,
    /// The base model's name at the hub.
    pub huggingface_id: String,
    /// The adapter's files.
    #[serde(default)]
    pub download_urls: Vec<DownloadUrl>,
    /// The chat so far.
    pub messages: Vec<ChatMessage>,
    /// Put before the chat as its system message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// Sampling temperature; 0 is greedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Most tokens to generate.
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub max_tokens: Option<u64>,
    /// Whether tokens are sent as they come (`inference_tokens`).
    #[serde(default)]
    pub stream: bool,
    /// Sample from the smallest set of tokens with this probability together (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// Sample from this many most likely tokens (ours).
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub top_k: Option<u64>,
    /// Tokens that stand already are made less likely by this factor (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f64>,
    /// Seed of the sampling (ours).
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub seed: Option<u64>,
    /// Texts that end the answer (ours).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
}

/// `stop_inference`: the answer is no longer wanted.
///
/// Platform to worker, once for each request. Repeats are harmless. Ours: PROTOCOL 8.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StopInference {
    /// The request.
    pub inference_id: InferenceId,
}
