//! An export as JSON.

use chrono::{DateTime, Utc};
use serde::Serialize;
use trainyard_shared::message::{ArtifactFile, TaskProgressData};
use trainyard_shared::{ExportFormat, FailureKind, WeightType};
use utoipa::ToSchema;

use super::store::ExportRow;
use crate::artifacts::shown_path;
use crate::database::{DatabaseError, shown_time};
use crate::tasks::ProgressView;

/// An export.
#[derive(Debug, Serialize, ToSchema)]
pub struct ExportView {
    id: i64,
    owner_id: i64,
    job_id: i64,
    /// `queued`, `running`, `completed`, `failed` or `cancelled`.
    status: String,
    format: ExportFormat,
    /// Type of the weights; null for the form's own.
    #[serde(rename = "type")]
    weights: Option<WeightType>,
    /// How far it is; null before the worker has said so, and once it has ended.
    progress: Option<ProgressView>,
    /// The files, once they are there: each can be fetched at `/api/jobs/{job_id}/artifacts/{path}`.
    files: Vec<ExportedFile>,
    failure_kind: Option<FailureKind>,
    /// Why there are no files.
    error: Option<String>,
    /// The worker that has it, or had it when it ended.
    worker_id: Option<i64>,
    created_at: DateTime<Utc>,
    started_at: Option<DateTime<Utc>>,
    ended_at: Option<DateTime<Utc>>,
}

/// A file of an export.
#[derive(Debug, Serialize, ToSchema)]
pub struct ExportedFile {
    /// Its path among the job's artifacts, as `exports/7/job-123-q8_0.gguf`.
    path: String,
    size_bytes: u64,
    sha256: String,
}

impl ExportView {
    /// The export with how far it is.
    ///
    /// # Errors
    /// When what is stored cannot be read.
    pub fn of(row: ExportRow, progress: Option<TaskProgressData>) -> Result<Self, DatabaseError> {
        let (format, weights, job) = (row.format()?, row.weights()?, row.job());
        let file = |file: ArtifactFile| ExportedFile {
            path: shown_path(job, &file.key).to_owned(),
            size_bytes: file.size_bytes,
            sha256: file.sha256,
        };
        let files = row.files()?.into_iter().map(file).collect();
        let failure = row.failure();
        // The row may tell of the end a moment before the actor is gone.
        let progress = progress.filter(|_| row.ended_at.is_none());
        Ok(Self {
            id: row.id,
            owner_id: row.owner_id,
            job_id: row.job_id,
            status: row.status,
            format,
            weights,
            progress: progress.map(ProgressView::from),
            files,
            failure_kind: failure.as_ref().map(|failure| failure.kind),
            error: failure.map(|failure| failure.error),
            worker_id: row.worker_id,
            created_at: shown_time(row.created_at),
            started_at: row.started_at.map(shown_time),
            ended_at: row.ended_at.map(shown_time),
        })
    }
}
