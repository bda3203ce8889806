//! Evaluations and exports, from the message that starts one to the message that ends it: what both share.
//!
//! 1. One runs at a time, the others wait for their turn.
//! 2. Its work runs on a thread of its own and tells how far it is.
//! 3. The end is put into the outbox: completed, with its files if it has any, or failed; a stopped one as failed
//!    with `cancelled`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use trainyard_shared::FailureKind;
use trainyard_shared::ids::{MessageId, TaskId};
use trainyard_shared::message::{
    EvaluationCompleted, EvaluationCompletedData, EvaluationFailed, EvaluationMetrics,
    EvaluationProgress, ExportCompleted, ExportCompletedData, ExportFailed, ExportProgress,
    FromWorker, StartEvaluation, StartExport, TaskFailedData, TaskProgressData,
};

use super::evaluation::measured;
use super::export::{Exported, exported};
use super::failure::Failure;
use super::{StopReason, StopSignal, TaskContext};
use crate::connection::Reports;

/// Tasks that wait or run; further ones are refused.
pub(super) const MOST_TASKS: usize = 64;
/// Progress is told no more often.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);
/// What the platform reads as a stop that it asked for.
const CANCELLED: &str = "cancelled";

/// Work on a trained model.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelTask {
    /// It is measured.
    Evaluation(StartEvaluation),
    /// It is written in another form.
    Export(StartExport),
}

impl ModelTask {
    /// Which.
    pub fn id(&self) -> TaskId {
        match self {
            Self::Evaluation(start) => start.evaluation_id.into(),
            Self::Export(start) => start.export_id.into(),
        }
    }
}

impl From<StartEvaluation> for ModelTask {
    fn from(start: StartEvaluation) -> Self {
        Self::Evaluation(start)
    }
}

impl From<StartExport> for ModelTask {
    fn from(start: StartExport) -> Self {
        Self::Export(start)
    }
}

/// Runs a task to its end, which is reported before this returns.
pub(super) async fn run_task(
    task: ModelTask,
    context: TaskContext,
    turns: Arc<Semaphore>,
    stop: StopSignal,
) {
    let id = task.id();
    let reported = match &task {
        ModelTask::Evaluation(start) => measured(start, &context, &turns, &stop)
            .await
            .map(|metrics| metrics.map(|metrics| report_figures(start, metrics, &context.reports))),
        ModelTask::Export(start) => match exported(start, &context, &turns, &stop).await {
            Ok(Some(made)) => report_files(start, made, &context.reports).map(Some),
            Ok(None) => Ok(None),
            Err(failure) => Err(failure),
        },
    };
    match (reported, stop.reason()) {
        (Ok(Some(())), _) => tracing::info!("{id} is done"),
        (Ok(None), Some(StopReason::Shutdown)) => {
            let failure = Failure::new(FailureKind::WorkerRestarted, "the worker was shut down");
            report_failed(id, failure, &context.reports);
        }
        (Ok(None), _) => report_cancelled(id, &context.reports),
        (Err(failure), _) => report_failed(id, failure, &context.reports),
    }
}

fn report_figures(start: &StartEvaluation, metrics: EvaluationMetrics, reports: &Reports) {
    reports.keep_or_send(FromWorker::EvaluationCompleted(EvaluationCompleted {
        worker_id: None,
        evaluation_id: start.evaluation_id,
        message_id: Some(MessageId::random()),
        data: EvaluationCompletedData { metrics },
    }));
}

/// Keeps the files for delivery; the export's own folder may go then.
fn report_files(start: &StartExport, made: Exported, reports: &Reports) -> Result<(), Failure> {
    let files = made.files.iter().map(|(file, _)| file.clone()).collect();
    let message = FromWorker::ExportCompleted(ExportCompleted {
        worker_id: None,
        export_id: start.export_id,
        job_id: start.job_id,
        message_id: Some(MessageId::random()),
        data: ExportCompletedData { files },
    });
    reports.keep(message, made.files).map_err(|error| {
        let text = format!("the files cannot be kept for delivery: {error}");
        Failure::new(FailureKind::Storage, text)
    })
}

/// Says that nothing comes of a task because nobody wants it any more.
pub(super) fn report_cancelled(id: TaskId, reports: &Reports) {
    tracing::info!("{id} is cancelled");
    reports.keep_or_send(failed_message(id, CANCELLED.to_owned(), None));
}

/// Says that nothing comes of a task.
pub(super) fn report_failed(id: TaskId, failure: Failure, reports: &Reports) {
    tracing::warn!(reason = failure.message, "{id} has failed");
    reports.keep_or_send(failed_message(id, failure.message, Some(failure.kind)));
}

/// The message that says so.
pub fn failed_message(id: TaskId, error: String, failure_kind: Option<FailureKind>) -> FromWorker {
    let message_id = Some(MessageId::random());
    let data = TaskFailedData {
        error,
        failure_kind,
    };
    match id {
        TaskId::Evaluation(evaluation_id) => FromWorker::EvaluationFailed(EvaluationFailed {
            worker_id: None,
            evaluation_id,
            message_id,
            data,
        }),
        TaskId::Export(export_id) => FromWorker::ExportFailed(ExportFailed {
            worker_id: None,
            export_id,
            message_id,
            data,
        }),
    }
}

/// The request is one that nobody could carry out.
pub(super) fn refused(message: String) -> Failure {
    Failure::new(FailureKind::BadConfig, message)
}

/// Runs what takes long on a thread of its own; a panic is a failure like any other.
pub(super) async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    actix_rt::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|panic| match panic.try_into_panic() {
            Ok(panic) => Err(Failure::from_panic(&*panic)),
            Err(error) => Err(Failure::new(FailureKind::Internal, error.to_string())),
        })
}

/// Tells how far a task is: at its start, now and then, and at its end.
pub(super) struct TaskProgress {
    id: TaskId,
    reports: Reports,
    told: Option<Instant>,
}

impl TaskProgress {
    /// The progress of that task.
    pub(super) fn new(id: TaskId, reports: Reports) -> Self {
        Self {
            id,
            reports,
            told: None,
        }
    }

    /// So much of so much is done.
    pub(super) fn tell(&mut self, done: u64, total: u64) {
        let is_due = self
            .told
            .is_none_or(|told| told.elapsed() >= PROGRESS_EVERY);
        if !is_due && done != total {
            return;
        }
        self.told = Some(Instant::now());
        let data = TaskProgressData { done, total };
        self.reports.send(match self.id {
            TaskId::Evaluation(evaluation_id) => FromWorker::from(EvaluationProgress {
                worker_id: None,
                evaluation_id,
                data,
            }),
            TaskId::Export(export_id) => FromWorker::from(ExportProgress {
                worker_id: None,
                export_id,
                data,
            }),
        });
    }
}
