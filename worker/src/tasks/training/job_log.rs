//! A job's own log and status line: to the platform and to the worker's log.

use trainyard_shared::message::{FromWorker, LogLevel, WorkerLog, WorkerLogData};

use crate::connection::Reports;
use crate::connection::outbox::JobAttempt;

/// Where a job's lines go.
#[derive(Debug, Clone)]
pub struct JobLog {
    job: JobAttempt,
    reports: Reports,
}

impl JobLog {
    /// The log of this attempt.
    pub fn new(job: JobAttempt, reports: Reports) -> Self {
        Self { job, reports }
    }

    /// The attempt.
    pub fn job(&self) -> JobAttempt {
        self.job
    }

    /// A line about the course of things.
    pub fn info(&self, line: &str) {
        tracing::info!(job.id = %self.job.job_id, "{line}");
        self.line(LogLevel::Info, line);
    }

    /// A line about what should be looked at.
    pub fn warn(&self, line: &str) {
        tracing::warn!(job.id = %self.job.job_id, "{line}");
        self.line(LogLevel::Warn, line);
    }

    /// A line about why the job fails.
    pub fn error(&self, line: &str) {
        tracing::error!(job.id = %self.job.job_id, "{line}");
        self.line(LogLevel::Error, line);
    }

    fn line(&self, level: LogLevel, line: &str) {
        self.reports.send(FromWorker::WorkerLog(WorkerLog {
            worker_id: None,
            job_id: self.job.job_id,
            attempt: self.job.attempt,
            data: WorkerLogData {
                level,
                line: line.replace(['\r', '\n'], " "),
            },
        }));
    }

    /// What the job does now, in a few words.
    pub fn status(&self, text: &str) {
        self.reports.change_activity(|activity| {
            activity.job = Some(self.job);
            activity.status_message = Some(text.to_owned());
        });
    }
}
