//! SQL of data sets.

use chrono::NaiveDateTime;
use diesel::prelude::*;
use trainyard_datasets::RowReport;
use trainyard_shared::dataset::DatasetFormat;

use crate::database::schema::datasets;
use crate::database::{DatabaseError, DbConnection, last_insert_id};
use crate::storage::StoredObject;

const UPLOADING: &str = "uploading";
const READY: &str = "ready";
const DELETING: &str = "deleting";
const DELETED: &str = "deleted";

/// A stored data set.
#[derive(Debug, Clone, Queryable, Selectable)]
#[diesel(table_name = datasets)]
pub struct Dataset {
    /// Its number.
    pub id: i64,
    /// The user who uploaded it.
    pub owner_id: i64,
    /// What its owner calls it.
    pub name: String,
    /// Format of the file.
    pub format: String,
    /// Where the file is kept.
    pub storage_key: String,
    /// Size of the file.
    pub bytes: i64,
    /// Digest of the file, as 64 lower-case hex digits.
    pub sha256: String,
    /// Good rows.
    pub row_count: i64,
    /// Good rows with nothing to train on.
    pub untrainable_rows: i64,
    /// Bad rows.
    pub bad_rows: i64,
    /// Good rows by shape, as JSON.
    pub row_shapes: String,
    /// The first bad rows, as JSON.
    pub problems: String,
    /// When it was uploaded.
    pub created_at: NaiveDateTime,
}

/// Reserves a number for a data set that is being uploaded.
pub(super) fn insert_uploading(
    connection: &mut DbConnection,
    owner_id: i64,
    name: &str,
    format: DatasetFormat,
    now: NaiveDateTime,
) -> Result<i64, DatabaseError> {
    diesel::insert_into(datasets::table)
        .values((
            datasets::owner_id.eq(owner_id),
            datasets::name.eq(name),
            datasets::format.eq(format.as_str()),
            datasets::storage_key.eq(""),
            datasets::state.eq(UPLOADING),
            datasets::created_at.eq(now),
        ))
        .execute(connection)?;
    let id = last_insert_id(connection)?;
    diesel::update(datasets::table.find(id))
        .set(datasets::storage_key.eq(storage_key(id, format)))
        .execute(connection)?;
    Ok(id)
}

/// Where the file of a data set is kept.
pub(super) fn storage_key(id: i64, format: DatasetFormat) -> String {
    format!("datasets/{id}/data.{format}")
}

/// Makes an uploaded data set visible.
pub(super) fn mark_ready(
    connection: &mut DbConnection,
    id: i64,
    stored: &StoredObject,
    report: &RowReport,
) -> Result<Dataset, DatabaseError> {
    let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let text = |value: serde_json::Result<String>| {
        value.map_err(|error| {
            DatabaseError::Query(diesel::result::Error::SerializationError(Box::new(error)))
        })
    };
    let changed = diesel::update(
        datasets::table
            .find(id)
            .filter(datasets::state.eq(UPLOADING)),
    )
    .set((
        datasets::state.eq(READY),
        datasets::bytes.eq(count(stored.size_bytes)),
        datasets::sha256.eq(&stored.sha256),
        datasets::row_count.eq(count(report.rows)),
        datasets::untrainable_rows.eq(count(report.untrainable_rows)),
        datasets::bad_rows.eq(count(report.bad_rows)),
        datasets::row_shapes.eq(text(serde_json::to_string(&report.row_shapes))?),
        datasets::problems.eq(text(serde_json::to_string(&report.problems))?),
    ))
    .execute(connection)?;
    if changed == 0 {
        Err(DatabaseError::NotFound)
    } else {
        get(connection, id)
    }
}

/// Forgets a data set that never became ready.
pub(super) fn delete_uploading(
    connection: &mut DbConnection,
    id: i64,
) -> Result<(), DatabaseError> {
    diesel::delete(
        datasets::table
            .find(id)
            .filter(datasets::state.eq(UPLOADING)),
    )
    .execute(connection)?;
    Ok(())
}

/// One data set.
///
/// # Errors
/// [`DatabaseError::NotFound`] when there is none.
pub fn get(connection: &mut DbConnection, id: i64) -> Result<Dataset, DatabaseError> {
    Ok(datasets::table
        .find(id)
        .filter(datasets::state.eq(READY))
        .select(Dataset::as_select())
        .first(connection)?)
}

/// Data sets with an id below `before`, newest first; of one owner only, where one is given.
pub(super) fn list(
    connection: &mut DbConnection,
    owner_id: Option<i64>,
    before: i64,
    limit: i64,
) -> Result<Vec<Dataset>, DatabaseError> {
    let mut query = datasets::table
        .filter(datasets::state.eq(READY))
        .filter(datasets::id.lt(before))
        .order(datasets::id.desc())
        .limit(limit)
        .select(Dataset::as_select())
        .into_boxed();
    if let Some(owner_id) = owner_id {
        query = query.filter(datasets::owner_id.eq(owner_id));
    }
    Ok(query.load(connection)?)
}

/// Bytes that a user keeps.
pub(super) fn bytes_of_owner(
    connection: &mut DbConnection,
    owner_id: i64,
) -> Result<u64, DatabaseError> {
    let sizes: Vec<i64> = datasets::table
        .filter(datasets::owner_id.eq(owner_id))
        .filter(datasets::state.eq(READY))
        .select(datasets::bytes)
        .load(connection)?;
    Ok(sizes
        .into_iter()
        .filter_map(|size| u64::try_from(size).ok())
        .sum())
}

/// Hides a data set whose file is about to be removed.
pub(super) fn mark_deleting(connection: &mut DbConnection, id: i64) -> Result<(), DatabaseError> {
    diesel::update(datasets::table.find(id).filter(datasets::state.eq(READY)))
        .set(datasets::state.eq(DELETING))
        .execute(connection)?;
    Ok(())
}

/// Records that the file is gone. The row stays for the jobs that were run on it.
pub(super) fn mark_deleted(connection: &mut DbConnection, id: i64) -> Result<(), DatabaseError> {
    diesel::update(
        datasets::table
            .find(id)
            .filter(datasets::state.eq(DELETING)),
    )
    .set(datasets::state.eq(DELETED))
    .execute(connection)?;
    Ok(())
}

/// Number and storage key of the data sets whose upload or deletion was interrupted.
pub(super) fn unfinished(
    connection: &mut DbConnection,
) -> Result<Vec<(i64, String)>, DatabaseError> {
    Ok(datasets::table
        .filter(datasets::state.eq_any([UPLOADING, DELETING]))
        .select((datasets::id, datasets::storage_key))
        .load(connection)?)
}

/// Records that an interrupted upload or deletion has been cleared away.
pub(super) fn clear_unfinished(
    connection: &mut DbConnection,
    id: i64,
) -> Result<(), DatabaseError> {
    delete_uploading(connection, id)?;
    mark_deleted(connection, id)
}
