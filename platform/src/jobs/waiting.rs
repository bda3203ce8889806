//! Why queued jobs wait, for those who look at them.

use trainyard_shared::WorkerType;
use trainyard_shared::ids::{UserId, WorkerId};

use super::store;
use crate::actors::Actors;
use crate::database::DatabaseError;
use crate::workers;
use crate::workers::placement::{Seen, Shares, waiting_because};
use crate::workers::supervisor::GetWorkers;

/// Most workers that are looked at.
const MAX_WORKERS: i64 = 10_000;

/// The reasons of one look: workers and quotas are read once.
#[derive(Default)]
pub struct Reasons {
    known: Option<(Vec<Seen>, Shares)>,
}

impl Reasons {
    /// Why a job of that owner waits, which may ask for one worker.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn of(
        &mut self,
        actors: &Actors,
        owner: UserId,
        requested: Option<WorkerId>,
    ) -> Result<String, DatabaseError> {
        if self.known.is_none() {
            self.known = Some(read(actors).await?);
        }
        let (workers, shares) = self.known.as_ref().expect("it was read above");
        let exhausted = shares.is_exhausted(owner);
        Ok(waiting_because(requested, exhausted, workers))
    }
}

async fn read(actors: &Actors) -> Result<(Vec<Seen>, Shares), DatabaseError> {
    let asked = actors.supervisor.send(GetWorkers).await;
    let seen = asked.map_err(|_| DatabaseError::Stopped)?;
    let (rows, shares) = actors
        .database
        .read::<_, DatabaseError, _>(|c| {
            let rows = workers::store::list(c, i64::MAX, MAX_WORKERS)?;
            Ok((rows, store::shares(c)?))
        })
        .await?;
    let workers = rows.into_iter().filter_map(|row| {
        let id = WorkerId(row.id);
        let view = seen.get(&id)?.view;
        Some(Seen {
            id,
            name: row.name,
            status: view.status,
            connected: view.connected,
            worker_type: row.worker_type.as_deref().and_then(WorkerType::from_word),
        })
    });
    Ok((workers.collect(), shares))
}
