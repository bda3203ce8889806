//! What every task needs of the worker.

use std::path::PathBuf;

use trainyard_shared::WorkerType;

use super::base_model::ModelSource;
use super::loaded::LoadedModels;
use super::locks::PlaceLocks;
use crate::config::Device;
use crate::connection::Reports;
use crate::platform_files::PlatformFiles;

/// What every task needs of the worker. Cheap to clone.
#[derive(Debug, Clone)]
pub struct TaskContext {
    /// The way to the platform.
    pub reports: Reports,
    /// The platform's files.
    pub files: PlatformFiles,
    /// Base models on disk.
    pub models: ModelSource,
    /// Base models in memory, for answers and evaluations.
    pub loaded: LoadedModels,
    /// Who fetches what just now.
    pub locks: PlaceLocks,
    /// Data sets, adapters and the jobs' own folders lie in it.
    pub state_dir: PathBuf,
    /// What computes.
    pub device: Device,
    /// What the worker takes.
    pub worker_type: WorkerType,
}
