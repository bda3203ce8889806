//! What a worker can do.

use serde::{Deserialize, Serialize};

use crate::WorkerType;
use crate::number;

/// `worker_register`: hardware and benchmark, after `authenticated`.
///
/// Worker to platform, once for each connection, within a minute. A repeat replaces what was said
/// before. Source: "Registration (after auth)".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerRegister {
    /// The sender's UUID, or the beginning of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// What the worker is.
    pub data: WorkerRegisterData,
}

/// Content of [`WorkerRegister`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerRegisterData {
    /// Whether there is a GPU that training can use.
    #[serde(default)]
    pub gpu_available: bool,
    /// The GPU's name; none without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_name: Option<String>,
    /// The GPU's memory in GB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_memory_gb: Option<f64>,
    /// The largest batch that the worker wants to be given, in sequences.
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub max_batch_size: Option<u64>,
    /// What work it takes.
    #[serde(default)]
    pub worker_type: WorkerType,
    /// What it measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub benchmark: Option<Benchmark>,
    /// The processor's name (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_name: Option<String>,
    /// Physical cores (ours).
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub cpu_cores: Option<u64>,
    /// The machine's memory in GB (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ram_total_gb: Option<f64>,
    /// Operating system, as a person would say it (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os: Option<String>,
    /// The worker program's version (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_version: Option<String>,
    /// Base models in its models directory, by their hub name (ours).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
}

/// What a worker measured about itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Benchmark {
    /// One figure to compare workers by: higher is faster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_score: Option<f64>,
    /// Matrix multiplication, in 10^12 floating-point operations a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tflops: Option<f64>,
    /// Copying in memory, in 10^9 bytes a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bandwidth_gbps: Option<f64>,
    /// The largest batch that was tried and fitted, in sequences.
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub max_batch_size_tested: Option<u64>,
    /// Which benchmark: figures of different versions do not compare.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub benchmark_version: Option<String>,
    /// How long it took, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub benchmark_duration_seconds: Option<f64>,
    /// Whether the figures are derived from the hardware's name instead of measured.
    #[serde(default)]
    pub is_estimated: bool,
}
