//! SQL of workers beyond their keys: what they said of themselves, and what users set.

use std::collections::BTreeMap;

use chrono::{DateTime, NaiveDateTime, Utc};
use diesel::prelude::*;
use trainyard_shared::ids::{WorkerId, WorkerUuid};
use trainyard_shared::message::WorkerRegisterData;

use crate::auth::{NewToken, worker_keys};
use crate::database::schema::workers;
use crate::database::{DatabaseError, DbConnection, to_json_text};

/// A worker's row, without its key.
#[derive(Debug, Clone, Queryable, Selectable)]
#[diesel(table_name = workers)]
#[allow(missing_docs)] // columns are described in migrations/
pub struct WorkerRow {
    pub id: i64,
    pub uuid: String,
    pub name: String,
    pub worker_type: Option<String>,
    pub hardware: Option<String>,
    pub benchmark: Option<String>,
    pub draining: bool,
    pub created_at: NaiveDateTime,
    pub last_seen_at: Option<NaiveDateTime>,
}

/// What the supervisor must know of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownWorker {
    /// Its number.
    pub id: WorkerId,
    /// Its UUID.
    pub uuid: WorkerUuid,
    /// Its name.
    pub name: String,
    /// Whether it is to be given nothing new.
    pub draining: bool,
}

/// All workers that are enrolled.
///
/// # Errors
/// Those of the database.
pub fn all(connection: &mut DbConnection) -> Result<Vec<KnownWorker>, DatabaseError> {
    let rows: Vec<WorkerRow> = workers::table
        .filter(workers::deleted_at.is_null())
        .select(WorkerRow::as_select())
        .load(connection)?;
    Ok(rows.into_iter().filter_map(known).collect())
}

/// One of them.
///
/// # Errors
/// [`DatabaseError::NotFound`] when there is none.
pub fn get(connection: &mut DbConnection, id: WorkerId) -> Result<WorkerRow, DatabaseError> {
    Ok(workers::table
        .find(id.get())
        .filter(workers::deleted_at.is_null())
        .select(WorkerRow::as_select())
        .first(connection)?)
}

/// The same as the supervisor needs it.
///
/// # Errors
/// [`DatabaseError::NotFound`] when there is none.
pub fn get_known(
    connection: &mut DbConnection,
    id: WorkerId,
) -> Result<KnownWorker, DatabaseError> {
    known(get(connection, id)?).ok_or(DatabaseError::NotFound)
}

/// Workers with an id below `before`, newest first.
///
/// # Errors
/// Those of the database.
pub fn list(
    connection: &mut DbConnection,
    before: i64,
    limit: i64,
) -> Result<Vec<WorkerRow>, DatabaseError> {
    Ok(workers::table
        .filter(workers::deleted_at.is_null())
        .filter(workers::id.lt(before))
        .order(workers::id.desc())
        .limit(limit)
        .select(WorkerRow::as_select())
        .load(connection)?)
}

/// Keeps what a worker says of itself when it registers; it holds its key therefore.
///
/// # Errors
/// Those of the database.
pub fn register(
    connection: &mut DbConnection,
    id: WorkerId,
    data: &WorkerRegisterData,
    now: NaiveDateTime,
) -> Result<(), DatabaseError> {
    worker_keys::mark_used(connection, id.get(), now)?;
    let hardware = WorkerRegisterData {
        benchmark: None,
        ..data.clone()
    };
    let benchmark = data.benchmark.as_ref().map(to_json_text).transpose()?;
    diesel::update(workers::table.find(id.get()))
        .set((
            workers::worker_type.eq(data.worker_type.as_str()),
            workers::hardware.eq(to_json_text(&hardware)?),
            workers::benchmark.eq(benchmark),
            workers::last_seen_at.eq(now),
        ))
        .execute(connection)?;
    Ok(())
}

/// Keeps when workers were last heard of.
///
/// # Errors
/// Those of the database.
pub fn save_last_seen(
    connection: &mut DbConnection,
    seen: &BTreeMap<WorkerId, DateTime<Utc>>,
) -> Result<(), DatabaseError> {
    for (worker, at) in seen {
        diesel::update(workers::table.find(worker.get()))
            .set(workers::last_seen_at.eq(at.naive_utc()))
            .execute(connection)?;
    }
    Ok(())
}

/// Gives a worker another name.
///
/// # Errors
/// [`DatabaseError::Duplicate`] when another worker has it.
pub fn rename(
    connection: &mut DbConnection,
    id: WorkerId,
    name: &str,
) -> Result<WorkerRow, DatabaseError> {
    diesel::update(enrolled(id))
        .set(workers::name.eq(name))
        .execute(connection)?;
    get(connection, id)
}

/// Lets a worker drain, or work again.
///
/// # Errors
/// [`DatabaseError::NotFound`] when there is none.
pub fn set_draining(
    connection: &mut DbConnection,
    id: WorkerId,
    draining: bool,
) -> Result<WorkerRow, DatabaseError> {
    diesel::update(enrolled(id))
        .set(workers::draining.eq(draining))
        .execute(connection)?;
    get(connection, id)
}

/// Deletes a worker: its key is void, its row stays for the jobs that it ran.
///
/// # Errors
/// [`DatabaseError::NotFound`] when there is none.
pub fn delete(
    connection: &mut DbConnection,
    id: WorkerId,
    now: NaiveDateTime,
) -> Result<(), DatabaseError> {
    let changed = diesel::update(enrolled(id))
        .set(workers::deleted_at.eq(now))
        .execute(connection)?;
    if changed == 0 {
        Err(DatabaseError::NotFound)
    } else {
        Ok(())
    }
}

/// Gives a worker a new key, with what the supervisor and the worker must know of it.
///
/// # Errors
/// [`DatabaseError::NotFound`] when there is none.
pub fn replace_key(
    connection: &mut DbConnection,
    id: WorkerId,
) -> Result<(NewToken, KnownWorker), DatabaseError> {
    let key = worker_keys::replace(connection, id.get())?;
    Ok((key, get_known(connection, id)?))
}

#[diesel::dsl::auto_type(no_type_alias)]
fn enrolled(id: WorkerId) -> _ {
    let number: i64 = id.get();
    workers::table
        .filter(workers::id.eq(number))
        .filter(workers::deleted_at.is_null())
}

fn known(row: WorkerRow) -> Option<KnownWorker> {
    Some(KnownWorker {
        id: WorkerId(row.id),
        uuid: row.uuid.parse().ok()?,
        name: row.name,
        draining: row.draining,
    })
}
