//! How loaded a worker's machine is.

use serde::{Deserialize, Serialize};

use crate::WorkerStatus;
use crate::number;

/// `worker_metrics`: utilisation of the worker's machine.
///
/// Worker to platform, every 5 s (`METRICS_INTERVAL`). Only the newest matters; repeats are harmless.
/// Source: "worker_metrics".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerMetrics {
    /// The sender's UUID, or the beginning of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The figures.
    pub data: WorkerMetricsData,
}

/// Content of [`WorkerMetrics`]. What a machine does not have is missing or null.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerMetricsData {
    /// Use of the GPU, in percent.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "number::shortest"
    )]
    pub gpu_utilization: Option<f64>,
    /// Memory of the GPU in use, in GB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_memory_used: Option<f64>,
    /// Memory of the GPU, in GB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_memory_total: Option<f64>,
    /// Use of the processor, in percent of all its cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_utilization: Option<f64>,
    /// Memory in use, in GB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ram_used: Option<f64>,
    /// Memory of the machine, in GB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ram_total: Option<f64>,
    /// What the worker does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<WorkerStatus>,
    /// The same in words, as `Epoch 2/3, step 1500/3000`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_message: Option<String>,
}
