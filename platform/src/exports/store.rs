//! SQL of exports.

use chrono::NaiveDateTime;
use diesel::prelude::*;
use trainyard_shared::ids::{ExportId, JobId, UserId};
use trainyard_shared::message::ArtifactFile;
use trainyard_shared::{ExportFormat, WeightType};

use crate::database::schema::{artifacts, exports};
use crate::database::{DatabaseError, DbConnection, from_json_text, last_insert_id};
use crate::jobs;
use crate::jobs::store::not_ours;
use crate::tasks::task_queries;

task_queries!(exports, ExportRow, ExportId);

/// An export's row.
#[derive(Debug, Clone, Queryable, Selectable)]
#[diesel(table_name = exports)]
#[allow(missing_docs)] // columns are described in migrations/
pub struct ExportRow {
    pub id: i64,
    pub owner_id: i64,
    pub job_id: i64,
    pub format: String,
    pub weights: Option<String>,
    pub status: String,
    pub worker_id: Option<i64>,
    pub result: Option<String>,
    pub failure_kind: Option<String>,
    pub error: Option<String>,
    pub created_at: NaiveDateTime,
    pub started_at: Option<NaiveDateTime>,
    pub ended_at: Option<NaiveDateTime>,
}

/// An export that is to be made.
#[derive(Debug, Clone, Copy)]
pub struct NewExport {
    /// Whose it is.
    pub owner: UserId,
    /// The job whose result it is.
    pub job: JobId,
    /// In which form.
    pub format: ExportFormat,
    /// Type of the weights; none for the form's own.
    pub weights: Option<WeightType>,
}

impl ExportRow {
    /// The job whose result it is.
    pub fn job(&self) -> JobId {
        JobId(self.job_id)
    }

    /// In which form.
    ///
    /// # Errors
    /// When what is stored cannot be read.
    pub fn format(&self) -> Result<ExportFormat, DatabaseError> {
        ExportFormat::from_word(&self.format)
            .ok_or_else(|| not_ours("exports.format", &self.format))
    }

    /// Type of the weights, where one was asked for.
    ///
    /// # Errors
    /// When what is stored cannot be read.
    pub fn weights(&self) -> Result<Option<WeightType>, DatabaseError> {
        let read = |word: &String| {
            WeightType::from_word(word).ok_or_else(|| not_ours("exports.weights", word))
        };
        self.weights.as_ref().map(read).transpose()
    }

    /// The files, once they are there.
    ///
    /// # Errors
    /// When what is stored cannot be read.
    pub fn files(&self) -> Result<Vec<ArtifactFile>, DatabaseError> {
        self.result
            .as_deref()
            .map_or(Ok(Vec::new()), from_json_text)
    }
}

/// Makes an export, queued.
///
/// # Errors
/// Those of the database.
pub fn insert(
    connection: &mut DbConnection,
    new: NewExport,
    now: NaiveDateTime,
) -> Result<ExportRow, DatabaseError> {
    diesel::insert_into(exports::table)
        .values((
            exports::owner_id.eq(new.owner.get()),
            exports::job_id.eq(new.job.get()),
            exports::format.eq(new.format.as_str()),
            exports::weights.eq(new.weights.map(WeightType::as_str)),
            exports::status.eq(QUEUED),
            exports::created_at.eq(now),
        ))
        .execute(connection)?;
    let id = last_insert_id(connection)?;
    row(connection, ExportId(id))
}

/// The exports of a job with an id below `before`, newest first.
///
/// # Errors
/// Those of the database.
pub fn list(
    connection: &mut DbConnection,
    job: JobId,
    before: i64,
    limit: i64,
) -> Result<Vec<ExportRow>, DatabaseError> {
    Ok(exports::table
        .filter(exports::job_id.eq(job.get()))
        .filter(exports::id.lt(before))
        .order(exports::id.desc())
        .limit(limit)
        .select(ExportRow::as_select())
        .load(connection)?)
}

/// Lists the files of an export among those of its job.
///
/// # Errors
/// Those of the database.
pub fn list_files(
    connection: &mut DbConnection,
    job: JobId,
    files: &[ArtifactFile],
    now: NaiveDateTime,
) -> Result<(), DatabaseError> {
    let attempt = jobs::store::row(connection, job)?.attempt;
    for file in files {
        jobs::add_artifact(connection, job, attempt, None, file, now)?;
    }
    Ok(())
}

/// Removes an export that has ended, and its files from the list of those of its job.
///
/// # Errors
/// Those of the database.
pub fn delete(connection: &mut DbConnection, row: &ExportRow) -> Result<(), DatabaseError> {
    for file in row.files()? {
        diesel::delete(
            artifacts::table
                .filter(artifacts::job_id.eq(row.job_id))
                .filter(artifacts::storage_key.eq(file.key)),
        )
        .execute(connection)?;
    }
    diesel::delete(exports::table.find(row.id)).execute(connection)?;
    Ok(())
}
