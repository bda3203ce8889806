//! The words of the workers' state machine: what a worker says of itself, what follows from it, and how it is
//! shown.

use trainyard_shared::WorkerStatus;
use trainyard_shared::ids::{EvaluationId, ExportId, FederatedSessionId, JobId, TaskId, WorkerId};

use crate::clock::Moment;

/// Numbers the connections of a worker. Only events of the current one count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Generation(pub u64);

/// What a worker says of itself in `heartbeat`, `pong` and `worker_metrics`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SelfReport {
    /// Which message it was.
    pub by: ReportedBy,
    /// What it does.
    pub status: Option<WorkerStatus>,
    /// The job that it says it has.
    pub current_job: Option<JobId>,
}

/// The message in which a worker reports on itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportedBy {
    /// `heartbeat`: one without a job says nothing about jobs.
    Heartbeat,
    /// `pong`: one without a job says that it has none.
    Pong,
    /// `worker_metrics`: never says anything about jobs.
    Metrics,
}

/// What occupies a worker beside jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occupation {
    /// It measures or exports a model.
    Task(TaskId),
    /// It takes part in a federated session.
    Session(FederatedSessionId),
}

impl Occupation {
    /// How the worker is shown meanwhile.
    pub const fn status(self) -> WorkerStatus {
        match self {
            Self::Task(TaskId::Evaluation(_)) => WorkerStatus::Evaluating,
            Self::Task(TaskId::Export(_)) => WorkerStatus::Exporting,
            Self::Session(_) => WorkerStatus::Federated,
        }
    }
}

/// The work beside jobs that a worker names in `heartbeat` and `pong`; where it names no list, nothing is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamedWork {
    /// Evaluations.
    pub evaluations: Option<Vec<EvaluationId>>,
    /// Exports: every worker that makes them names them, be it none.
    pub exports: Option<Vec<ExportId>>,
    /// Federated sessions.
    pub sessions: Option<Vec<FederatedSessionId>>,
}

impl NamedWork {
    /// Whether that is among it, as far as is known.
    pub fn holds(&self, what: Occupation) -> Option<bool> {
        match what {
            Occupation::Task(TaskId::Evaluation(id)) => among(&self.evaluations, id),
            Occupation::Task(TaskId::Export(id)) => among(&self.exports, id),
            Occupation::Session(id) => among(&self.sessions, id),
        }
    }
}

fn among<Id: PartialEq>(named: &Option<Vec<Id>>, id: Id) -> Option<bool> {
    named.as_ref().map(|ids| ids.contains(&id))
}

/// What must be done because of something that happened to a worker, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FleetEffect {
    /// End that connection.
    Close {
        /// Whose.
        worker: WorkerId,
        /// Which.
        generation: Generation,
        /// Why.
        reason: CloseReason,
    },
    /// Send `ping`.
    Ping(WorkerId),
    /// Send `stop_training` for a job that the worker should not have.
    StopForeign(WorkerId, JobId),
    /// Tell the job what became of its worker.
    TellJob(WorkerId, JobId, WorkerNews),
    /// Send `stop_federated_training` for a session that the worker should not take part in.
    StopForeignSession(WorkerId, FederatedSessionId),
    /// Tell what occupies the worker what became of it.
    TellOccupation(WorkerId, Occupation, WorkerNews),
    /// The worker can be given work from now on.
    Available(WorkerId),
    /// The worker can be given no work from now on.
    Unavailable(WorkerId),
    /// Tell the dashboards how the worker is now.
    Show(WorkerId),
    /// Write down when the worker was last heard of.
    SaveLastSeen(WorkerId),
}

/// What a job, or what else occupies a worker, must know about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerNews {
    /// It has registered on a new connection.
    Registered,
    /// Its connection is gone.
    Disconnected,
    /// It says whether it has the job.
    Holds {
        /// Whether it has.
        holds: bool,
        /// Whether this is its first answer on this connection.
        first: bool,
    },
    /// It is given up.
    Lost,
}

/// Why the platform ends a worker's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseReason {
    /// A newer connection of the same worker took over.
    Replaced,
    /// It did not answer a ping.
    Silent,
    /// Its key was replaced.
    KeyReplaced,
    /// The worker was deleted.
    Deleted,
}

/// How a worker is, for those who show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerView {
    /// What it does.
    pub status: WorkerStatus,
    /// Whether it has a connection now.
    pub connected: bool,
    /// The job that is with it.
    pub holds: Option<JobId>,
    /// What it has beside a job.
    pub occupied: Option<Occupation>,
    /// Whether it has anything to do: a job, something else, or chats.
    pub busy: bool,
    /// When it was last heard of, if ever since the platform's start.
    pub last_heard: Option<Moment>,
    /// Whether it can be given work now.
    pub available: bool,
    /// Whether it is to be given nothing new.
    pub draining: bool,
}

/// What becomes of a command about a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// It goes out on that connection.
    On(Generation),
    /// The worker is away; it is asked about the job when it comes back.
    Away,
    /// The job is not with that worker (any more).
    NotHolding,
}
