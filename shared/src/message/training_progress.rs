//! What one optimizer step came to.

use serde::{Deserialize, Serialize};

use crate::ids::JobId;
use crate::number;

/// `training_progress`: the metrics of one optimizer step.
///
/// Worker to platform, once for each step. Not acknowledged. A repeat of a step is dropped, a late one
/// is put in its place (PROTOCOL 4). Source: "training_progress".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainingProgress {
    /// The sender's UUID, or the beginning of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The job.
    pub job_id: JobId,
    /// Which attempt at the job, from 1, as in `start_training` (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// The metrics.
    pub data: TrainingProgressData,
}

/// Content of [`TrainingProgress`]. A metric that is not finite is null and read as `Some(NaN)`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainingProgressData {
    /// Epoch that the step belongs to, from 1.
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub epoch: Option<u64>,
    /// Optimizer step, from 1.
    #[serde(deserialize_with = "number::count")]
    pub step: u64,
    /// Steps that the whole job has.
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub total_steps: Option<u64>,
    /// Mean loss over the step's labelled tokens, in nats.
    #[serde(
        default,
        deserialize_with = "number::metric",
        skip_serializing_if = "Option::is_none"
    )]
    pub loss: Option<f64>,
    /// The learning rate that the step used.
    #[serde(
        default,
        deserialize_with = "number::metric",
        skip_serializing_if = "Option::is_none"
    )]
    pub learning_rate: Option<f64>,
    /// L2 norm of the gradient before clipping.
    #[serde(
        default,
        deserialize_with = "number::metric",
        skip_serializing_if = "Option::is_none"
    )]
    pub grad_norm: Option<f64>,
    /// Examples a second.
    #[serde(
        default,
        deserialize_with = "number::metric",
        skip_serializing_if = "Option::is_none"
    )]
    pub throughput: Option<f64>,
    /// e to the power of the loss.
    #[serde(
        default,
        deserialize_with = "number::metric",
        skip_serializing_if = "Option::is_none"
    )]
    pub perplexity: Option<f64>,
    /// Tokens a second.
    #[serde(
        default,
        deserialize_with = "number::metric",
        serialize_with = "number::shortest",
        skip_serializing_if = "Option::is_none"
    )]
    pub token_throughput: Option<f64>,
    /// Exponential moving average of the loss.
    #[serde(
        default,
        deserialize_with = "number::metric",
        skip_serializing_if = "Option::is_none"
    )]
    pub loss_ema: Option<f64>,
    /// Use of the GPU, in percent.
    #[serde(
        default,
        deserialize_with = "number::metric",
        serialize_with = "number::shortest",
        skip_serializing_if = "Option::is_none"
    )]
    pub gpu_utilization: Option<f64>,
    /// Memory of the GPU in use, in GB.
    #[serde(
        default,
        deserialize_with = "number::metric",
        skip_serializing_if = "Option::is_none"
    )]
    pub gpu_memory_used: Option<f64>,
    /// Use of the processor, in percent of all its cores.
    #[serde(
        default,
        deserialize_with = "number::metric",
        skip_serializing_if = "Option::is_none"
    )]
    pub cpu_utilization: Option<f64>,
    /// Memory in use, in GB.
    #[serde(
        default,
        deserialize_with = "number::metric",
        skip_serializing_if = "Option::is_none"
    )]
    pub ram_used: Option<f64>,
    /// Mean loss over the rows kept for evaluation, measured after this step, in nats (ours).
    #[serde(
        default,
        deserialize_with = "number::metric",
        skip_serializing_if = "Option::is_none"
    )]
    pub eval_loss: Option<f64>,
    /// e to the power of `eval_loss` (ours).
    #[serde(
        default,
        deserialize_with = "number::metric",
        skip_serializing_if = "Option::is_none"
    )]
    pub eval_perplexity: Option<f64>,
    /// Sequences in one micro-batch as it runs, which may be fewer than the config asks for (ours).
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub micro_batch_size: Option<u64>,
    /// Micro-batches in one optimizer step as it runs (ours).
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub gradient_accumulation_steps: Option<u64>,
    /// Time to the job's end at the present pace, in seconds.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "number::shortest"
    )]
    pub eta_seconds: Option<f64>,
}
