//! SQL of evaluations.

use chrono::NaiveDateTime;
use diesel::prelude::*;
use trainyard_shared::FailureKind;
use trainyard_shared::ids::{DatasetId, EvaluationId, JobId, UserId, WorkerId};
use trainyard_shared::message::EvaluationMetrics;

use super::state::{End, Failure, Phase};
use crate::database::schema::evaluations;
use crate::database::{DatabaseError, DbConnection, from_json_text, last_insert_id, to_json_text};

/// Most evaluations of the queue that are looked at in one round of the dispatcher.
const QUEUE_WINDOW: i64 = 1_000;
const QUEUED: &str = Phase::Queued.as_str();
const RUNNING: &str = "running";

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
    /// Its number.
    pub fn id(&self) -> EvaluationId {
        EvaluationId(self.id)
    }

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

    /// Why there are none.
    pub fn failure(&self) -> Option<Failure> {
        let kind = FailureKind::from_word(self.failure_kind.as_deref()?);
        Some(Failure {
            error: self.error.clone().unwrap_or_default(),
            kind: kind.unwrap_or(FailureKind::Internal),
        })
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

/// An evaluation's row.
///
/// # Errors
/// [`DatabaseError::NotFound`] when there is no such evaluation.
pub fn row(
    connection: &mut DbConnection,
    id: EvaluationId,
) -> Result<EvaluationRow, DatabaseError> {
    Ok(evaluations::table
        .find(id.get())
        .select(EvaluationRow::as_select())
        .first(connection)?)
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

/// The evaluations that have not ended, oldest first.
///
/// # Errors
/// Those of the database.
pub fn under_way(connection: &mut DbConnection) -> Result<Vec<EvaluationRow>, DatabaseError> {
    Ok(evaluations::table
        .filter(evaluations::ended_at.is_null())
        .order(evaluations::id.asc())
        .select(EvaluationRow::as_select())
        .load(connection)?)
}

/// The front of the queue, oldest first.
///
/// # Errors
/// Those of the database.
pub fn queue(connection: &mut DbConnection) -> Result<Vec<EvaluationId>, DatabaseError> {
    let ids: Vec<i64> = evaluations::table
        .filter(evaluations::status.eq(QUEUED))
        .order(evaluations::id.asc())
        .limit(QUEUE_WINDOW)
        .select(evaluations::id)
        .load(connection)?;
    Ok(ids.into_iter().map(EvaluationId).collect())
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

/// The same of a job.
///
/// # Errors
/// Those of the database.
pub fn uses_job(connection: &mut DbConnection, job: JobId) -> Result<bool, DatabaseError> {
    let found: Option<i64> = evaluations::table
        .filter(evaluations::job_id.eq(job.get()))
        .filter(evaluations::ended_at.is_null())
        .select(evaluations::id)
        .first(connection)
        .optional()?;
    Ok(found.is_some())
}

/// Whether a worker measures a job's adapter at the moment.
///
/// # Errors
/// Those of the database.
pub fn needs_adapter(
    connection: &mut DbConnection,
    worker: WorkerId,
    job: JobId,
) -> Result<bool, DatabaseError> {
    let found: Option<i64> = evaluations::table
        .filter(evaluations::job_id.eq(job.get()))
        .filter(evaluations::worker_id.eq(worker.get()))
        .filter(evaluations::ended_at.is_null())
        .select(evaluations::id)
        .first(connection)
        .optional()?;
    Ok(found.is_some())
}

/// Writes down where an evaluation stands. Its actor is the only one that does, so a repeat after an outcome that
/// is not known writes the same again.
///
/// # Errors
/// Those of the database.
pub fn save(
    connection: &mut DbConnection,
    id: EvaluationId,
    phase: Phase,
    end: Option<&End>,
    now: NaiveDateTime,
) -> Result<(), DatabaseError> {
    let worker = phase.worker().map(WorkerId::get);
    let row = evaluations::table.find(id.get());
    match end {
        None => {
            diesel::update(row)
                .set((
                    evaluations::status.eq(RUNNING),
                    evaluations::worker_id.eq(worker),
                    evaluations::started_at.eq(now),
                ))
                .execute(connection)?;
        }
        Some(end) => {
            let (result, failure) = match end {
                End::Figures(figures) => (Some(to_json_text(figures)?), None),
                End::Failure(failure) => (None, Some(failure)),
                End::Cancelled => (None, None),
            };
            diesel::update(row)
                .set((
                    evaluations::status.eq(phase.as_str()),
                    evaluations::worker_id.eq(worker),
                    evaluations::result.eq(result),
                    evaluations::failure_kind.eq(failure.map(|failure| failure.kind.as_str())),
                    evaluations::error.eq(failure.map(|failure| failure.error.as_str())),
                    evaluations::ended_at.eq(now),
                ))
                .execute(connection)?;
        }
    }
    Ok(())
}
