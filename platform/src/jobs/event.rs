//! The words of a job's state machine: what can happen to a job, and what follows from it.

use trainyard_shared::JobStatus;
use trainyard_shared::ids::WorkerId;
use trainyard_shared::message::{
    CheckpointSavedData, JobCompletedData, JobFailedData, JobStartedData, JobStoppedData,
    TrainingProgressData, WorkerLogData,
};

use super::state::JobState;

/// Something that happens to a job.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The dispatcher found a worker.
    Assign(WorkerId),
    /// A worker says something about the job.
    Reported {
        /// Who says it.
        worker: WorkerId,
        /// The attempt that it names, if it names one.
        attempt: Option<u32>,
        /// What it says.
        report: Box<Report>,
    },
    /// Somebody wants it stopped.
    StopAsked,
    /// Somebody wants it to go on.
    ResumeAsked,
    /// The worker has registered on a new connection.
    WorkerRegistered(WorkerId),
    /// The worker's connection is gone.
    WorkerDisconnected(WorkerId),
    /// The worker says whether it has this job.
    WorkerHolds {
        /// Who says it.
        worker: WorkerId,
        /// Whether it has the job.
        holds: bool,
        /// Whether this is its first answer on a new connection.
        first: bool,
    },
    /// The worker is given up, or was deleted.
    WorkerLost(WorkerId),
    /// The moment of [`JobState::next_deadline`] is here.
    DeadlinePassed,
}

/// What a worker says about a job.
#[derive(Debug, Clone, PartialEq)]
pub enum Report {
    /// `job_started`
    Started(JobStartedData),
    /// `training_progress`
    Progress(TrainingProgressData),
    /// `checkpoint_saved`
    CheckpointSaved(CheckpointSavedData),
    /// `job_completed`
    Completed(JobCompletedData),
    /// `job_failed`
    Failed(JobFailedData),
    /// `job_stopped`
    Stopped(JobStoppedData),
    /// `worker_log`
    Logged(WorkerLogData),
}

/// What must be done, in this order of kinds.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Write the new state and this, in one transaction. At most one, always first.
    Persist(Transition),
    /// Tell the dashboards.
    Publish(News),
    /// Tell a worker or the dispatcher.
    Send(Command),
}

/// A row of the job's history, with what belongs into the same transaction.
#[derive(Debug, Clone, PartialEq)]
pub struct Transition {
    /// What happened.
    pub kind: TransitionKind,
    /// The status before.
    pub from: JobStatus,
    /// The status after.
    pub to: JobStatus,
    /// For a person; empty where the kind says all.
    pub detail: String,
    /// What else is to be written.
    pub record: Option<Record>,
}

/// What happened to a job, as its history names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the words are those of the states and messages
pub enum TransitionKind {
    Assigned,
    Started,
    CheckpointSaved,
    Completed,
    Failed,
    Retried,
    StopAsked,
    Stopped,
    Resumed,
}

/// What is written together with a transition.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// A worker was given the attempt.
    Owner(WorkerId),
    /// What the job came to at its start. Points of earlier attempts beyond the checkpoint that this one
    /// goes on from are void.
    Started(JobStartedData),
    /// A checkpoint.
    Checkpoint(CheckpointSavedData),
    /// The result.
    Result(JobCompletedData),
}

/// What dashboards are told.
#[derive(Debug, Clone, PartialEq)]
pub enum News {
    /// The new state, as `job_update`.
    Update,
    /// `checkpoint_saved`
    CheckpointSaved(CheckpointSavedData),
    /// `job_completed`
    Completed(JobCompletedData),
    /// `worker_log`
    Logged(WorkerLogData),
    /// `training_failed`, with the failure of the new state.
    Failed {
        /// Step of the newest checkpoint.
        last_checkpoint_step: Option<u64>,
    },
}

/// What others are told to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// `start_training` to the worker, with the present attempt.
    Start(WorkerId),
    /// `stop_training` to the worker.
    Stop(WorkerId),
    /// The job waits for a worker: the dispatcher is to look.
    Enqueue,
    /// The worker has no part in the job any more: the supervisor is to know.
    Release {
        /// That worker.
        worker: WorkerId,
        /// Whether the worker itself said so, and is free therefore.
        said_by_worker: bool,
    },
    /// The metric point that the event brought is to be kept.
    KeepPoint,
    /// The line of the log that the event brought is to be kept.
    KeepLine,
}

/// How an event was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It did something, or asked for what is so already.
    Taken,
    /// Nothing changed; why. A worker's message is acknowledged all the same.
    Ignored(&'static str),
    /// The job is none of that worker's: `error` `wrong_worker`.
    WrongWorker,
    /// The job's state does not allow it.
    Refused,
}

/// What [`JobState::apply`] gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The state from now on, once the effects' `Persist` is committed.
    pub next: JobState,
    /// What must be done, in order.
    pub effects: Vec<Effect>,
    /// What to answer.
    pub answer: Answer,
}

impl Event {
    /// What a worker said, if that is what happened.
    pub fn report(&self) -> Option<&Report> {
        match self {
            Self::Reported { report, .. } => Some(report),
            _ => None,
        }
    }
}

impl TransitionKind {
    /// The word in the history.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Assigned => "assigned",
            Self::Started => "started",
            Self::CheckpointSaved => "checkpoint_saved",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Retried => "retried",
            Self::StopAsked => "stop_asked",
            Self::Stopped => "stopped",
            Self::Resumed => "resumed",
        }
    }
}

/// Collects effects; the calls' order is persist, publish, send.
pub(super) struct StepBuilder {
    next: JobState,
    effects: Vec<Effect>,
}

impl StepBuilder {
    /// A change that goes into the database and the job's history.
    pub(super) fn persisted(next: JobState, transition: Transition) -> Self {
        Self {
            next,
            effects: vec![Effect::Persist(transition)],
        }
    }

    /// A change that only those who are connected need to know.
    pub(super) fn passing(next: JobState) -> Self {
        Self {
            next,
            effects: Vec::new(),
        }
    }

    pub(super) fn record(mut self, record: Record) -> Self {
        if let Some(Effect::Persist(transition)) = self.effects.first_mut() {
            transition.record = Some(record);
        }
        self
    }

    pub(super) fn publish(mut self, news: News) -> Self {
        self.effects.push(Effect::Publish(news));
        self
    }

    pub(super) fn send(mut self, command: Command) -> Self {
        self.effects.push(Effect::Send(command));
        self
    }

    pub(super) fn send_all(self, commands: impl IntoIterator<Item = Command>) -> Self {
        commands.into_iter().fold(self, Self::send)
    }

    pub(super) fn done(self) -> Outcome {
        Outcome {
            next: self.next,
            effects: self.effects,
            answer: Answer::Taken,
        }
    }
}
