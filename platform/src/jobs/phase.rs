//! Where a job can stand, with what only matters there, and how long it may stand there.

use std::collections::BTreeMap;
use std::time::Duration;

use trainyard_shared::JobStatus;
use trainyard_shared::ids::WorkerId;

use crate::clock::Moment;

/// Where a job stands, with what only matters there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Waits for a worker.
    Queued,
    /// A worker was sent `start_training`.
    Assigned {
        /// That worker.
        worker: WorkerId,
        /// It must have said `job_started` by then.
        start_by: Moment,
    },
    /// A worker trains it.
    Running {
        /// That worker.
        worker: WorkerId,
        /// The worker said that it does not have the job; it fails then unless it is heard of.
        missing_by: Option<Moment>,
    },
    /// A worker was sent `stop_training`.
    Stopping {
        /// That worker.
        worker: WorkerId,
        /// It is taken for stopped then.
        stop_by: Moment,
    },
    /// Ended with a result.
    Completed,
    /// Ended without one.
    Failed,
    /// Ended by request.
    Stopped,
}

/// What decides whether a job can go on from a checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckpointMark {
    /// All its files are named, stored and checked.
    pub verified: bool,
    /// The loss that an evaluation found for it, if there was one and it is finite.
    pub eval_loss: Option<f64>,
}

impl CheckpointMark {
    /// What a checkpoint's own `metrics` say of it.
    pub fn new(verified: bool, metrics: &BTreeMap<String, Option<f64>>) -> Self {
        let eval_loss = metrics.get("eval_loss").copied().flatten();
        Self {
            verified,
            eval_loss: eval_loss.filter(|loss| loss.is_finite()),
        }
    }
}

/// The waiting times, from the settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobTiming {
    /// `JOB_START_TIMEOUT`
    pub start_timeout: Duration,
    /// `STOP_GRACE`
    pub stop_grace: Duration,
    /// How long a worker that says that it does not have the job may take to say what became of it:
    /// what it had kept while it was away comes right after.
    pub missing_grace: Duration,
}

impl Phase {
    /// The status that others see.
    pub const fn status(self) -> JobStatus {
        match self {
            Self::Queued => JobStatus::Queued,
            Self::Assigned { .. } => JobStatus::Assigned,
            Self::Running { .. } => JobStatus::Running,
            Self::Stopping { .. } => JobStatus::Stopping,
            Self::Completed => JobStatus::Completed,
            Self::Failed => JobStatus::Failed,
            Self::Stopped => JobStatus::Stopped,
        }
    }

    /// The worker that has the job now.
    pub const fn worker(self) -> Option<WorkerId> {
        match self {
            Self::Assigned { worker, .. }
            | Self::Running { worker, .. }
            | Self::Stopping { worker, .. } => Some(worker),
            Self::Queued | Self::Completed | Self::Failed | Self::Stopped => None,
        }
    }
}
