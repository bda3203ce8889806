//! Prepares volunteer sessions, and takes them up again when the platform starts.
//!
//! 1. The base model's config and tokenizer are found, on this machine or at the hub.
//! 2. The first global adapter is made or copied, and stored.
//! 3. The data set is packed into shards, and these are stored.
//! 4. One transaction makes the session open. Whatever breaks off before it begins again at the next start; what
//!    was stored is stored again.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use chrono::Local;
use trainyard_engine::adapter::AdapterConfig;
use trainyard_engine::data::{DataFile, Packing};
use trainyard_engine::weights::ModelDescription;
use trainyard_shared::dataset::DatasetFormat;
use trainyard_shared::ids::JobId;

use super::hosted::Hosted;
use super::settings::Lora;
use crate::actors::Actors;
use crate::database::{DatabaseError, now, to_json_text};
use crate::datasets;
use crate::error::ApiError;
use crate::models::target;
use crate::rounds::beginning::{self, BeginningError, FirstAdapter, blocking};
use crate::rounds::store::{self, SessionRow, ShardRow, integer, natural};
use crate::rounds::tries::{self, TryError};
use crate::rounds::{Kind, SessionStatus, actor, keys, leftovers};
use crate::storage::{StorageError, StorageKey, StoredObject};

/// Between two tries to take up a session that is open.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Goes on with all volunteer sessions that the database knows.
///
/// # Errors
/// Those of the database.
pub async fn take_up(actors: &Actors) -> Result<(), DatabaseError> {
    let read = |c: &mut _| store::all(c, Kind::Volunteers);
    for row in actors.database.read::<_, DatabaseError, _>(read).await? {
        let id = row.id();
        if let Err(error) = take_up_one(actors, row).await {
            // The others go on, and so does the platform.
            tracing::error!(session.id = %id, %error, "volunteer session cannot be gone on with");
        }
    }
    Ok(())
}

async fn take_up_one(actors: &Actors, row: SessionRow) -> Result<(), DatabaseError> {
    let status = row.status()?;
    let hosted = Arc::new(Hosted::preparing(row)?);
    actors.coordinators.add(hosted.clone());
    match status {
        SessionStatus::Preparing => begin(actors, hosted),
        SessionStatus::Failed => {
            hosted.fail();
            leftovers::remove_all(actors, hosted.id()).await;
        }
        SessionStatus::Open | SessionStatus::Finished | SessionStatus::Stopped => {
            let ready = make_ready(actors, &hosted).await;
            if ready.is_err() {
                hosted.fail();
            }
            ready?;
        }
    }
    Ok(())
}

async fn make_ready(actors: &Actors, hosted: &Arc<Hosted>) -> Result<(), DatabaseError> {
    let session = actor::start(actors, hosted.id(), None).await?;
    actors.coordinators.ready(hosted);
    hosted.make_ready(session)
}

/// Begins to prepare a session; it is ready, or has failed, some time later.
pub fn begin(actors: &Actors, hosted: Arc<Hosted>) {
    let of_task = actors.clone();
    // Fails only when the platform stops; the next start begins anew.
    actors.arbiter.spawn(async move {
        let id = hosted.id();
        let prepared = match tries::begin(&of_task, id).await {
            Ok(()) => {
                let prepared = prepare(&of_task, &hosted).await;
                tries::ended(&of_task, id).await;
                prepared
            }
            Err(error) => Err(error.into()),
        };
        if let Err(error) = prepared {
            if of_task.stopping.load(Ordering::Relaxed) {
                tracing::info!(session.id = %id, "preparing a volunteer session was broken off; the next start begins anew");
                return;
            }
            tracing::warn!(session.id = %id, %error, "volunteer session could not be prepared");
            hosted.fail();
            let why = error.to_string();
            let write = move |c: &mut _| store::fail(c, id, &why, now());
            match of_task.database.write::<_, DatabaseError, _>(write).await {
                Ok(true) => leftovers::remove_all(&of_task, id).await,
                Ok(false) => {}
                Err(error) => {
                    tracing::error!(session.id = %id, %error, "that a session has failed was not written down");
                }
            }
        }
    });
}

/// Why a session could not be prepared.
#[derive(Debug, thiserror::Error)]
enum PrepareError {
    #[error(transparent)]
    Beginning(#[from] BeginningError),
    #[error("the object store: {0}")]
    Storage(#[from] StorageError),
    #[error("the database: {0}")]
    Database(#[from] DatabaseError),
    #[error("{}", .0.message())]
    Platform(#[from] ApiError),
    #[error("files on their way: {0}")]
    Scratch(#[from] std::io::Error),
    #[error(transparent)]
    Tries(#[from] TryError),
    #[error("stopped while it was being prepared")]
    GivenUp,
}

async fn prepare(actors: &Actors, hosted: &Arc<Hosted>) -> Result<(), PrepareError> {
    let row = &hosted.row;
    let first = first_adapter(actors, hosted).await?;
    let shards = match row.dataset_id {
        Some(dataset) => pack(actors, hosted, dataset).await?,
        None => Vec::new(),
    };
    if is_broken_off(actors, hosted)() {
        return Err(PrepareError::GivenUp);
    }
    let (id, config) = (row.id(), to_json_text(&first.config)?);
    let write = move |c: &mut _| store::open(c, id, &config, &first.weights, &shards, now());
    actors.database.write::<_, DatabaseError, _>(write).await?;
    // It is open in the database, whatever happens now.
    while let Err(error) = make_ready(actors, hosted).await {
        tracing::error!(session.id = %id, %error, "an open session is taken up again");
        if matches!(error, DatabaseError::Stopped) {
            return Ok(());
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
    tracing::info!(session.id = %id, name = row.name, "volunteer session is open");
    Ok(())
}

/// Tells whether preparing is to end: the session is stopped, or the platform stops.
fn is_broken_off(actors: &Actors, hosted: &Hosted) -> impl Fn() -> bool + use<> {
    let (given_up, stopping) = (hosted.given_up(), actors.stopping.clone());
    move || given_up.load(Ordering::Relaxed) || stopping.load(Ordering::Relaxed)
}

async fn first_adapter(actors: &Actors, hosted: &Hosted) -> Result<FirstAdapter, PrepareError> {
    let row = &hosted.row;
    if let Some(lora) = &hosted.settings.lora {
        let model = model_of(actors, row).await?;
        let config = adapter_config(lora, &row.base_model)?;
        let seed = hosted.settings.seed;
        let made = beginning::fresh_adapter(actors, row.id(), &model, config, seed).await?;
        return Ok(made);
    }
    let job = row.job_id.map(JobId).ok_or_else(|| {
        let message = "the job whose adapter was to be the first is gone";
        BeginningError::Unfit(message.to_owned())
    })?;
    let target = target::load(&actors.database, job).await?;
    let files = target.adapter.map(|adapter| adapter.files);
    Ok(beginning::adapter_of_job(actors, row.id(), &files.unwrap_or_default()).await?)
}

async fn model_of(actors: &Actors, row: &SessionRow) -> Result<std::path::PathBuf, BeginningError> {
    Ok(actors.base_models.find_description(&row.base_model).await?)
}

fn adapter_config(lora: &Lora, base_model: &str) -> Result<AdapterConfig, BeginningError> {
    let config = lora.as_config().map_err(|problems| {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        BeginningError::Unfit(lines.join("; "))
    })?;
    Ok(AdapterConfig::from_training(&config, base_model))
}

/// Packs the data set into shards and stores them.
async fn pack(
    actors: &Actors,
    hosted: &Hosted,
    dataset: i64,
) -> Result<Vec<ShardRow>, PrepareError> {
    let row = &hosted.row;
    let model = model_of(actors, row).await?;
    let read = move |c: &mut _| datasets::store::get(c, dataset);
    let dataset = actors.database.read::<_, DatabaseError, _>(read).await?;
    let key = StorageKey::parse(&dataset.storage_key)?;
    let local = actors.scratch.local(actors.storage.as_ref(), &key).await?;
    let format = dataset
        .format
        .parse::<DatasetFormat>()
        .map_err(ApiError::internal)?;
    let data = DataFile {
        path: local.path().to_owned(),
        format,
        sha256: Some(dataset.sha256),
    };
    let folder = actors.scratch.folder()?;
    let into = folder.path().to_owned();
    let bad_rows = natural(dataset.bad_rows);
    let (mode, count) = (hosted.settings.mode, natural(row.shard_count));
    let is_broken_off = is_broken_off(actors, hosted);
    let packed = blocking(move || {
        let description = ModelDescription::open(&model)?;
        let chat = description.chat(Local::now())?;
        let packing = Packing {
            dataset: &data,
            max_bad_rows: bad_rows,
            chat: &chat,
            vocab_size: description.config.vocab_size,
            mode,
            shards: u32::try_from(count).unwrap_or(u32::MAX),
        };
        packing.write(&into, &is_broken_off)
    })
    .await?;
    drop(local);
    let mut shards = Vec::with_capacity(packed.shards.len());
    for (number, shard) in packed.shards.into_iter().enumerate() {
        let content = StoredObject {
            size_bytes: shard.size_bytes,
            sha256: shard.sha256,
        };
        let file = folder.path().join(&shard.file);
        store_shard(actors, row, number as u64, &file, &content).await?;
        shards.push(ShardRow {
            session_id: row.id,
            shard: integer(number as u64),
            sha256: content.sha256,
            size_bytes: integer(content.size_bytes),
            tokens: integer(shard.tokens),
        });
    }
    Ok(shards)
}

async fn store_shard(
    actors: &Actors,
    row: &SessionRow,
    number: u64,
    file: &Path,
    content: &StoredObject,
) -> Result<(), StorageError> {
    let key = keys::shard(row.id(), number);
    actors.storage.put_file(&key, file, content).await
}
