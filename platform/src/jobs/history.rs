//! SQL of what is known of a job beside its row: events, log, checkpoints, files.

use std::collections::BTreeSet;

use chrono::NaiveDateTime;
use diesel::prelude::*;
use trainyard_shared::ids::JobId;

use crate::database::schema::{artifacts, checkpoints, job_events, job_logs};
use crate::database::{DatabaseError, DbConnection};

/// A row of the history.
#[derive(Debug, Clone, Queryable, Selectable)]
#[diesel(table_name = job_events)]
#[allow(missing_docs)] // columns are described in migrations/
pub struct EventRow {
    pub id: i64,
    pub attempt: i32,
    pub at: NaiveDateTime,
    pub kind: String,
    pub from_status: String,
    pub to_status: String,
    pub detail: String,
}

/// A line of the log.
#[derive(Debug, Clone, Queryable, Selectable)]
#[diesel(table_name = job_logs)]
#[allow(missing_docs)]
pub struct LogRow {
    pub id: i64,
    pub attempt: i32,
    pub at: NaiveDateTime,
    pub level: String,
    pub line: String,
}

/// A checkpoint.
#[derive(Debug, Clone, Queryable, Selectable)]
#[diesel(table_name = checkpoints)]
#[allow(missing_docs)]
pub struct CheckpointRow {
    pub attempt: i32,
    pub step: i64,
    pub epoch: Option<i64>,
    pub path: String,
    pub metrics: String,
    pub verified: bool,
    pub created_at: NaiveDateTime,
}

/// A file of a checkpoint or of the result.
#[derive(Debug, Clone, Queryable, Selectable)]
#[diesel(table_name = artifacts)]
#[allow(missing_docs)]
pub struct ArtifactRow {
    pub attempt: i32,
    pub step: Option<i64>,
    pub storage_key: String,
    pub size_bytes: i64,
    pub sha256: String,
    pub created_at: NaiveDateTime,
}

/// Rows of the history behind the one with id `after`, oldest first.
///
/// # Errors
/// Those of the database.
pub fn events(
    connection: &mut DbConnection,
    job: JobId,
    after: i64,
    limit: i64,
) -> Result<Vec<EventRow>, DatabaseError> {
    Ok(job_events::table
        .filter(job_events::job_id.eq(job.get()))
        .filter(job_events::id.gt(after))
        .order(job_events::id.asc())
        .limit(limit)
        .select(EventRow::as_select())
        .load(connection)?)
}

/// Lines of the log behind the one with id `after`, oldest first.
///
/// # Errors
/// Those of the database.
pub fn lines(
    connection: &mut DbConnection,
    job: JobId,
    after: i64,
    limit: i64,
) -> Result<Vec<LogRow>, DatabaseError> {
    Ok(job_logs::table
        .filter(job_logs::job_id.eq(job.get()))
        .filter(job_logs::id.gt(after))
        .order(job_logs::id.asc())
        .limit(limit)
        .select(LogRow::as_select())
        .load(connection)?)
}

/// All checkpoints, by step; of a step that was saved by several attempts the newest last.
///
/// # Errors
/// Those of the database.
pub fn checkpoints(
    connection: &mut DbConnection,
    job: JobId,
) -> Result<Vec<CheckpointRow>, DatabaseError> {
    Ok(checkpoints::table
        .filter(checkpoints::job_id.eq(job.get()))
        .order((checkpoints::step.asc(), checkpoints::attempt.asc()))
        .select(CheckpointRow::as_select())
        .load(connection)?)
}

/// The files of the result and of its exports, by key.
///
/// # Errors
/// Those of the database.
pub fn result_files(
    connection: &mut DbConnection,
    job: JobId,
) -> Result<Vec<ArtifactRow>, DatabaseError> {
    Ok(artifacts::table
        .filter(artifacts::job_id.eq(job.get()))
        .filter(artifacts::step.is_null())
        .order(artifacts::storage_key.asc())
        .select(ArtifactRow::as_select())
        .load(connection)?)
}

/// The files of all checkpoints, by key.
///
/// # Errors
/// Those of the database.
pub fn checkpoint_files(
    connection: &mut DbConnection,
    job: JobId,
) -> Result<Vec<ArtifactRow>, DatabaseError> {
    Ok(artifacts::table
        .filter(artifacts::job_id.eq(job.get()))
        .filter(artifacts::step.is_not_null())
        .order(artifacts::storage_key.asc())
        .select(ArtifactRow::as_select())
        .load(connection)?)
}

/// The jobs that have files of a result.
///
/// # Errors
/// Those of the database.
pub fn jobs_with_result_files(
    connection: &mut DbConnection,
) -> Result<BTreeSet<i64>, DatabaseError> {
    let jobs: Vec<i64> = artifacts::table
        .filter(artifacts::step.is_null())
        .select(artifacts::job_id)
        .distinct()
        .load(connection)?;
    Ok(jobs.into_iter().collect())
}
