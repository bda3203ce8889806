//! What the supervisor is told and asked.

use std::collections::BTreeMap;

use actix::prelude::*;
use bytestring::ByteString;
use chrono::{DateTime, Utc};
use trainyard_shared::ids::{JobId, WorkerId};
use trainyard_shared::message::{WorkerMetricsData, WorkerRegisterData};

use crate::inference::placement::Candidate;
use crate::sockets::outgoing::Outgoing;
use crate::workers::event::{Generation, NamedWork, Occupation, SelfReport, WorkerView};
use crate::workers::lease::Lease;
use crate::workers::placement::Abilities;
use crate::workers::session::WorkerSession;
use crate::workers::store::KnownWorker;

/// What the database holds when the platform starts.
#[derive(Message)]
#[rtype(result = "()")]
pub struct TakeUp {
    /// All workers that are enrolled.
    pub workers: Vec<KnownWorker>,
    /// The jobs that are with one.
    pub held: BTreeMap<WorkerId, JobId>,
    /// What else is with one.
    pub occupied: Vec<(WorkerId, Occupation)>,
}

/// A worker has authenticated. The answer is its right to be heard.
#[derive(Message)]
#[rtype(result = "Lease")]
pub struct Connect {
    /// The worker, as the database knows it.
    pub worker: KnownWorker,
    /// Its session.
    pub session: Addr<WorkerSession>,
    /// The session's queue, for the case that the session itself takes nothing.
    pub outgoing: Outgoing,
}

/// A worker has registered.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Register {
    /// Its right to be heard.
    pub lease: Lease,
    /// What it can do.
    pub data: Box<WorkerRegisterData>,
}

/// A connection is gone.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Disconnected(pub Lease);

/// A worker says how it is.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Reported {
    /// Its right to be heard.
    pub lease: Lease,
    /// What it does.
    pub report: SelfReport,
    /// How loaded it is, where it said so.
    pub metrics: Option<Box<WorkerMetricsData>>,
    /// What it has beside a job.
    pub named: NamedWork,
}

/// Take this worker for this job. The answer says whether it was free.
#[derive(Message)]
#[rtype(result = "bool")]
pub struct Claim {
    /// The worker.
    pub worker: WorkerId,
    /// The job.
    pub job: JobId,
}

/// The claim came to nothing.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Unclaim {
    /// The worker.
    pub worker: WorkerId,
    /// The job.
    pub job: JobId,
}

/// Take this worker for this. The answer says whether it was free.
#[derive(Message)]
#[rtype(result = "bool")]
pub struct Occupy {
    /// The worker.
    pub worker: WorkerId,
    /// For what.
    pub with: Occupation,
}

/// This is not with the worker any more.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Vacate {
    /// The worker.
    pub worker: WorkerId,
    /// What it had.
    pub of: Occupation,
    /// Whether the worker itself said so, or never had it.
    pub said_by_worker: bool,
}

/// The job is not with the worker any more.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Release {
    /// The worker.
    pub worker: WorkerId,
    /// The job.
    pub job: JobId,
    /// Whether the worker itself said so.
    pub said_by_worker: bool,
}

/// Send this to the worker that has the job.
#[derive(Message)]
#[rtype(result = "Sent")]
pub struct SendCommand {
    /// The worker.
    pub worker: WorkerId,
    /// The job that it is about.
    pub job: JobId,
    /// The frame.
    pub text: ByteString,
}

/// What became of a [`SendCommand`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, MessageResponse)]
pub enum Sent {
    /// It is on its way.
    OnItsWay,
    /// The worker is away; it will be asked about the job when it comes back.
    Away,
    /// The job is not with that worker.
    NotHolding,
}

/// Send this on that registered connection of the worker. The answer says whether it is on its way.
#[derive(Message)]
#[rtype(result = "bool")]
pub struct SendOn {
    /// The worker.
    pub worker: WorkerId,
    /// The connection; the present one where none is named.
    pub link: Option<Generation>,
    /// The frame.
    pub text: ByteString,
}

/// So many inference requests are with the worker.
#[derive(Message)]
#[rtype(result = "()")]
pub struct SetServing {
    /// The worker.
    pub worker: WorkerId,
    /// How many.
    pub requests: usize,
}

/// How are all workers, for whoever looks for one that continues a chat?
#[derive(Message)]
#[rtype(result = "BTreeMap<WorkerId, Candidate>")]
pub struct GetCandidates;

/// Which workers can be given work now?
#[derive(Message)]
#[rtype(result = "BTreeMap<WorkerId, Abilities>")]
pub struct GetFree;

/// How are all workers?
#[derive(Message)]
#[rtype(result = "BTreeMap<WorkerId, Seen>")]
pub struct GetWorkers;

/// How a worker is.
#[derive(Debug, Clone)]
pub struct Seen {
    /// What it does, and with what.
    pub view: WorkerView,
    /// When it was last heard of, if ever since the platform's start.
    pub last_seen_at: Option<DateTime<Utc>>,
    /// How loaded it is, if it has said so on this connection.
    pub metrics: Option<WorkerMetricsData>,
}

/// Give the worker nothing new from now on, or do again. Already in the database.
#[derive(Message)]
#[rtype(result = "()")]
pub struct SetDraining {
    /// The worker.
    pub worker: WorkerId,
    /// Whether it drains.
    pub draining: bool,
}

/// The worker has a new name. Already in the database.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Renamed {
    /// The worker.
    pub worker: WorkerId,
    /// Its name.
    pub name: String,
}

/// The worker's key was replaced in the database: its connection ends, after this was sent on it. The answer
/// says whether it was connected.
#[derive(Message)]
#[rtype(result = "bool")]
pub struct KeyReplaced {
    /// The worker.
    pub worker: WorkerId,
    /// The frame that brings the worker its new key, if it is to get it this way.
    pub deliver: Option<ByteString>,
}

/// The worker was deleted from the database.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Removed(pub WorkerId);

/// The platform stops.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Shutdown;
