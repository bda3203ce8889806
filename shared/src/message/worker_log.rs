//! A line of a job's log.

use serde::{Deserialize, Serialize};

use crate::ids::JobId;

/// `worker_log`: one line for the job's page.
///
/// Worker to platform, when there is something to say; platform to the job's dashboards likewise. Not
/// acknowledged; a repeat shows the line twice. The last 1,000 are kept. Ours: PROTOCOL 8.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerLog {
    /// The sender's UUID, or the beginning of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The job.
    pub job_id: JobId,
    /// Which attempt at the job, from 1, as in `start_training` (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// The line.
    pub data: WorkerLogData,
}

/// Content of [`WorkerLog`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerLogData {
    /// How serious it is.
    #[serde(default)]
    pub level: LogLevel,
    /// The text, one line.
    pub line: String,
}

/// How serious a line of a log is. Words that we do not know are read as `info`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// For developers.
    Debug,
    /// Something that does not stop the job and should be looked at.
    Warn,
    /// What made the job fail.
    Error,
    /// The course of things.
    #[default]
    #[serde(other)]
    Info,
}

impl LogLevel {
    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}
