//! A whole worker, wired top to bottom, until it is told to end.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use tokio::time::timeout;
use trainyard_shared::message::WorkerRegisterData;

use crate::config::WorkerConfig;
use crate::connection::identity::{IdentityError, IdentityFile};
use crate::connection::outbox::{Outbox, OutboxError};
use crate::connection::{Connection, Leave, Parts, Reports, SharedActivity, WaitingTokens};
use crate::hardware::benchmark::{self, Measured};
use crate::hardware::{Machine, free_memory_bytes, rounded};
use crate::platform_files::{PlatformFiles, SharedKey};
use crate::state_dir::{StateDir, StateDirError};
use crate::tasks::TaskContext;
use crate::tasks::base_model::{ModelSource, installed};
use crate::tasks::loaded::LoadedModels;
use crate::tasks::locks::PlaceLocks;
use crate::tasks::transfers::{Http, RetryPolicy};
use crate::tasks::{FinishTasks, Tasks};

/// After the running job's end, what is still undelivered has this long before it has to wait for the
/// next start.
const LAST_DELIVERY: Duration = Duration::from_secs(10);
/// For the platform to answer the close.
const LAST_WORD: Duration = Duration::from_secs(5);

/// Why a worker cannot run at all. What goes wrong later is logged and tried again.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The state directory.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// The identity in it.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The outbox in it.
    #[error(transparent)]
    Outbox(#[from] OutboxError),
    /// There is no key to show.
    #[error("this worker has not enrolled yet: set WORKER_KEY to an enrolment key (enroll_…)")]
    NoKey,
    /// The file of a private authority.
    #[error(transparent)]
    CaFile(#[from] crate::tls::CaFileError),
    /// TLS cannot be set up.
    #[error("http client: {0}")]
    Http(#[from] reqwest::Error),
}

/// Runs a worker until `shutdown` is ready, then stops its job (which saves a checkpoint), delivers
/// what it can and closes the connection.
///
/// Must be called inside an actix system; the connection's actor runs on the caller's thread, training
/// on threads of its own.
///
/// # Errors
///
/// The worker cannot be started.
pub async fn run(
    config: WorkerConfig,
    shutdown: impl Future<Output = ()>,
) -> Result<(), WorkerError> {
    let state_dir = StateDir::open(&config.state_dir)?;
    let identity = IdentityFile::open(state_dir.path())?;
    if identity.identity().api_key.is_none() && config.worker_key.is_none() {
        return Err(WorkerError::NoKey);
    }
    let outbox = Arc::new(Outbox::open(&state_dir.path().join("outbox"))?);
    if !config.platform.is_encrypted() && !config.platform.is_loopback() {
        tracing::warn!(platform.url = %config.platform, "the connection is not encrypted: keys and data can be read on the way");
    }
    let mut shutdown = std::pin::pin!(shutdown);
    let measured = tokio::select! {
        measured = benchmark::cached_or_measured(state_dir.path(), config.benchmark_budget) => measured,
        () = &mut shutdown => return Ok(()),
    };

    let worker = start(
        &config,
        &identity_key(&config, &identity),
        identity,
        outbox.clone(),
        measured,
    )?;
    shutdown.await;
    tracing::info!("the worker ends");
    if timeout(config.shutdown_grace, worker.tasks.send(FinishTasks))
        .await
        .is_err()
    {
        tracing::warn!(
            grace_seconds = config.shutdown_grace.as_secs_f64(),
            "the running job did not end in time"
        );
    }
    if timeout(LAST_DELIVERY, outbox.emptied()).await.is_err() {
        tracing::warn!("undelivered messages are kept for the next start");
    }
    // An actor that does not answer any more has nothing to close.
    let _ = timeout(LAST_WORD, worker.connection.send(Leave)).await;
    drop(state_dir);
    Ok(())
}

/// The actors of a running worker.
struct Running {
    connection: Addr<Connection>,
    tasks: Addr<Tasks>,
}

fn start(
    config: &WorkerConfig,
    key: &SharedKey,
    identity: IdentityFile,
    outbox: Arc<Outbox>,
    measured: Measured,
) -> Result<Running, WorkerError> {
    let tls = match &config.platform_ca_file {
        Some(file) => crate::tls::client_config_with(file)?,
        None => crate::tls::client_config(),
    };
    let http = Http::trusting(RetryPolicy::default(), &tls)?;
    let files = PlatformFiles::new(http.clone(), config.platform.clone(), key.clone());
    let activity = SharedActivity::default();
    let connecting = Context::<Connection>::new();
    let tokens = WaitingTokens::default();
    let reports = Reports::new(
        outbox.clone(),
        activity.clone(),
        tokens.clone(),
        connecting.address(),
    );
    let context = TaskContext {
        reports,
        files: files.clone(),
        models: ModelSource::new(config.models.clone(), http),
        loaded: LoadedModels::new(free_memory_bytes),
        locks: PlaceLocks::default(),
        state_dir: config.state_dir.clone(),
        token_cache_bytes: config.token_cache_bytes,
        device: config.device,
        worker_type: config.worker_type,
    };
    let tasks = Tasks::new(context, outbox.undelivered_ends()).start();
    let connection = connecting.run(Connection::new(Parts {
        hardware: registration(config, measured),
        identity,
        key: key.clone(),
        outbox,
        activity,
        tokens,
        files,
        tasks: tasks.clone().recipient(),
        tls: Arc::new(tls),
        config: config.clone(),
    }));
    Ok(Running { connection, tasks })
}

/// The key that transfers show until the connection says otherwise.
fn identity_key(config: &WorkerConfig, identity: &IdentityFile) -> SharedKey {
    let key = SharedKey::default();
    let known = identity
        .identity()
        .api_key
        .clone()
        .or_else(|| config.worker_key.clone());
    if let Some(known) = known {
        key.set(known);
    }
    key
}

fn registration(config: &WorkerConfig, measured: Measured) -> WorkerRegisterData {
    let Machine {
        cpu_name,
        cpu_cores,
        ram_total_gb,
        os,
        gpu,
    } = measured.machine;
    WorkerRegisterData {
        // There may be a GPU, but this version does not train on it.
        gpu_available: false,
        gpu_name: gpu.as_ref().map(|gpu| gpu.name.clone()),
        gpu_memory_gb: gpu.as_ref().map(|gpu| gpu.memory_gb),
        max_batch_size: measured.benchmark.max_batch_size_tested,
        worker_type: config.worker_type,
        benchmark: Some(measured.benchmark),
        cpu_name: Some(cpu_name),
        cpu_cores: Some(cpu_cores),
        ram_total_gb: Some(rounded(ram_total_gb)),
        os: Some(os),
        worker_version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        models: installed(&config.models.models_dir),
    }
}
