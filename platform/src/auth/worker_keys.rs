//! Owns the keys of single workers: issued, presented, replaced.

use chrono::NaiveDateTime;
use diesel::prelude::*;
use uuid::Uuid;

use super::{NewToken, TokenHash, TokenKind};
use crate::database::schema::workers;
use crate::database::{DatabaseError, DbConnection};

/// The worker that a key belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerKeyOwner {
    /// The worker's number.
    pub worker_id: i64,
    /// Its UUID.
    pub uuid: Uuid,
    /// Its name.
    pub name: String,
    /// Whether the key has been presented before.
    pub was_used: bool,
}

/// The worker whose key this is, if any. What is not a worker's key looks the same as one that was revoked.
///
/// # Errors
/// Those of the database.
pub fn find(
    connection: &mut DbConnection,
    key: &str,
) -> Result<Option<WorkerKeyOwner>, DatabaseError> {
    if !TokenKind::Worker.matches(key) {
        return Ok(None);
    }
    let hash = TokenHash::of(key);
    let row = workers::table
        .filter(workers::key_hash.eq(hash.as_bytes()))
        .filter(workers::deleted_at.is_null())
        .select(KeyRow::as_select())
        .first(connection)
        .optional()?;
    Ok(row.filter(|row| hash.is(&row.key_hash)).and_then(|row| {
        Some(WorkerKeyOwner {
            worker_id: row.id,
            uuid: row.uuid.parse().ok()?,
            name: row.name,
            was_used: row.key_used_at.is_some(),
        })
    }))
}

#[derive(Queryable, Selectable)]
#[diesel(table_name = workers)]
struct KeyRow {
    id: i64,
    uuid: String,
    name: String,
    key_hash: Vec<u8>,
    key_used_at: Option<NaiveDateTime>,
}

/// Records that the worker holds its key: it has presented it, or gone on after being given it. From then on an
/// enrolment key no longer replaces it.
///
/// # Errors
/// Those of the database.
pub fn mark_used(
    connection: &mut DbConnection,
    worker_id: i64,
    now: NaiveDateTime,
) -> Result<(), DatabaseError> {
    diesel::update(
        workers::table
            .find(worker_id)
            .filter(workers::key_used_at.is_null()),
    )
    .set(workers::key_used_at.eq(now))
    .execute(connection)?;
    Ok(())
}

/// Gives the worker a new key; the old one is void at once.
///
/// # Errors
/// [`DatabaseError::NotFound`] when there is no such worker.
pub fn replace(connection: &mut DbConnection, worker_id: i64) -> Result<NewToken, DatabaseError> {
    let key = TokenKind::Worker.issue();
    let changed = diesel::update(
        workers::table
            .find(worker_id)
            .filter(workers::deleted_at.is_null()),
    )
    .set((
        workers::key_hash.eq(key.hash.as_bytes()),
        workers::key_used_at.eq(None::<NaiveDateTime>),
    ))
    .execute(connection)?;
    if changed == 0 {
        Err(DatabaseError::NotFound)
    } else {
        Ok(key)
    }
}
