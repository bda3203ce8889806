//! Where workers put the results of rounds, and how they are fetched from there: what counts is a copy to which no
//! signed URL leads, so nothing can be replaced once it was checked.

use std::io::Write;

use futures_util::StreamExt;
use sha2::{Digest, Sha256};
use tempfile::TempPath;
use trainyard_shared::ids::{FederatedSessionId, WorkerId};

use crate::actors::Actors;
use crate::error::ApiError;
use crate::server::AppState;
use crate::storage::{StorageError, StorageKey, StoredObject};

/// A result may be so many times as large as the global adapter.
const MOST_TIMES_AS_LARGE: u64 = 2;

/// A masked change takes 8 bytes for each value, of which the global adapter's file holds no more than half its bytes,
/// and 8 for the loss.
const MOST_TIMES_AS_LARGE_MASKED: u64 = 4;

/// Where a worker puts a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The session.
    pub session: FederatedSessionId,
    /// The round, from 0.
    pub round: u64,
    /// The attempt that it is masked for; none for an adapter.
    pub attempt: Option<u64>,
    /// Whose it is.
    pub worker: WorkerId,
}

impl Place {
    /// Its key.
    pub fn key(self) -> StorageKey {
        let Self { round, worker, .. } = self;
        let folder = folder(self.session);
        let text = match self.attempt {
            None => format!("{folder}/{round}/{worker}.safetensors"),
            Some(attempt) => format!("{folder}/{round}/{attempt}/{worker}.masked"),
        };
        StorageKey::parse(&text).expect("made of fixed words and numbers")
    }

    fn read(key: &StorageKey) -> Option<Self> {
        let mut parts = key.as_str().split('/');
        let is_federated = parts.next() == Some("federated");
        let session = parts.next()?.parse().ok()?;
        let is_inbox = parts.next() == Some("inbox");
        let round = parts.next()?.parse().ok()?;
        let (attempt, worker) = match (parts.next()?, parts.next()) {
            (plain, None) => (None, plain.strip_suffix(".safetensors")?),
            (attempt, Some(masked)) => {
                (Some(attempt.parse().ok()?), masked.strip_suffix(".masked")?)
            }
        };
        let place = Self {
            session,
            round,
            attempt,
            worker: worker.parse().ok()?,
        };
        let is_all = parts.next().is_none();
        (is_federated && is_inbox && is_all).then_some(place)
    }

    /// How large the result may be, for a global adapter of so many bytes.
    pub fn most_bytes(self, global_bytes: u64) -> u64 {
        match self.attempt {
            None => global_bytes.saturating_mul(MOST_TIMES_AS_LARGE),
            Some(_) => global_bytes
                .saturating_mul(MOST_TIMES_AS_LARGE_MASKED)
                .saturating_add(8),
        }
    }
}

fn folder(session: FederatedSessionId) -> String {
    format!("federated/{session}/inbox")
}

/// Leave that was given for a round does not outlive it.
///
/// # Errors
/// 409 where the key is that of a result for which the round is not open.
pub fn refuse_of_closed_round(state: &AppState, key: &StorageKey) -> Result<(), ApiError> {
    let Some(place) = Place::read(key) else {
        return Ok(());
    };
    state.actors.federated.takes(place).map(|_| ())
}

/// The key of a worker's result, which it names, and how large that may be.
///
/// # Errors
/// 400 for a key that is not this worker's, else as [`refuse_of_closed_round`]; 404 for a session that it takes no
/// part in.
pub fn result_key(
    state: &AppState,
    session: FederatedSessionId,
    worker: WorkerId,
    named: &str,
) -> Result<(StorageKey, u64), ApiError> {
    let parsed = StorageKey::parse(named)?;
    match Place::read(&parsed) {
        Some(place) if (place.session, place.worker) == (session, worker) => {
            let limit_bytes = state.actors.federated.takes(place)?;
            Ok((parsed, limit_bytes))
        }
        _ => Err(ApiError::invalid_field(
            "key",
            "is not that of a result of this worker in the session",
        )),
    }
}

/// Why a result could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// It is not stored, or not as it was said to be.
    #[error("{key} is not stored as announced: {reason}")]
    NotStored {
        /// The key.
        key: StorageKey,
        /// What is wrong.
        reason: String,
    },
    /// There is no room for a copy (now).
    #[error("the disk is full: {key} has {size_bytes} bytes")]
    Full {
        /// The key.
        key: StorageKey,
        /// Its size.
        size_bytes: u64,
    },
    /// The store or the disk.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// Copies a result to this machine, hashed on the way.
///
/// # Errors
/// [`FetchError`].
pub async fn fetch(
    actors: &Actors,
    key: &StorageKey,
    announced: &StoredObject,
) -> Result<TempPath, FetchError> {
    let not_stored = |reason: String| FetchError::NotStored {
        key: key.clone(),
        reason,
    };
    let mut object = match actors.storage.open(key, None).await {
        Err(StorageError::NotFound) => return Err(not_stored("there is no such file".to_owned())),
        opened => opened?,
    };
    let (size_bytes, expected) = (object.info.size_bytes, announced.size_bytes);
    if size_bytes != expected {
        return Err(not_stored(format!(
            "it has {size_bytes} bytes, not {expected}"
        )));
    }
    let failed = |source| StorageError::Io {
        operation: "copy",
        key: key.to_string(),
        source,
    };
    if !actors.scratch.has_room_for(size_bytes).map_err(failed)? {
        return Err(FetchError::Full {
            key: key.clone(),
            size_bytes,
        });
    }
    let mut file = actors.scratch.file().map_err(failed)?;
    let mut digest = Sha256::new();
    while let Some(chunk) = object.chunks.next().await {
        let chunk = chunk.map_err(failed)?;
        digest.update(&chunk);
        file.write_all(&chunk).map_err(failed)?;
    }
    let sha256 = hex::encode(digest.finalize());
    if sha256 != announced.sha256 {
        return Err(not_stored(format!(
            "its SHA-256 is {sha256}, not {}",
            announced.sha256
        )));
    }
    Ok(file.into_temp_path())
}

/// Removes a result that was taken or refused. What stays is removed with the session.
pub async fn forget(actors: &Actors, key: &StorageKey) {
    if let Err(error) = actors.storage.delete(key).await {
        tracing::warn!(%key, %error, "a result that is not needed any more was not removed");
    }
}

/// Removes all that workers of a session that has ended have put there.
pub async fn empty(actors: &Actors, session: FederatedSessionId) {
    let emptied = async {
        for object in actors
            .storage
            .list(&StorageKey::parse(&folder(session))?)
            .await?
        {
            actors.storage.delete(&object.key).await?;
        }
        Ok::<_, StorageError>(())
    };
    if let Err(error) = emptied.await {
        tracing::warn!(session.id = %session, %error, "what workers have stored was not removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_was_made_and_no_other_is() {
        for (attempt, key) in [
            (None, "federated/9/inbox/3/12.safetensors"),
            (Some(77), "federated/9/inbox/3/77/12.masked"),
        ] {
            let place = Place {
                session: FederatedSessionId(9),
                round: 3,
                attempt,
                worker: WorkerId(12),
            };
            assert_eq!(place.key().as_str(), key);
            assert_eq!(Place::read(&place.key()), Some(place));
        }
        for other in [
            "federated/9/rounds/3/updates/12.safetensors",
            "federated/9/inbox/3/12.safetensors/x",
            "federated/9/inbox/3/12",
            "federated/9/inbox/3/12.masked",
            "federated/9/inbox/3/77/12.safetensors",
            "federated/9/inbox/3/77/12.masked/x",
            "federated/x/inbox/3/12.safetensors",
            "models/9/inbox/3/12.safetensors",
        ] {
            let key = StorageKey::parse(other).unwrap();
            assert_eq!(Place::read(&key), None, "{other}");
        }
    }

    #[test]
    fn a_masked_change_of_any_adapter_has_room() {
        let masked = Place {
            session: FederatedSessionId(9),
            round: 0,
            attempt: Some(1),
            worker: WorkerId(1),
        };
        let values: u64 = 1000;
        let smallest_file = 2 * values;
        assert!(masked.most_bytes(smallest_file) >= 8 * (values + 1));
    }
}
