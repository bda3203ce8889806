//! How a job stands, for dashboards.

use serde::{Deserialize, Serialize};

use crate::ids::JobId;
use crate::number;
use crate::{FailureKind, JobStatus};

/// `job_update`: the job's present state and newest metrics.
///
/// Platform to dashboards: on `subscribe_job`, then at every change; a slow reader gets the newest
/// only. Each one says all it names: repeats are harmless. Source: "job_update".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobUpdate {
    /// The job.
    pub job_id: JobId,
    /// The state.
    pub data: JobUpdateData,
}

/// Content of [`JobUpdate`]; the metrics are those of [`super::TrainingProgressData`]. The fields from
/// `attempt` on are ours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobUpdateData {
    /// Where the job stands.
    pub status: JobStatus,
    /// Epoch of the newest step, from 1.
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub epoch: Option<u64>,
    /// Newest optimizer step.
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub step: Option<u64>,
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
    /// Mean loss over the rows kept for evaluation, as it was measured last, in nats (ours).
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
    /// Sequences in one micro-batch as it runs (ours).
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
    /// Which attempt, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Whether the job runs on a worker whose connection is lost for the moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub awaiting_worker: Option<bool>,
    /// Why a queued job waits, for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_because: Option<String>,
    /// Why an attempt that follows another begins anew instead of going on from a checkpoint, for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begins_anew_because: Option<String>,
    /// Whose the failure is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_kind: Option<FailureKind>,
    /// Why it failed, for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl JobUpdateData {
    /// An update that says nothing but where the job stands.
    pub const fn of(status: JobStatus) -> Self {
        Self {
            status,
            epoch: None,
            step: None,
            total_steps: None,
            loss: None,
            learning_rate: None,
            grad_norm: None,
            throughput: None,
            perplexity: None,
            token_throughput: None,
            loss_ema: None,
            gpu_utilization: None,
            gpu_memory_used: None,
            cpu_utilization: None,
            ram_used: None,
            eval_loss: None,
            eval_perplexity: None,
            micro_batch_size: None,
            gradient_accumulation_steps: None,
            eta_seconds: None,
            attempt: None,
            awaiting_worker: None,
            waiting_because: None,
            begins_anew_because: None,
            failure_kind: None,
            error: None,
        }
    }
}
