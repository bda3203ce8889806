//! One training job, from `start_training` to the message that ends it.
//!
//! 1. Everything that is needed is fetched (`prepare`); a stop ends that at once.
//! 2. The engine trains on a thread of its own (`engine_run`); its events become messages.
//! 3. The end is put into the outbox: completed, failed or stopped. An attempt that a newer one has
//!    taken the place of ends without a word.

mod engine_run;
mod job_log;
mod prepare;

use std::path::{Path, PathBuf};

use trainyard_shared::FailureKind;
use trainyard_shared::ids::MessageId;
use trainyard_shared::message::{
    FromWorker, JobCompleted, JobFailed, JobFailedData, JobStopped, JobStoppedData, StartTraining,
};

use super::failure::Failure;
use super::{StopReason, StopSignal, TaskContext};
use crate::connection::Reports;
use crate::connection::outbox::JobAttempt;
use crate::state_dir::JOBS;
use engine_run::{EngineRun, Outcome, Progress, Reached};
use job_log::JobLog;
use prepare::{checkpoint_prefix, prepare};

/// Runs a job to its end, which is reported before this returns.
pub async fn run_training(start: StartTraining, context: TaskContext, stop: StopSignal) {
    let job = JobAttempt {
        job_id: start.job_id,
        attempt: start.attempt,
    };
    let log = JobLog::new(job, context.reports.clone());
    let progress = Progress::new(start.data.resume.as_ref().map(|resume| Reached {
        step: resume.step,
        last_checkpoint: Some(checkpoint_prefix(job.job_id, resume.step)),
    }));
    let result = trained(&start, &context, &log, &progress, &stop).await;
    match ending(result, stop.reason()) {
        Ending::Silent => {}
        Ending::Completed(outcome) => report_completed(job, outcome, &context.reports, &progress),
        Ending::Stopped => report_stopped(job, &context.reports, &progress),
        Ending::Failed(failure) => {
            match failure.kind {
                FailureKind::WorkerRestarted => log.warn(&failure.message),
                _ => log.error(&failure.message),
            }
            report_failed(job, failure, &context.reports, &progress);
        }
    }
    delete_folder(&job_folder(&context.state_dir, job));
}

async fn trained(
    start: &StartTraining,
    context: &TaskContext,
    log: &JobLog,
    progress: &Progress,
    stop: &StopSignal,
) -> Result<Outcome, Failure> {
    let prepared = tokio::select! {
        prepared = prepare(start, context, log) => prepared?,
        _ = stop.stopped() => return Ok(Outcome::Stopped),
    };
    log.status("Loading the model");
    let run = EngineRun {
        base_model: start.data.base_model.huggingface_id.clone(),
        output_path: start.data.output_path.clone(),
        device: context.device,
        prepared,
        log: log.clone(),
        reports: context.reports.clone(),
        progress: progress.clone(),
        stop: stop.clone(),
    };
    run.on_its_own_thread().await
}

/// How an attempt ends, for the platform.
#[derive(Debug)]
enum Ending {
    Completed(engine_run::Completed),
    Stopped,
    Failed(Failure),
    Silent,
}

/// What came of the attempt, seen with why it was to stop: what was finished all the same is finished,
/// and a shutdown of the worker is nobody's wish to stop the job.
fn ending(result: Result<Outcome, Failure>, stop: Option<StopReason>) -> Ending {
    match (result, stop) {
        (_, Some(StopReason::Superseded)) => Ending::Silent,
        (Ok(Outcome::Completed(completed)), _) => Ending::Completed(completed),
        (Ok(Outcome::Stopped), Some(StopReason::Shutdown)) => Ending::Failed(Failure::new(
            FailureKind::WorkerRestarted,
            "the worker was shut down",
        )),
        (Ok(Outcome::Stopped), _) => Ending::Stopped,
        (Err(failure), _) => Ending::Failed(failure),
    }
}

fn report_completed(
    job: JobAttempt,
    outcome: engine_run::Completed,
    reports: &Reports,
    progress: &Progress,
) {
    let message = FromWorker::JobCompleted(JobCompleted {
        worker_id: None,
        job_id: job.job_id,
        attempt: job.attempt,
        message_id: Some(MessageId::random()),
        data: outcome.data,
    });
    if let Err(error) = reports.keep(message, outcome.files) {
        let failure = Failure::new(
            FailureKind::Storage,
            format!("the result cannot be kept for delivery: {error}"),
        );
        report_failed(job, failure, reports, progress);
    }
}

fn report_failed(job: JobAttempt, failure: Failure, reports: &Reports, progress: &Progress) {
    let reached = progress.get();
    reports.keep_or_send(FromWorker::JobFailed(JobFailed {
        worker_id: None,
        job_id: job.job_id,
        attempt: job.attempt,
        message_id: Some(MessageId::random()),
        data: JobFailedData {
            error: failure.message,
            step: Some(reached.step),
            last_checkpoint: reached.last_checkpoint,
            failure_kind: Some(failure.kind),
        },
    }));
}

fn report_stopped(job: JobAttempt, reports: &Reports, progress: &Progress) {
    let reached = progress.get();
    reports.keep_or_send(FromWorker::JobStopped(JobStopped {
        worker_id: None,
        job_id: job.job_id,
        attempt: job.attempt,
        message_id: Some(MessageId::random()),
        data: JobStoppedData {
            step: Some(reached.step),
            last_checkpoint: reached.last_checkpoint,
        },
    }));
}

/// The attempt's own folder. What has to outlive the attempt is in the outbox.
fn job_folder(state_dir: &Path, job: JobAttempt) -> PathBuf {
    let attempt = job.attempt.unwrap_or(1);
    state_dir
        .join(JOBS)
        .join(format!("job-{}-attempt-{attempt}", job.job_id))
}

fn delete_folder(folder: &Path) {
    if let Err(error) = std::fs::remove_dir_all(folder)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(folder = %folder.display(), %error, "the job's folder cannot be deleted");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g017_a_requested_stop_is_a_stop_and_a_shutdown_is_a_failure_that_can_be_retried() {
        let stopped = |reason| ending(Ok(Outcome::Stopped), Some(reason));
        assert!(matches!(stopped(StopReason::Requested), Ending::Stopped));
        assert!(matches!(stopped(StopReason::Superseded), Ending::Silent));
        let Ending::Failed(failure) = stopped(StopReason::Shutdown) else {
            panic!("a shutdown went by as a stop");
        };
        assert_eq!(failure.kind, FailureKind::WorkerRestarted);
    }

    #[test]
    fn a_failure_stays_one_whatever_was_asked_for() {
        let failed = || Err(Failure::new(FailureKind::Storage, "the disk is full"));
        assert!(matches!(ending(failed(), None), Ending::Failed(_)));
        assert!(matches!(
            ending(failed(), Some(StopReason::Requested)),
            Ending::Failed(_)
        ));
    }
}
