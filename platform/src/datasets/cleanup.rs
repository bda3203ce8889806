//! Clears away, at the start of the platform, what interrupted uploads and deletions have left.

use super::store;
use crate::database::{Database, DatabaseError};
use crate::error::ApiError;
use crate::storage::{ObjectStore, StorageKey};

/// Removes the files of data sets whose upload or deletion was interrupted, then their rows.
///
/// # Errors
/// When the database or the object store fails.
pub async fn remove_unfinished(
    database: &Database,
    storage: &dyn ObjectStore,
) -> Result<(), ApiError> {
    let unfinished = database
        .read::<_, DatabaseError, _>(store::unfinished)
        .await?;
    for (id, key) in unfinished {
        if let Ok(key) = StorageKey::parse(&key) {
            storage.delete(&key).await?;
        }
        database
            .write::<_, DatabaseError, _>(move |c| store::clear_unfinished(c, id))
            .await?;
        tracing::info!(
            dataset.id = id,
            "interrupted upload or deletion cleared away"
        );
    }
    Ok(())
}
