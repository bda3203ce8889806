//! A job as the API shows it.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::{Map, Value, json};
use trainyard_shared::message::{JobCompletedData, JobStartedData, TrainingProgressData};
use trainyard_shared::{FailureKind, JobStatus};
use utoipa::ToSchema;

use super::history::{ArtifactRow, CheckpointRow};
use super::state::{JobState, why_anew};
use super::store::JobRow;
use crate::artifacts::{job_folders, shown_path};
use crate::database::{DatabaseError, from_json_text, shown_time};
use trainyard_shared::ids::JobId;

/// A job.
#[derive(Debug, Serialize, ToSchema)]
pub struct JobView {
    id: i64,
    name: String,
    owner_id: i64,
    dataset_id: i64,
    base_model: BaseModelView,
    status: JobStatus,
    /// The present attempt, from 1.
    attempt: u32,
    /// Newest step of this attempt, as in `training_progress`; null before the job has started.
    #[schema(value_type = Option<Object>)]
    progress: Option<Value>,
    /// Whether it runs on a worker whose connection is lost for the moment.
    awaiting_worker: bool,
    /// Why a queued job waits, for a person.
    waiting_because: Option<String>,
    eta_seconds: Option<f64>,
    failure_kind: Option<FailureKind>,
    error: Option<String>,
    /// The worker that has it or, once it has ended, had it last.
    worker_id: Option<i64>,
    requested_worker_id: Option<i64>,
    priority: i32,
    max_retries: i32,
    /// Step of the checkpoint that this attempt goes on from.
    resume_from: Option<i64>,
    /// Why this attempt begins anew though another came before it, for a person. Only where one job is asked
    /// for.
    #[serde(skip_serializing_if = "Option::is_none")]
    begins_anew_because: Option<String>,
    /// The config as it was sent.
    #[schema(value_type = Object)]
    config: Map<String, Value>,
    /// What the worker told when it started.
    #[schema(value_type = Option<Object>)]
    started: Option<JobStartedData>,
    /// What the worker told when it completed.
    #[schema(value_type = Option<Object>)]
    result: Option<ResultView>,
    created_at: DateTime<Utc>,
    started_at: Option<DateTime<Utc>>,
    ended_at: Option<DateTime<Utc>>,
    /// Only where one job is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoints: Option<Vec<CheckpointView>>,
    /// Only where one job is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    artifacts: Option<Vec<ArtifactView>>,
}

/// The base model of a job.
#[derive(Debug, Serialize, ToSchema)]
pub struct BaseModelView {
    huggingface_id: String,
}

/// What a completed job came to.
#[derive(Debug, Serialize, ToSchema)]
pub struct ResultView {
    /// Null where it is not finite.
    final_loss: Option<f64>,
    total_steps: Option<u64>,
    training_time_seconds: Option<f64>,
    s3_prefix: Option<String>,
}

/// A checkpoint.
#[derive(Debug, Serialize, ToSchema)]
pub struct CheckpointView {
    step: i64,
    epoch: Option<i64>,
    attempt: i32,
    path: String,
    /// Null where the worker names no files.
    size_bytes: Option<i64>,
    #[schema(value_type = Object)]
    metrics: Value,
    /// Whether its files are stored and have been checked.
    verified: bool,
    created_at: DateTime<Utc>,
}

/// A file of a job's result.
#[derive(Debug, Serialize, ToSchema)]
pub struct ArtifactView {
    /// Below the result's folder, `exports/` and so on for those of an export; or, not verified, where the worker says that the result is.
    path: String,
    size_bytes: Option<i64>,
    sha256: Option<String>,
    /// Whether it is stored and has been checked.
    verified: bool,
    created_at: Option<DateTime<Utc>>,
}

impl JobView {
    /// The job of that row; `live` is what only its actor knows.
    ///
    /// # Errors
    /// When what is stored cannot be read.
    pub fn of(
        row: JobRow,
        live: Option<&JobState>,
        waiting_because: Option<String>,
    ) -> Result<Self, DatabaseError> {
        let status = row.job_status()?;
        let attempt = u32::try_from(row.attempt).unwrap_or(0);
        let live = live.filter(|live| live.attempt == attempt);
        let newest = match live.and_then(|live| live.progress.shown()) {
            Some(shown) => Some(shown.clone()),
            None => row.newest_progress()?,
        };
        let started = row.started_data()?;
        let failure = row.failure();
        let is_active = !status.is_ended() && status != JobStatus::Queued;
        Ok(Self {
            id: row.id,
            owner_id: row.owner_id,
            dataset_id: row.dataset_id,
            status,
            attempt,
            awaiting_worker: is_active && live.is_some_and(|live| live.awaiting_worker),
            waiting_because: waiting_because.filter(|_| status == JobStatus::Queued),
            eta_seconds: newest
                .as_ref()
                .and_then(|newest| newest.eta_seconds)
                .filter(|_| is_active),
            progress: progress(newest, started.as_ref()),
            failure_kind: failure.as_ref().map(|failure| failure.kind),
            error: failure.map(|failure| failure.error),
            worker_id: row.worker_id,
            requested_worker_id: row.requested_worker_id,
            priority: row.priority,
            max_retries: row.max_retries,
            resume_from: row.resume_from,
            begins_anew_because: None,
            config: row.config()?,
            started,
            result: row.result_data()?.map(ResultView::from),
            created_at: shown_time(row.created_at),
            started_at: row.started_at.map(shown_time),
            ended_at: row.ended_at.map(shown_time),
            checkpoints: None,
            artifacts: None,
            name: row.name,
            base_model: BaseModelView {
                huggingface_id: row.base_model,
            },
        })
    }

    /// The same with its checkpoints and result files.
    pub fn with_files(
        mut self,
        checkpoints: Vec<CheckpointView>,
        artifacts: Vec<ArtifactView>,
    ) -> Self {
        let attempt = i32::try_from(self.attempt).unwrap_or(i32::MAX);
        if attempt > 1 && self.resume_from.is_none() {
            let earlier = checkpoints.iter().filter(|at| at.attempt < attempt);
            let newest = earlier.max_by_key(|at| (at.attempt, at.step));
            self.begins_anew_because = Some(why_anew(newest.map(|at| at.step.cast_unsigned())));
        }
        self.checkpoints = Some(checkpoints);
        self.artifacts = Some(artifacts);
        self
    }
}

impl From<JobCompletedData> for ResultView {
    fn from(data: JobCompletedData) -> Self {
        Self {
            final_loss: data.final_loss.filter(|loss| loss.is_finite()),
            total_steps: data.total_steps,
            training_time_seconds: data.training_time_seconds,
            s3_prefix: data.s3_prefix,
        }
    }
}

fn progress(
    newest: Option<TrainingProgressData>,
    started: Option<&JobStartedData>,
) -> Option<Value> {
    let total_steps = started.and_then(|started| started.total_steps);
    match newest {
        Some(mut newest) => {
            newest.total_steps = newest.total_steps.or(total_steps);
            serde_json::to_value(newest).ok()
        }
        None => total_steps.map(|total_steps| json!({ "total_steps": total_steps })),
    }
}

/// Checkpoints with the sizes of their files.
///
/// # Errors
/// When what is stored cannot be read.
pub fn checkpoint_views(
    rows: Vec<CheckpointRow>,
    files: &[ArtifactRow],
) -> Result<Vec<CheckpointView>, DatabaseError> {
    let size = |row: &CheckpointRow| {
        files
            .iter()
            .filter(|file| file.step == Some(row.step) && file.attempt == row.attempt)
            .map(|file| file.size_bytes)
            .sum()
    };
    rows.into_iter()
        .map(|row| {
            Ok(CheckpointView {
                size_bytes: row.verified.then(|| size(&row)),
                metrics: from_json_text(&row.metrics)?,
                step: row.step,
                epoch: row.epoch,
                attempt: row.attempt,
                path: row.path,
                verified: row.verified,
                created_at: shown_time(row.created_at),
            })
        })
        .collect()
}

/// The files of a result and of its exports; of a worker that named none, the place that it named.
///
/// # Errors
/// When what is stored cannot be read.
pub fn artifact_views(
    job: &JobRow,
    files: Vec<ArtifactRow>,
) -> Result<Vec<ArtifactView>, DatabaseError> {
    if files.is_empty() {
        let named = job.result_data()?.and_then(|result| result.s3_prefix);
        return Ok(named
            .map(|path| ArtifactView {
                path,
                size_bytes: None,
                sha256: None,
                verified: false,
                created_at: job.ended_at.map(shown_time),
            })
            .into_iter()
            .collect());
    }
    Ok(files
        .into_iter()
        .map(|file| ArtifactView {
            path: shown_path(JobId(job.id), &file.storage_key).to_owned(),
            size_bytes: Some(file.size_bytes),
            sha256: Some(file.sha256),
            verified: true,
            created_at: Some(shown_time(file.created_at)),
        })
        .collect())
}

/// The folder in which a job's result lies, with a slash at its end.
pub fn result_folder(job: JobId) -> String {
    format!("{}/final/", job_folders(job)[1])
}
