//! A model to measure, and the request to stop doing so.

use serde::{Deserialize, Serialize};

use super::parts::{BaseModel, DatasetSource, DownloadUrl};
use crate::ids::EvaluationId;
use crate::number;

/// `start_evaluation`: measure this model on this data.
///
/// Platform to worker, once for each evaluation. A repeat starts nothing twice. Source:
/// "start_evaluation"; the fields after `metrics` are ours (PROTOCOL 11).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StartEvaluation {
    /// The evaluation.
    pub evaluation_id: EvaluationId,
    /// What to measure.
    pub data: StartEvaluationData,
}

/// Content of [`StartEvaluation`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StartEvaluationData {
    /// Where the adapter is stored, as `models/job-123/final/`; null for the base model alone.
    #[serde(default)]
    pub model_url: Option<String>,
    /// Where the data is stored, as `datasets/43/eval.jsonl`.
    pub dataset_url: String,
    /// What to measure, as `perplexity`.
    pub metrics: Vec<String>,
    /// The model below the adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_model: Option<BaseModel>,
    /// The adapter's files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub download_urls: Vec<DownloadUrl>,
    /// The data, as in `start_training`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<DatasetSource>,
    /// Sequences at a time.
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub batch_size: Option<u64>,
    /// Longest sequence, in tokens.
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub max_length: Option<u64>,
}

/// `stop_evaluation`: the result is no longer wanted.
///
/// Platform to worker, once for each evaluation. Repeats are harmless. Ours: PROTOCOL 8.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StopEvaluation {
    /// The evaluation.
    pub evaluation_id: EvaluationId,
}
