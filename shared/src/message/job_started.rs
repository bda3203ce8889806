//! The worker begins to train.

use serde::{Deserialize, Serialize};

use crate::ids::{JobId, MessageId};
use crate::number;

/// `job_started`: model and data are loaded, training begins.
///
/// Worker to platform, once for each attempt. A repeat is acknowledged and changes nothing. Source:
/// "job_started", which gives no fields: all of `data` is optional (PROTOCOL 7).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobStarted {
    /// The sender's UUID, or the beginning of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The job.
    pub job_id: JobId,
    /// Which attempt at the job, from 1, as in `start_training` (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Wants an `ack` that carries it (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// What the job came to.
    #[serde(default)]
    pub data: JobStartedData,
}

/// Content of [`JobStarted`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct JobStartedData {
    /// Optimizer steps that the job has.
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub total_steps: Option<u64>,
    /// Parameters that are trained.
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub trainable_parameters: Option<u64>,
    /// Parameters of the model with its adapter.
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub total_parameters: Option<u64>,
    /// Rows that are trained on.
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub dataset_examples: Option<u64>,
    /// Where it runs, as `cpu` or `cuda:0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Bad rows that were skipped.
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub skipped_rows: Option<u64>,
    /// Good rows without a token to train on.
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub dropped_rows: Option<u64>,
    /// Rows that were cut at `max_length`.
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub truncated_rows: Option<u64>,
}
