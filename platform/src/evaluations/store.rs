//! SQL of evaluations.

use chrono::NaiveDateTime;
use diesel::prelude::*;
use trainyard_shared::ids::{DatasetId, EvaluationId, JobId, UserId};
use trainyard_shared::message::EvaluationMetrics;

use crate::database::schema::evaluations;
use crate::database::{DatabaseError, DbConnection, from_json_text, last_insert_id, to_json_text};
use crate::tasks::task_queries;

task_queries!(evaluations, EvaluationRow, EvaluationId);

/// An evaluation's row.
#[derive(Debug, Clone, Queryable, Selectable)]
#[diesel(table_name = evaluations)]
#[allow(missing_docs)] // columns are described in migrations/
pub struct EvaluationRow {
    pub id: i64,
    pub owner_id: i64,
    pub job_id: Option<i64>,
    pub model: String,
    pub base_model: String,
    pub dataset_id: i64,
    pub metrics: String,
    pub batch_size: Option<i64>,
    pub max_length: Option<i64>,
    pub status: String,
    pub worker_id: Option<i64>,
    pub result: Option<String>,
    pub failure_kind: Option<String>,
    pub error: Option<String>,
    pub created_at: NaiveDateTime,
    pub started_at: Option<NaiveDateTime>,
    pub ended_at: Option<NaiveDateTime>,
}

/// An evaluation that is to be made.
#[derive(Debug, Clone)]
pub struct NewEvaluation {
    /// Whose it is.
    pub owner: UserId,
    /// The job whose adapter is measured.
    pub job: Option<JobId>,
    /// The model's name.
    pub model: String,
    /// The base model's name at the hub.
    pub base_model: String,
    /// What it is measured on.
    pub dataset: DatasetId,
    /// What is measured.
    pub metrics: Vec<String>,
    /// Sequences at a time.
    pub batch_size: Option<u32>,
    /// Longest sequence, in tokens.
    pub max_length: Option<u32>,
}

impl EvaluationRow {
    /// What is measured.
    ///
    /// # Errors
    /// When what is stored cannot be read.
    pub fn metrics(&self) -> Result<Vec<String>, DatabaseError> {
        from_json_text(&self.metrics)
    }

    /// The figures.
    ///
    /// # Errors
    /// When what is stored cannot be read.
    pub fn result(&self) -> Result<Option<EvaluationMetrics>, DatabaseError> {
        self.result.as_deref().map(from_json_text).transpose()
    }
}

/// Makes an evaluation, queued.
///
/// # Errors
/// Those of the database.
pub fn insert(
    connection: &mut DbConnection,
    new: &NewEvaluation,
    now: NaiveDateTime,
) -> Result<EvaluationRow, DatabaseError> {
    diesel::insert_into(evaluations::table)
        .values((
            evaluations::owner_id.eq(new.owner.get()),
            evaluations::job_id.eq(new.job.map(JobId::get)),
            evaluations::model.eq(&new.model),
            evaluations::base_model.eq(&new.base_model),
            evaluations::dataset_id.eq(new.dataset.get()),
            evaluations::metrics.eq(to_json_text(&new.metrics)?),
            evaluations::batch_size.eq(new.batch_size.map(i64::from)),
            evaluations::max_length.eq(new.max_length.map(i64::from)),
            evaluations::status.eq(QUEUED),
            evaluations::created_at.eq(now),
        ))
        .execute(connection)?;
    let id = last_insert_id(connection)?;
    row(connection, EvaluationId(id))
}

/// Evaluations with an id below `before`, newest first; of one owner only, where given.
///
/// # Errors
/// Those of the database.
pub fn list(
    connection: &mut DbConnection,
    owner: Option<i64>,
    before: i64,
    limit: i64,
) -> Result<Vec<EvaluationRow>, DatabaseError> {
    let mut query = evaluations::table
        .filter(evaluations::id.lt(before))
        .order(evaluations::id.desc())
        .limit(limit)
        .select(EvaluationRow::as_select())
        .into_boxed();
    if let Some(owner) = owner {
        query = query.filter(evaluations::owner_id.eq(owner));
    }
    Ok(query.load(connection)?)
}

/// Whether an evaluation that has not ended measures the model.
///
/// # Errors
/// Those of the database.
pub fn uses_model(connection: &mut DbConnection, model: &str) -> Result<bool, DatabaseError> {
    let found: Option<i64> = evaluations::table
        .filter(evaluations::model.eq(model))
        .filter(evaluations::ended_at.is_null())
        .select(evaluations::id)
        .first(connection)
        .optional()?;
    Ok(found.is_some())
}

/// Whether an evaluation that has not ended uses the data set.
///
/// # Errors
/// Those of the database.
pub fn uses_dataset(
    connection: &mut DbConnection,
    dataset: DatasetId,
) -> Result<bool, DatabaseError> {
    let found: Option<i64> = evaluations::table
        .filter(evaluations::dataset_id.eq(dataset.get()))
        .filter(evaluations::ended_at.is_null())
        .select(evaluations::id)
        .first(connection)
        .optional()?;
    Ok(found.is_some())
}
