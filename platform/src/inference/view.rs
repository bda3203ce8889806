//! A request as JSON.

use chrono::{DateTime, Utc};
use serde::Serialize;
use trainyard_shared::FinishReason;
use trainyard_shared::ids::{InferenceId, JobId, WorkerId};
use trainyard_shared::message::InferenceMetrics;
use utoipa::ToSchema;

use super::record::Record;
use super::state::Phase;

/// An inference request, and its answer as far as it has come.
#[derive(Debug, Serialize, ToSchema)]
pub struct InferenceView {
    #[schema(value_type = String)]
    id: InferenceId,
    #[schema(value_type = String)]
    inference_id: InferenceId,
    /// `waiting`, `running`, `completed`, `failed` or `cancelled`.
    status: &'static str,
    /// `job-123`, or the base model's name.
    model: String,
    base_model: String,
    #[schema(value_type = Option<i64>)]
    job_id: Option<JobId>,
    /// The worker that has it, or had it.
    #[schema(value_type = Option<i64>)]
    worker_id: Option<WorkerId>,
    /// Why it waits.
    waiting_because: Option<String>,
    /// The answer so far.
    text: String,
    tokens_generated: u64,
    prompt_tokens: Option<u64>,
    /// `stop`, `length` or `cancelled`.
    #[schema(value_type = Option<String>)]
    finish_reason: Option<FinishReason>,
    /// ttft_ms, tps, total_time_ms.
    #[schema(value_type = Option<Object>)]
    metrics: Option<InferenceMetrics>,
    /// Why there is no answer.
    error: Option<String>,
    created_at: DateTime<Utc>,
    started_at: Option<DateTime<Utc>>,
    ended_at: Option<DateTime<Utc>>,
}

impl InferenceView {
    /// The request as it stands now.
    pub fn of(record: &Record) -> Self {
        let shown = record.shown();
        let tokens_generated = shown.tokens();
        let is_waiting = shown.phase == Phase::Waiting && !shown.waits_because.is_empty();
        Self {
            id: record.id.clone(),
            inference_id: record.id.clone(),
            status: shown.phase.as_str(),
            model: record.request.target.name(),
            base_model: record.request.target.base_model.clone(),
            job_id: record.request.target.job(),
            worker_id: shown.owners.last().copied(),
            waiting_because: is_waiting.then_some(shown.waits_because),
            text: shown.text,
            tokens_generated,
            prompt_tokens: shown.prompt_tokens,
            finish_reason: shown.finish_reason,
            metrics: shown.metrics,
            error: shown.failure.map(|failure| failure.error),
            created_at: record.created_at,
            started_at: shown.started_at,
            ended_at: shown.ended_at,
        }
    }
}
