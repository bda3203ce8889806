//! An evaluation as JSON.

use chrono::{DateTime, Utc};
use serde::Serialize;
use trainyard_shared::FailureKind;
use trainyard_shared::message::{EvaluationMetrics, TaskProgressData};
use utoipa::ToSchema;

use super::store::EvaluationRow;
use crate::database::{DatabaseError, shown_time};
use crate::tasks::ProgressView;

/// An evaluation.
#[derive(Debug, Serialize, ToSchema)]
pub struct EvaluationView {
    id: i64,
    owner_id: i64,
    /// `queued`, `running`, `completed`, `failed` or `cancelled`.
    status: String,
    /// `job-123`, or the base model's name.
    model: String,
    base_model: String,
    job_id: Option<i64>,
    dataset_id: i64,
    /// What is measured.
    metrics: Vec<String>,
    batch_size: Option<i64>,
    max_length: Option<i64>,
    /// How far it is; null before the worker has said so, and once it has ended.
    progress: Option<ProgressView>,
    /// perplexity, loss (nats per labelled token), token_accuracy (0 to 1), tokens; only what was asked for.
    #[schema(value_type = Option<Object>)]
    result: Option<EvaluationMetrics>,
    failure_kind: Option<FailureKind>,
    /// Why there is no result.
    error: Option<String>,
    /// The worker that has it, or had it when it ended.
    worker_id: Option<i64>,
    created_at: DateTime<Utc>,
    started_at: Option<DateTime<Utc>>,
    ended_at: Option<DateTime<Utc>>,
}

impl EvaluationView {
    /// The evaluation with how far it is.
    ///
    /// # Errors
    /// When what is stored cannot be read.
    pub fn of(
        row: EvaluationRow,
        progress: Option<TaskProgressData>,
    ) -> Result<Self, DatabaseError> {
        let metrics = row.metrics()?;
        let result = row.result()?;
        let failure = row.failure();
        // The row may tell of the end a moment before the actor is gone.
        let progress = progress.filter(|_| row.ended_at.is_none());
        Ok(Self {
            id: row.id,
            owner_id: row.owner_id,
            status: row.status,
            model: row.model,
            base_model: row.base_model,
            job_id: row.job_id,
            dataset_id: row.dataset_id,
            metrics,
            batch_size: row.batch_size,
            max_length: row.max_length,
            progress: progress.map(ProgressView::from),
            result,
            failure_kind: failure.as_ref().map(|failure| failure.kind),
            error: failure.map(|failure| failure.error),
            worker_id: row.worker_id,
            created_at: shown_time(row.created_at),
            started_at: row.started_at.map(shown_time),
            ended_at: row.ended_at.map(shown_time),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_evaluation_shows_no_progress() {
        let now = Utc::now().naive_utc();
        let running = EvaluationRow {
            id: 1,
            owner_id: 1,
            job_id: None,
            model: "yard/tiny".to_owned(),
            base_model: "yard/tiny".to_owned(),
            dataset_id: 1,
            metrics: "[]".to_owned(),
            batch_size: None,
            max_length: None,
            status: "running".to_owned(),
            worker_id: Some(1),
            result: None,
            failure_kind: None,
            error: None,
            created_at: now,
            started_at: Some(now),
            ended_at: None,
        };
        let ended = EvaluationRow {
            status: "cancelled".to_owned(),
            ended_at: Some(now),
            ..running.clone()
        };
        let shows_progress = |row| {
            let view =
                EvaluationView::of(row, Some(TaskProgressData { done: 4, total: 4 })).unwrap();
            view.progress.is_some()
        };
        assert!(shows_progress(running));
        assert!(!shows_progress(ended));
    }
}
