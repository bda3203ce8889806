//! What every task needs of the worker.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;
use trainyard_shared::WorkerType;

use super::base_model::ModelSource;
use super::loaded::LoadedModels;
use super::locks::PlaceLocks;
use super::transfers::TransferError;
use crate::config::Device;
use crate::connection::Reports;
use crate::engine::data::TokenCache;
use crate::platform_files::PlatformFiles;
use crate::state_dir::JOBS;

/// Folder of tokenised data sets in the state directory.
pub const TOKENS: &str = "tokens";

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
    /// Bytes that tokenised data sets may take up in it.
    pub token_cache_bytes: u64,
    /// What computes.
    pub device: Device,
    /// What the worker takes.
    pub worker_type: WorkerType,
}

impl TaskContext {
    /// A folder that is gone with the value, and after a crash with the next start of the worker.
    ///
    /// # Errors
    ///
    /// The disk refuses.
    pub(super) fn own_folder(&self, prefix: &str) -> Result<TempDir, TransferError> {
        let jobs = self.state_dir.join(JOBS);
        fs::create_dir_all(&jobs).map_err(|source| TransferError::io("create", &jobs, source))?;
        TempDir::with_prefix_in(prefix, &jobs)
            .map_err(|source| TransferError::io("create a folder in", &jobs, source))
    }

    /// Where tokenised data sets are kept.
    pub fn token_cache(&self) -> TokenCache {
        TokenCache::new(self.state_dir.join(TOKENS)).with_limit(self.token_cache_bytes)
    }
}
