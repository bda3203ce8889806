//! Makes the first adapter of a session and opens it, and takes sessions up again when the platform starts.
//!
//! What breaks off before the session is open begins again at the next start; what was stored is stored again.

use std::sync::atomic::Ordering;

use trainyard_engine::adapter::AdapterConfig;
use trainyard_shared::ids::{FederatedSessionId, WorkerId};

use super::settings::Settings;
use super::{actor, store};
use crate::actors::Actors;
use crate::database::{DatabaseError, now, to_json_text};
use crate::error::ApiError;
use crate::rounds::beginning::{self, BeginningError};
use crate::rounds::store::SessionRow;
use crate::rounds::tries::{self, TryError};
use crate::rounds::{self, SessionStatus, leftovers};
use crate::workers::event::Occupation;

/// Why a session could not be opened.
#[derive(Debug, thiserror::Error)]
enum MakingError {
    #[error(transparent)]
    Beginning(#[from] BeginningError),
    #[error("the database: {0}")]
    Database(#[from] DatabaseError),
    #[error("{}", .0.message())]
    Config(#[from] ApiError),
    #[error(transparent)]
    Tries(#[from] TryError),
}

/// Begins to make a session; it is open, or has failed, some time later.
pub fn begin(actors: &Actors, row: SessionRow) {
    let of_task = actors.clone();
    // Fails only when the platform stops; the next start begins anew.
    actors.arbiter.spawn(async move {
        let id = row.id();
        let made = match tries::begin(&of_task, id).await {
            Ok(()) => {
                let made = make(&of_task, &row).await;
                tries::ended(&of_task, id).await;
                made
            }
            Err(error) => Err(error.into()),
        };
        let Err(error) = made else {
            return;
        };
        if of_task.stopping.load(Ordering::Relaxed) {
            // The next start begins anew.
            return;
        }
        tracing::warn!(session.id = %id, %error, "federated session could not be opened");
        let why = error.to_string();
        let write = move |c: &mut _| rounds::store::fail(c, id, &why, now());
        match of_task.database.write::<_, DatabaseError, _>(write).await {
            Ok(true) => leftovers::remove_all(&of_task, id).await,
            Ok(false) => {}
            Err(error) => {
                tracing::error!(session.id = %id, %error, "that a session has failed was not written down");
            }
        }
    });
}

async fn make(actors: &Actors, row: &SessionRow) -> Result<(), MakingError> {
    let id = row.id();
    let settings = Settings::of(row)?;
    let config = settings
        .parsed_config()
        .map_err(|_| ApiError::internal("a stored config does not fit any more"))?;
    let adapter = AdapterConfig::from_training(&config.training, &row.base_model);
    let model = actors.base_models.find_description(&row.base_model).await;
    let model = model.map_err(BeginningError::from)?;
    let first = beginning::fresh_adapter(actors, id, &model, adapter, settings.seed).await?;
    let config = to_json_text(&first.config)?;
    let open = move |c: &mut _| rounds::store::open(c, id, &config, &first.weights, &[], now());
    match actors.database.write(open).await {
        Ok(()) => {}
        // It was stopped meanwhile.
        Err(DatabaseError::NotFound) => {
            leftovers::remove_all(actors, id).await;
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    }
    actor::start(actors, row).await?;
    tracing::info!(session.id = %id, name = row.name, "federated session is open");
    Ok(())
}

/// The workers that are claimed for sessions.
///
/// # Errors
/// Those of the database.
pub async fn occupied(actors: &Actors) -> Result<Vec<(WorkerId, Occupation)>, DatabaseError> {
    actors
        .database
        .read(|c| {
            let mut occupied = Vec::new();
            for row in store::under_way(c)? {
                let with = Occupation::Session(row.id());
                let workers = store::workers(c, row.id())?;
                occupied.extend(workers.members.into_iter().map(|worker| (worker, with)));
            }
            Ok(occupied)
        })
        .await
}

/// Goes on with the sessions that have not ended.
///
/// # Errors
/// Those of the database.
pub async fn take_up(actors: &Actors) -> Result<(), DatabaseError> {
    for row in actors.database.read(store::under_way).await? {
        match row.status()? {
            SessionStatus::Preparing => begin(actors, row),
            _ => actor::start(actors, &row).await?,
        }
    }
    Ok(())
}

/// Ends a session of which nothing but its row is there yet. False where it is open already, or has ended.
///
/// # Errors
/// Those of the database.
pub async fn stop_preparing(
    actors: &Actors,
    id: FederatedSessionId,
) -> Result<bool, DatabaseError> {
    actors
        .database
        .write(move |c| {
            if rounds::store::row(c, id)?.status()? != SessionStatus::Preparing {
                return Ok(false);
            }
            rounds::store::stop(c, id, &[], now())?;
            Ok(true)
        })
        .await
}
