//! SQL of jobs: their rows, and what the dispatcher asks of them. Transitions are in [`super::commit`], the
//! history in [`super::history`].

use std::collections::BTreeMap;

use chrono::NaiveDateTime;
use diesel::dsl::count_star;
use diesel::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use trainyard_shared::ids::{DatasetId, JobId, UserId, WorkerId};
use trainyard_shared::message::{JobCompletedData, JobStartedData, TrainingProgressData};
use trainyard_shared::training::TrainingConfig;
use trainyard_shared::{FailureKind, JobStatus};

use super::failure::Failure;
use super::phase::{CheckpointMark, Phase};
use super::progress::Progress;
use super::state::JobState;
use crate::clock::Moment;
use crate::database::schema::{checkpoints, job_attempts, job_events, jobs, users};
use crate::database::{DatabaseError, DbConnection, from_json_text, last_insert_id, to_json_text};
use crate::workers::placement::{Shares, WaitingJob, gpu_memory_need_gb};

/// Most jobs of the queue that are looked at in one round of the dispatcher.
const QUEUE_WINDOW: i64 = 1_000;

/// A job's row.
#[derive(Debug, Clone, Queryable, Selectable)]
#[diesel(table_name = jobs)]
#[allow(missing_docs)] // columns are described in migrations/
pub struct JobRow {
    pub id: i64,
    pub owner_id: i64,
    pub name: String,
    pub dataset_id: i64,
    pub base_model: String,
    pub config: String,
    pub priority: i32,
    pub max_retries: i32,
    pub requested_worker_id: Option<i64>,
    pub status: String,
    pub attempt: i32,
    pub retries_left: i32,
    pub worker_id: Option<i64>,
    pub resume_from: Option<i64>,
    pub failure_kind: Option<String>,
    pub error: Option<String>,
    pub started: Option<String>,
    pub progress: Option<String>,
    pub result: Option<String>,
    pub revision: i64,
    pub created_at: NaiveDateTime,
    pub started_at: Option<NaiveDateTime>,
    pub ended_at: Option<NaiveDateTime>,
}

/// A job that is to be made.
#[derive(Debug, Clone)]
pub struct NewJob {
    /// Whose it is.
    pub owner: UserId,
    /// What its owner calls it; none: `job-` and its number.
    pub name: Option<String>,
    /// What it trains on.
    pub dataset: DatasetId,
    /// The base model's name at the hub.
    pub base_model: String,
    /// The config as it was sent.
    pub config: Map<String, Value>,
    /// Higher comes first.
    pub priority: i32,
    /// So many attempts may follow a failed one by themselves.
    pub max_retries: u32,
    /// The only worker that may have it.
    pub requested_worker: Option<WorkerId>,
}

/// A job as its actor holds it: what never changes, what is decided about, and the revision of that.
#[derive(Debug, Clone)]
pub struct StoredJob {
    /// What never changes.
    pub facts: JobFacts,
    /// What is decided about.
    pub state: JobState,
    /// What a transition must name as the one that it builds on.
    pub revision: i64,
}

/// What never changes about a job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobFacts {
    /// Its id.
    pub id: JobId,
    /// Whose it is.
    pub owner: UserId,
    /// What it trains on.
    pub dataset: DatasetId,
    /// The base model's name at the hub.
    pub base_model: String,
    /// The config as it was sent.
    pub config: Map<String, Value>,
    /// The only worker that may have it.
    pub requested_worker: Option<WorkerId>,
}

impl JobRow {
    /// Where it stands.
    ///
    /// # Errors
    /// When the row holds a word that is none of ours.
    pub fn job_status(&self) -> Result<JobStatus, DatabaseError> {
        JobStatus::from_word(&self.status).ok_or_else(|| not_ours("jobs.status", &self.status))
    }

    /// Whose its failure is.
    pub fn failure(&self) -> Option<Failure> {
        let kind = FailureKind::from_word(self.failure_kind.as_deref()?);
        Some(Failure {
            kind: kind.unwrap_or(FailureKind::Internal),
            error: self.error.clone().unwrap_or_default(),
        })
    }

    /// Newest step of the present attempt.
    ///
    /// # Errors
    /// When what is stored cannot be read.
    pub fn newest_progress(&self) -> Result<Option<TrainingProgressData>, DatabaseError> {
        optional_json(self.progress.as_deref())
    }

    /// What `job_started` told.
    ///
    /// # Errors
    /// When what is stored cannot be read.
    pub fn started_data(&self) -> Result<Option<JobStartedData>, DatabaseError> {
        optional_json(self.started.as_deref())
    }

    /// What `job_completed` told.
    ///
    /// # Errors
    /// When what is stored cannot be read.
    pub fn result_data(&self) -> Result<Option<JobCompletedData>, DatabaseError> {
        optional_json(self.result.as_deref())
    }

    /// The config as it was sent.
    ///
    /// # Errors
    /// When what is stored cannot be read.
    pub fn config(&self) -> Result<Map<String, Value>, DatabaseError> {
        from_json_text(&self.config)
    }
}

/// Makes a job, queued.
///
/// # Errors
/// Those of the database.
pub fn insert(
    connection: &mut DbConnection,
    new: &NewJob,
    now: NaiveDateTime,
) -> Result<JobRow, DatabaseError> {
    let retries = i32::try_from(new.max_retries).unwrap_or(i32::MAX);
    diesel::insert_into(jobs::table)
        .values((
            jobs::owner_id.eq(new.owner.get()),
            jobs::name.eq(new.name.as_deref().unwrap_or_default()),
            jobs::dataset_id.eq(new.dataset.get()),
            jobs::base_model.eq(&new.base_model),
            jobs::config.eq(to_json_text(&new.config)?),
            jobs::priority.eq(new.priority),
            jobs::max_retries.eq(retries),
            jobs::requested_worker_id.eq(new.requested_worker.map(WorkerId::get)),
            jobs::status.eq(JobStatus::Queued.as_str()),
            jobs::attempt.eq(1),
            jobs::retries_left.eq(retries),
            jobs::created_at.eq(now),
        ))
        .execute(connection)?;
    let id = last_insert_id(connection)?;
    if new.name.is_none() {
        diesel::update(jobs::table.find(id))
            .set(jobs::name.eq(format!("job-{id}")))
            .execute(connection)?;
    }
    diesel::insert_into(job_events::table)
        .values((
            job_events::job_id.eq(id),
            job_events::attempt.eq(1),
            job_events::at.eq(now),
            job_events::kind.eq("created"),
            job_events::from_status.eq(JobStatus::Queued.as_str()),
            job_events::to_status.eq(JobStatus::Queued.as_str()),
            job_events::detail.eq(""),
        ))
        .execute(connection)?;
    row(connection, JobId(id))
}

/// A job's row.
///
/// # Errors
/// [`DatabaseError::NotFound`] when there is no such job.
pub fn row(connection: &mut DbConnection, id: JobId) -> Result<JobRow, DatabaseError> {
    Ok(jobs::table
        .find(id.get())
        .select(JobRow::as_select())
        .first(connection)?)
}

/// Jobs with an id below `before`, newest first; of one owner and in one status only, where given.
///
/// # Errors
/// Those of the database.
pub fn list(
    connection: &mut DbConnection,
    owner: Option<i64>,
    status: Option<JobStatus>,
    before: i64,
    limit: i64,
) -> Result<Vec<JobRow>, DatabaseError> {
    let mut query = jobs::table
        .filter(jobs::id.lt(before))
        .order(jobs::id.desc())
        .limit(limit)
        .select(JobRow::as_select())
        .into_boxed();
    if let Some(owner) = owner {
        query = query.filter(jobs::owner_id.eq(owner));
    }
    if let Some(status) = status {
        query = query.filter(jobs::status.eq(status.as_str()));
    }
    Ok(query.load(connection)?)
}

/// A job as its actor needs it; nothing where there is none. Waiting times count from `now`.
///
/// # Errors
/// Those of the database.
pub fn load(
    connection: &mut DbConnection,
    id: JobId,
    now: Moment,
) -> Result<Option<StoredJob>, DatabaseError> {
    let Some(row) = row(connection, id).map(Some).or_else(absent)? else {
        return Ok(None);
    };
    let owners: Vec<(i32, i64)> = job_attempts::table
        .filter(job_attempts::job_id.eq(id.get()))
        .select((job_attempts::attempt, job_attempts::worker_id))
        .load(connection)?;
    let marks: Vec<(i32, i64, bool, String)> = checkpoints::table
        .filter(checkpoints::job_id.eq(id.get()))
        .select((
            checkpoints::attempt,
            checkpoints::step,
            checkpoints::verified,
            checkpoints::metrics,
        ))
        .load(connection)?;
    let worker = || {
        let stored = row.worker_id.and_then(|id| WorkerId::try_from(id).ok());
        stored.ok_or_else(|| not_ours("jobs.worker_id", &format!("{:?}", row.worker_id)))
    };
    // The deadlines are set by `JobState::after_restart`.
    let phase = match row.job_status()? {
        JobStatus::Queued => Phase::Queued,
        JobStatus::Assigned => Phase::Assigned {
            worker: worker()?,
            start_by: now,
        },
        JobStatus::Running => Phase::Running {
            worker: worker()?,
            missing_by: None,
        },
        JobStatus::Stopping => Phase::Stopping {
            worker: worker()?,
            stop_by: now,
        },
        JobStatus::Completed => Phase::Completed,
        JobStatus::Failed => Phase::Failed,
        JobStatus::Stopped => Phase::Stopped,
    };
    let state = JobState {
        id,
        phase,
        attempt: count(row.attempt),
        max_retries: count(row.max_retries),
        retries_left: count(row.retries_left),
        owners: owners
            .into_iter()
            .map(|(attempt, worker)| (count(attempt), WorkerId(worker)))
            .collect(),
        awaiting_worker: false,
        resume_from: row.resume_from.map(step),
        checkpoints: marks
            .into_iter()
            .map(|(attempt, at, verified, metrics)| {
                let metrics = from_json_text(&metrics)?;
                let mark = CheckpointMark::new(verified, &metrics);
                Ok(((count(attempt), step(at)), mark))
            })
            .collect::<Result<_, DatabaseError>>()?,
        save_total_limit: save_total_limit(row.config()?),
        total_steps: match phase {
            Phase::Running { .. } | Phase::Stopping { .. } => {
                row.started_data()?.and_then(|started| started.total_steps)
            }
            _ => None,
        },
        progress: Progress::known(row.newest_progress()?),
        failure: row.failure(),
    };
    let facts = JobFacts {
        id,
        owner: UserId(row.owner_id),
        dataset: DatasetId(row.dataset_id),
        base_model: row.base_model.clone(),
        config: row.config()?,
        requested_worker: row.requested_worker_id.map(WorkerId),
    };
    Ok(Some(StoredJob {
        facts,
        state,
        revision: row.revision,
    }))
}

/// A config was checked when the job was made.
fn save_total_limit(config: Map<String, Value>) -> usize {
    let parsed = TrainingConfig::parse(&Value::Object(config)).unwrap_or_default();
    usize::try_from(parsed.save_total_limit).unwrap_or(usize::MAX)
}

/// The jobs that are with a worker.
///
/// # Errors
/// Those of the database.
pub fn with_workers(
    connection: &mut DbConnection,
) -> Result<Vec<(JobId, WorkerId)>, DatabaseError> {
    let rows: Vec<(i64, Option<i64>)> = jobs::table
        .filter(jobs::status.eq_any(WITH_WORKER))
        .select((jobs::id, jobs::worker_id))
        .load(connection)?;
    Ok(rows
        .into_iter()
        .filter_map(|(job, worker)| Some((JobId(job), WorkerId(worker?))))
        .collect())
}

/// The front of the queue, and how much each owner has with workers.
///
/// # Errors
/// Those of the database.
pub fn queue(connection: &mut DbConnection) -> Result<(Vec<WaitingJob>, Shares), DatabaseError> {
    let rows: Vec<JobRow> = jobs::table
        .filter(jobs::status.eq(JobStatus::Queued.as_str()))
        .order((jobs::priority.desc(), jobs::id.asc()))
        .limit(QUEUE_WINDOW)
        .select(JobRow::as_select())
        .load(connection)?;
    let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
    let mut failed_on: BTreeMap<i64, Vec<WorkerId>> = BTreeMap::new();
    let attempts: Vec<(i64, i64)> = job_attempts::table
        .filter(job_attempts::job_id.eq_any(ids))
        .select((job_attempts::job_id, job_attempts::worker_id))
        .load(connection)?;
    for (job, worker) in attempts {
        failed_on.entry(job).or_default().push(WorkerId(worker));
    }
    let waiting = rows
        .into_iter()
        .map(|row| WaitingJob {
            id: JobId(row.id),
            owner: UserId(row.owner_id),
            priority: row.priority,
            requested: row.requested_worker_id.map(WorkerId),
            needs_gpu_memory_gb: gpu_memory_need_gb(&row.base_model),
            failed_on: failed_on.remove(&row.id).unwrap_or_default(),
        })
        .collect();
    Ok((waiting, shares(connection)?))
}

/// How much each owner has with workers, and may have.
///
/// # Errors
/// Those of the database.
pub fn shares(connection: &mut DbConnection) -> Result<Shares, DatabaseError> {
    let counts: Vec<(i64, i64)> = jobs::table
        .filter(jobs::status.eq_any(WITH_WORKER))
        .group_by(jobs::owner_id)
        .select((jobs::owner_id, count_star()))
        .load(connection)?;
    let limits: Vec<(i64, Option<i64>)> = users::table
        .filter(users::max_concurrent_jobs.is_not_null())
        .select((users::id, users::max_concurrent_jobs))
        .load(connection)?;
    let amount = |number: i64| usize::try_from(number).unwrap_or(0);
    Ok(Shares {
        with_workers: counts
            .into_iter()
            .map(|(owner, count)| (UserId(owner), amount(count)))
            .collect(),
        limits: limits
            .into_iter()
            .filter_map(|(owner, limit)| Some((UserId(owner), amount(limit?))))
            .collect(),
    })
}

/// Whether a job that has not ended uses the data set.
///
/// # Errors
/// Those of the database.
pub fn uses_dataset(
    connection: &mut DbConnection,
    dataset: DatasetId,
) -> Result<bool, DatabaseError> {
    let found: Option<i64> = jobs::table
        .filter(jobs::dataset_id.eq(dataset.get()))
        .filter(jobs::ended_at.is_null())
        .select(jobs::id)
        .first(connection)
        .optional()?;
    Ok(found.is_some())
}

/// The jobs on a data set that have ended and could go on from a checkpoint.
///
/// # Errors
/// Those of the database.
pub fn resumable_on(
    connection: &mut DbConnection,
    dataset: DatasetId,
) -> Result<Vec<i64>, DatabaseError> {
    let ended = [JobStatus::Stopped.as_str(), JobStatus::Failed.as_str()];
    let ids: Vec<i64> = jobs::table
        .filter(jobs::dataset_id.eq(dataset.get()))
        .filter(jobs::status.eq_any(ended))
        .select(jobs::id)
        .load(connection)?;
    Ok(checkpoints::table
        .filter(checkpoints::job_id.eq_any(ids))
        .order(checkpoints::job_id.asc())
        .select(checkpoints::job_id)
        .distinct()
        .load(connection)?)
}

/// Removes a job with its history. Its files are removed by who calls this.
///
/// # Errors
/// Those of the database.
pub fn delete(connection: &mut DbConnection, id: JobId) -> Result<(), DatabaseError> {
    diesel::delete(jobs::table.find(id.get())).execute(connection)?;
    Ok(())
}

const WITH_WORKER: [&str; 3] = [
    JobStatus::Assigned.as_str(),
    JobStatus::Running.as_str(),
    JobStatus::Stopping.as_str(),
];

fn optional_json<T: DeserializeOwned>(text: Option<&str>) -> Result<Option<T>, DatabaseError> {
    text.map(from_json_text).transpose()
}

fn absent<T>(error: DatabaseError) -> Result<Option<T>, DatabaseError> {
    match error {
        DatabaseError::NotFound => Ok(None),
        other => Err(other),
    }
}

pub(crate) fn not_ours(column: &str, value: &str) -> DatabaseError {
    let message = format!("{column} holds {value:?}");
    DatabaseError::Query(diesel::result::Error::DeserializationError(message.into()))
}

/// A count of attempts as it is stored.
pub(super) fn count(stored: i32) -> u32 {
    u32::try_from(stored).unwrap_or(0)
}

/// A step as it is stored.
pub(super) fn step(stored: i64) -> u64 {
    u64::try_from(stored).unwrap_or(0)
}
