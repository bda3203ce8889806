//! The first global adapter of a session: a fresh one for a base model, or the one that a job has made.

use std::path::{Path, PathBuf};

use futures_util::StreamExt;
use serde_json::Value;
use trainyard_aggregation::{GlobalAdapter, check};
use trainyard_engine::EngineError;
use trainyard_engine::adapter::{self, AdapterConfig};
use trainyard_engine::model::ModelConfig;
use trainyard_engine::weights::ModelDescription;
use trainyard_shared::ids::FederatedSessionId;
use trainyard_worker::tasks::base_model::ModelUnavailable;

use super::keys;
use super::merging::content_of;
use crate::actors::Actors;
use crate::models::target::AdapterFile;
use crate::storage::{StorageError, StoredObject};

/// Largest fresh adapter.
const MAX_ADAPTER_BYTES: u64 = 1 << 30;
/// Largest `adapter_config.json`.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// The first global adapter, stored.
#[derive(Debug, Clone, PartialEq)]
pub struct FirstAdapter {
    /// The content of its `adapter_config.json`.
    pub config: Value,
    /// Its weights.
    pub weights: StoredObject,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum BeginningError {
    /// The base model is not to be had.
    #[error("{}", .0.for_others())]
    Model(#[from] ModelUnavailable),
    /// The engine cannot do it, for a reason that names the file or the field.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// What a job has made cannot be trained further in rounds.
    #[error("{0}")]
    Unfit(String),
    /// The object store.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The folder for files on their way.
    #[error("files on their way: {0}")]
    Scratch(#[from] std::io::Error),
}

/// Makes a fresh adapter (A by the seed, B zero) with the shapes of the base model's config, and stores it as the
/// one with which round 0 begins.
///
/// # Errors
/// [`BeginningError`].
pub async fn fresh_adapter(
    actors: &Actors,
    session: FederatedSessionId,
    model: &Path,
    config: AdapterConfig,
    seed: u64,
) -> Result<FirstAdapter, BeginningError> {
    let folder = actors.scratch.folder()?;
    let (model, into) = (model.to_owned(), folder.path().to_owned());
    let json = blocking(move || {
        let model = ModelDescription::open(&model)?.config;
        refuse_too_large(&config, &model)?;
        let adapter = adapter::fresh(&config, &model, seed)?;
        adapter::save(&into, &adapter, &config, &model)?;
        config
            .to_json(&model)
            .map_err(|message| EngineError::InvalidSetting {
                field: "target_modules",
                message,
            })
    })
    .await?;
    store(actors, session, folder.path().join(keys::WEIGHTS), json).await
}

/// It is built in memory, and every round moves it.
fn refuse_too_large(config: &AdapterConfig, model: &ModelConfig) -> Result<(), EngineError> {
    let invalid = |message: String| EngineError::InvalidSetting {
        field: "lora",
        message,
    };
    let targets = config.targets(model).map_err(invalid)?;
    let sizes = targets.iter().map(|target| {
        let [outputs, inputs] = model.projection_shape(target.projection);
        4 * target.rank as u64 * (outputs as u64 + inputs as u64)
    });
    let bytes: u64 = sizes.sum();
    if bytes > MAX_ADAPTER_BYTES {
        let message = format!(
            "the adapter would have {} MiB, at most {} are allowed: choose a lower rank or fewer layers",
            bytes >> 20,
            MAX_ADAPTER_BYTES >> 20
        );
        return Err(invalid(message));
    }
    Ok(())
}

/// Takes the adapter that a job has made as the one with which round 0 begins.
///
/// # Errors
/// [`BeginningError::Unfit`] where it has no weights or no readable config.
pub async fn adapter_of_job(
    actors: &Actors,
    session: FederatedSessionId,
    files: &[AdapterFile],
) -> Result<FirstAdapter, BeginningError> {
    let named = |name: &str| {
        let file = files.iter().find(|file| file.name == name);
        file.ok_or_else(|| BeginningError::Unfit(format!("the job's adapter has no {name}")))
    };
    let config = read_config(actors, named(adapter::ADAPTER_CONFIG)?).await?;
    let source = named(keys::WEIGHTS)?;
    let weights = keys::weights(session, 0);
    let stored = super::publish::copy(actors, &source.key, &weights).await?;
    if stored.sha256 != source.sha256 {
        let message = "the job's adapter is not any more what the job stored";
        return Err(BeginningError::Unfit(message.to_owned()));
    }
    let file = actors
        .scratch
        .local(actors.storage.as_ref(), &weights)
        .await?;
    let checked = tokio::task::spawn_blocking(move || {
        let unfit = |error: &dyn std::fmt::Display| {
            BeginningError::Unfit(format!("the job's adapter cannot be merged: {error}"))
        };
        let global = GlobalAdapter::open(file.path()).map_err(|error| unfit(&error))?;
        // Against itself: the same tensors, and every value finite.
        check(file.path(), &global, None).map_err(|error| unfit(&error))
    });
    checked.await.map_err(std::io::Error::other)??;
    Ok(FirstAdapter {
        config,
        weights: stored,
    })
}

async fn read_config(actors: &Actors, file: &AdapterFile) -> Result<Value, BeginningError> {
    let unfit = |reason: String| BeginningError::Unfit(format!("adapter_config.json: {reason}"));
    if file.size_bytes > MAX_CONFIG_BYTES {
        return Err(unfit("it is too large".to_owned()));
    }
    let mut object = actors.storage.open(&file.key, None).await?;
    let mut bytes = Vec::new();
    while let Some(chunk) = object.chunks.next().await {
        bytes.extend_from_slice(&chunk?);
    }
    let text = String::from_utf8(bytes).map_err(|error| unfit(error.to_string()))?;
    let json = trainyard_shared::json::parse(&text).map_err(|error| unfit(error.to_string()))?;
    AdapterConfig::from_json(&json).map_err(unfit)?;
    Ok(json)
}

async fn store(
    actors: &Actors,
    session: FederatedSessionId,
    file: PathBuf,
    config: Value,
) -> Result<FirstAdapter, BeginningError> {
    let weights = content_of(file.clone()).await?;
    let key = keys::weights(session, 0);
    actors.storage.put_file(&key, &file, &weights).await?;
    Ok(FirstAdapter { config, weights })
}

/// Runs the engine's work on a thread for it.
///
/// # Errors
/// Those of the work.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, EngineError> + Send + 'static,
) -> Result<T, BeginningError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Ok(done?),
        Err(error) => Err(BeginningError::Scratch(std::io::Error::other(error))),
    }
}
