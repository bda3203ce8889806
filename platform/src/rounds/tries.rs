//! Counts how often making a session was begun and never ended: what breaks the whole process off must not be begun
//! anew at every start. Each try leaves an empty object in the session's folder until it has ended, in whatever way.

use trainyard_shared::ids::FederatedSessionId;

use super::keys;
use crate::actors::Actors;
use crate::storage::{Expected, StorageError};

/// So many tries may break the process off.
const MOST: usize = 3;

/// Why making is not begun.
#[derive(Debug, thiserror::Error)]
pub enum TryError {
    /// It never ended.
    #[error("making it was begun {MOST} times, and each time the platform broke off in the middle")]
    TooOften,
    /// The object store.
    #[error("the object store: {0}")]
    Storage(#[from] StorageError),
}

/// One more try begins.
///
/// # Errors
/// [`TryError`].
pub async fn begin(actors: &Actors, id: FederatedSessionId) -> Result<(), TryError> {
    let before = actors.storage.list(&keys::tries_folder(id)).await?.len();
    if before >= MOST {
        return Err(TryError::TooOften);
    }
    let mark = keys::begun_try(id, before);
    let writer = actors.storage.create(&mark, Expected::at_most(0)).await?;
    writer.finish().await?;
    Ok(())
}

/// The try has ended, and the process goes on or stops in order.
pub async fn ended(actors: &Actors, id: FederatedSessionId) {
    let forgotten = async {
        for mark in actors.storage.list(&keys::tries_folder(id)).await? {
            actors.storage.delete(&mark.key).await?;
        }
        Ok::<_, StorageError>(())
    };
    if let Err(error) = forgotten.await {
        tracing::warn!(session.id = %id, %error, "a try that has ended still counts");
    }
}
