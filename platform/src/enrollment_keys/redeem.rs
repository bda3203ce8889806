//! Turns an enrolment key into a worker of its own (PROTOCOL 2), in one transaction.
//!
//! 1. A key that does not exist, has expired or was revoked is refused; the answer never says which.
//! 2. A UUID that is not enrolled becomes a new worker, if the key has a use left.
//! 3. A UUID that is enrolled, but whose issued key was never presented, gets a new key and the old one is void:
//!    the answer was lost on the way. With the same enrolment key this costs no further use.
//! 4. Any other UUID that is enrolled is refused, so that a leaked enrolment key cannot take a worker over.

use chrono::NaiveDateTime;
use diesel::prelude::*;
use trainyard_shared::Secret;
use uuid::Uuid;

use super::store::{self, EnrollmentKey};
use crate::auth::{TokenHash, TokenKind, worker_keys};
use crate::database::schema::workers;
use crate::database::{DatabaseError, DbConnection, last_insert_id};

/// Name of workers whose enrolment key has no prefix.
const DEFAULT_PREFIX: &str = "worker";

/// A worker that has just been given its key.
#[derive(Debug, Clone)]
pub struct Enrolled {
    /// The worker's number.
    pub worker_id: i64,
    /// Its name.
    pub worker_name: String,
    /// Its own key, shown this once.
    pub api_key: Secret,
}

/// Why no worker was enrolled.
#[derive(Debug, thiserror::Error)]
pub enum EnrollmentRefused {
    /// The key is not (or no longer) valid. All such refusals read alike.
    #[error("Invalid API key")]
    InvalidKey,
    /// The UUID has a worker already.
    #[error(
        "a worker with this UUID is enrolled already: use its own key, or delete the worker on the platform first"
    )]
    AlreadyEnrolled,
    /// The database failed.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

struct EnrolledWorker {
    id: i64,
    name: String,
    key_was_used: bool,
    enrollment_key_id: Option<i64>,
}

/// Redeems an enrolment key for the worker with that UUID. To be run on the writer: of many at once, no more
/// succeed than the key has uses.
///
/// # Errors
/// [`EnrollmentRefused`]; nothing has changed then.
pub fn redeem(
    connection: &mut DbConnection,
    presented: &str,
    uuid: Uuid,
    now: NaiveDateTime,
) -> Result<Enrolled, EnrollmentRefused> {
    let key = valid_key(connection, presented, now)?.ok_or(EnrollmentRefused::InvalidKey)?;
    match enrolled_worker(connection, uuid)? {
        None => {
            take_use(connection, &key)?;
            enroll(connection, &key, uuid, now)
        }
        Some(worker) if worker.key_was_used => Err(EnrollmentRefused::AlreadyEnrolled),
        Some(worker) => {
            if worker.enrollment_key_id != Some(key.id) {
                take_use(connection, &key)?;
            }
            let new = worker_keys::replace(connection, worker.id)?;
            Ok(Enrolled {
                worker_id: worker.id,
                worker_name: worker.name,
                api_key: new.secret,
            })
        }
    }
}

fn valid_key(
    connection: &mut DbConnection,
    presented: &str,
    now: NaiveDateTime,
) -> Result<Option<EnrollmentKey>, DatabaseError> {
    if !TokenKind::Enrollment.matches(presented) {
        return Ok(None);
    }
    let hash = TokenHash::of(presented);
    let found = store::find_by_hash(connection, hash.as_bytes())?;
    Ok(found
        .filter(|key| hash.is(&key.key_hash) && key.revoked_at.is_none() && key.expires_at > now))
}

fn take_use(connection: &mut DbConnection, key: &EnrollmentKey) -> Result<(), EnrollmentRefused> {
    if store::count_use(connection, key.id)? {
        Ok(())
    } else {
        Err(EnrollmentRefused::InvalidKey)
    }
}

fn enrolled_worker(
    connection: &mut DbConnection,
    uuid: Uuid,
) -> Result<Option<EnrolledWorker>, DatabaseError> {
    let row: Option<(i64, String, Option<NaiveDateTime>, Option<i64>)> = workers::table
        .filter(workers::uuid.eq(uuid.to_string()))
        .filter(workers::deleted_at.is_null())
        .select((
            workers::id,
            workers::name,
            workers::key_used_at,
            workers::enrollment_key_id,
        ))
        .first(connection)
        .optional()?;
    Ok(
        row.map(|(id, name, used, enrollment_key_id)| EnrolledWorker {
            id,
            name,
            key_was_used: used.is_some(),
            enrollment_key_id,
        }),
    )
}

fn enroll(
    connection: &mut DbConnection,
    key: &EnrollmentKey,
    uuid: Uuid,
    now: NaiveDateTime,
) -> Result<Enrolled, EnrollmentRefused> {
    let name = free_name(
        connection,
        key.name_prefix.as_deref().unwrap_or(DEFAULT_PREFIX),
    )?;
    let issued = TokenKind::Worker.issue();
    diesel::insert_into(workers::table)
        .values((
            workers::uuid.eq(uuid.to_string()),
            workers::name.eq(&name),
            workers::key_hash.eq(issued.hash.as_bytes()),
            workers::enrollment_key_id.eq(key.id),
            workers::created_at.eq(now),
        ))
        .execute(connection)
        .map_err(DatabaseError::from)?;
    Ok(Enrolled {
        worker_id: last_insert_id(connection)?,
        worker_name: name,
        api_key: issued.secret,
    })
}

/// `PREFIX-N` with the lowest number above all that are in use.
fn free_name(connection: &mut DbConnection, prefix: &str) -> Result<String, DatabaseError> {
    let taken: Vec<String> = workers::table
        .filter(workers::deleted_at.is_null())
        .filter(workers::name.like(format!("{prefix}-%")))
        .select(workers::name)
        .load(connection)?;
    let highest = taken
        .iter()
        .filter_map(|name| {
            name.strip_prefix(prefix)?
                .strip_prefix('-')?
                .parse::<u64>()
                .ok()
        })
        .max();
    Ok(format!("{prefix}-{}", highest.unwrap_or(0) + 1))
}
