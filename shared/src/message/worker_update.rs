//! How a worker is, for dashboards.

use serde::{Deserialize, Serialize};

use crate::WorkerStatus;
use crate::ids::{JobId, WorkerId};
use crate::number;

/// `worker_update`: the worker's present state and load.
///
/// Platform to dashboards, at most once a second for each worker. The newest says all: repeats are
/// harmless. Source: "worker_update".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerUpdate {
    /// The worker's UUID.
    pub worker_id: String,
    /// The state.
    pub data: WorkerUpdateData,
}

/// Content of [`WorkerUpdate`]. The fields after `current_job_id` are ours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerUpdateData {
    /// What the worker does.
    pub status: WorkerStatus,
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
    /// The job that it runs; null for none.
    #[serde(default)]
    pub current_job_id: Option<JobId>,
    /// The worker's number in the API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<WorkerId>,
    /// The worker's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it does in words, as `Epoch 2/3, step 1500/3000`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_message: Option<String>,
}

impl WorkerUpdateData {
    /// An update that says nothing but what the worker does.
    pub const fn of(status: WorkerStatus) -> Self {
        Self {
            status,
            gpu_utilization: None,
            gpu_memory_used: None,
            gpu_memory_total: None,
            cpu_utilization: None,
            ram_used: None,
            ram_total: None,
            current_job_id: None,
            id: None,
            name: None,
            status_message: None,
        }
    }
}
