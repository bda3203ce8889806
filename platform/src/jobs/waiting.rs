//! Why queued jobs wait, for those who look at them.

use trainyard_shared::WorkerType;
use trainyard_shared::ids::{UserId, WorkerId};

use super::store::{self, JobRow};
use crate::database::DatabaseError;
use crate::error::ApiError;
use crate::server::AppState;
use crate::workers;
use crate::workers::placement::{Seen, Shares, waiting_because};

/// Most workers that are looked at.
const MAX_WORKERS: i64 = 10_000;

/// The reasons of one look: workers and quotas are read once.
#[derive(Default)]
pub struct Reasons {
    known: Option<(Vec<Seen>, Shares)>,
}

impl Reasons {
    /// Why that job waits.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn of(&mut self, state: &AppState, job: &JobRow) -> Result<String, ApiError> {
        if self.known.is_none() {
            self.known = Some(read(state).await?);
        }
        let (workers, shares) = self.known.as_ref().expect("it was read above");
        let requested = job.requested_worker_id.map(WorkerId);
        let exhausted = shares.is_exhausted(UserId(job.owner_id));
        Ok(waiting_because(requested, exhausted, workers))
    }
}

async fn read(state: &AppState) -> Result<(Vec<Seen>, Shares), ApiError> {
    let seen = workers::routes::all_seen(state).await?;
    let (rows, shares) = state
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
