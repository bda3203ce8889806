//! Who a worker is, by the key that it presents (PROTOCOL 2). In one transaction: a key is checked, or an
//! enrolment key redeemed.

use chrono::NaiveDateTime;
use trainyard_shared::Secret;
use trainyard_shared::ids::{WorkerId, WorkerUuid};
use trainyard_shared::message::Authenticate;

use super::store::{self, KnownWorker};
use crate::auth::{TokenKind, worker_keys};
use crate::database::{DatabaseError, DbConnection};
use crate::enrollment_keys::{EnrollmentRefused, redeem};

/// A worker that has proved who it is.
#[derive(Debug, Clone)]
pub struct Proved {
    /// The worker.
    pub worker: KnownWorker,
    /// Its own key, where it has just been enrolled.
    pub issued: Option<Secret>,
}

/// Why a worker is not let in.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// What is told to the worker. Says nothing about which keys exist.
    #[error("{0}")]
    Because(String),
    /// The database failed: nothing is known about the key.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

const INVALID_KEY: &str = "Invalid API key";

/// Checks the key that was presented on the connection of the worker with that UUID.
///
/// # Errors
/// [`Refused`].
pub fn authenticate(
    connection: &mut DbConnection,
    presented: &Authenticate,
    uuid: WorkerUuid,
    now: NaiveDateTime,
) -> Result<Proved, Refused> {
    if presented.worker_uuid.parse() != Ok(uuid) {
        let reason = "worker_uuid is not the one in the address";
        return Err(Refused::Because(reason.to_owned()));
    }
    let key = presented.api_key.expose();
    if TokenKind::Enrollment.matches(key) {
        return enrol(connection, key, uuid, now);
    }
    let owner = worker_keys::find(connection, key)?
        .filter(|owner| owner.uuid == uuid.0)
        .ok_or_else(|| Refused::Because(INVALID_KEY.to_owned()))?;
    worker_keys::mark_used(connection, owner.worker_id, now)?;
    Ok(Proved {
        worker: store::get_known(connection, WorkerId(owner.worker_id))?,
        issued: None,
    })
}

fn enrol(
    connection: &mut DbConnection,
    key: &str,
    uuid: WorkerUuid,
    now: NaiveDateTime,
) -> Result<Proved, Refused> {
    match redeem(connection, key, uuid.0, now) {
        Ok(enrolled) => Ok(Proved {
            worker: store::get_known(connection, WorkerId(enrolled.worker_id))?,
            issued: Some(enrolled.api_key),
        }),
        Err(EnrollmentRefused::Database(error)) => Err(error.into()),
        Err(refused) => Err(Refused::Because(refused.to_string())),
    }
}

/// Whether a key is still that worker's: it may have been replaced, or the worker deleted, while it was
/// being let in.
///
/// # Errors
/// Those of the database.
pub fn still_valid(
    connection: &mut DbConnection,
    key: &str,
    worker: WorkerId,
) -> Result<bool, DatabaseError> {
    let owner = worker_keys::find(connection, key)?;
    Ok(owner.is_some_and(|owner| owner.worker_id == worker.get()))
}
