//! Removes the files that nothing refers to any more: of uploads and merges that were broken off, of rounds that
//! were merged, of sessions that could not be prepared or were deleted. What is not removed now is by the next start.

use trainyard_shared::ids::FederatedSessionId;

use super::actor::Trouble;
use super::session::{Live, Session};
use super::{keys, store};
use crate::actors::Actors;
use crate::database::DatabaseError;

/// Removes what the rounds of a session do not need as it stands.
pub async fn sweep(actors: &Actors, id: FederatedSessionId, live: &Live) {
    let (round, is_ended) = (live.rounds.round(), live.rounds.phase().is_ended());
    let read = move |c: &mut _| store::results(c, id, round);
    let swept = match actors.database.read::<_, DatabaseError, _>(read).await {
        Ok(results) => {
            let needed = match is_ended {
                true => vec![keys::weights(id, round)],
                false => keys::needed(id, round, results.iter().map(|row| row.number)),
            };
            keys::sweep(actors.storage.as_ref(), id, &needed)
                .await
                .map_err(Trouble::from)
        }
        Err(error) => Err(error.into()),
    };
    if let Err(error) = swept {
        tracing::warn!(session.id = %id, %error, "files that nothing refers to were not removed");
    }
}

/// Removes what a round that was merged leaves behind.
pub async fn remove_merged(actors: &Actors, session: &Session, closed: u64) {
    if session.live().rounds.round() <= closed {
        return;
    }
    let removed = keys::remove_merged(actors.storage.as_ref(), session.id(), closed).await;
    if let Err(error) = removed {
        tracing::warn!(session.id = %session.id(), %error, "files of a merged round were not removed");
    }
}

/// Removes all files of a session that there is not, or that has come to nothing.
pub async fn remove_all(actors: &Actors, id: FederatedSessionId) {
    if let Err(error) = keys::remove_all(actors.storage.as_ref(), id).await {
        tracing::warn!(session.id = %id, %error, "files of a session that is no more were not removed");
    }
}
