//! What happens to a session's workers, and what follows from it.

use std::collections::BTreeSet;

use trainyard_shared::ids::WorkerId;

use super::masking::{Ask, Said, Unread};
use crate::clock::Moment;

/// What happens to a session.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// These workers were claimed for the session.
    WorkersGiven(Vec<WorkerId>),
    /// A worker has registered on a new connection.
    WorkerRegistered(WorkerId),
    /// A worker says whether it takes part.
    WorkerHolds {
        /// The worker.
        worker: WorkerId,
        /// Whether it does.
        holds: bool,
    },
    /// A worker is given up.
    WorkerLost(WorkerId),
    /// A worker's result for a round counts, or has counted before.
    ResultTaken {
        /// The worker.
        worker: WorkerId,
        /// The round, from 0.
        round: u64,
    },
    /// With secure aggregation: a worker has a result for a round, and keeps it.
    Trained {
        /// The worker.
        worker: WorkerId,
        /// The round, from 0.
        round: u64,
        /// Examples that it was trained on.
        examples: u64,
    },
    /// A worker says something in an attempt at the round's sum.
    Said {
        /// The worker.
        worker: WorkerId,
        /// The attempt.
        attempt: u64,
        /// What it says.
        said: Said,
    },
    /// A worker has said what none says that follows the protocol.
    Misbehaved {
        /// The worker.
        worker: WorkerId,
        /// What is wrong, for a person.
        error: String,
    },
    /// A worker's masked result could not be taken in (yet), by no fault of its own.
    PutOff {
        /// The worker.
        worker: WorkerId,
        /// The attempt.
        attempt: u64,
    },
    /// The sum of an attempt could not be read, or does not count.
    Unread {
        /// The attempt.
        attempt: u64,
        /// Why.
        why: Unread,
    },
    /// A worker has no result for a round.
    Failed {
        /// The worker.
        worker: WorkerId,
        /// The round, from 0; none where it did not get so far.
        round: Option<u64>,
        /// Why, for a person.
        error: String,
    },
    /// A round is open; those workers are to be given nothing new.
    RoundOpened {
        /// The round, from 0.
        round: u64,
        /// Workers that drain.
        draining: BTreeSet<WorkerId>,
    },
    /// The round is closed; its results are being merged.
    RoundClosing,
    /// These results cannot be merged; the round is open again without them.
    RoundReopened(Vec<WorkerId>),
    /// The session has ended.
    Ended,
    /// Something may be due.
    TimePassed,
}

/// How a worker is told of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// `start_federated_training`: all that there is to know.
    Start,
    /// `load_aggregated_weights` and `continue_round`.
    GoOn,
}

/// What must be done, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Write down that the worker takes part, with this part of the data.
    Join(WorkerId, u64),
    /// Write down that it does not any more.
    Leave(WorkerId),
    /// Write down how often the worker has failed in a row.
    NoteFailures(WorkerId),
    /// Write down how long workers took.
    NoteTimes,
    /// Write down that shares are asked for in the round: there is no other sum of it.
    NoteRevealing,
    /// So many results close the round.
    Expect(usize),
    /// The round's deadline.
    Deadline(Option<Moment>),
    /// Show how the session stands.
    Show,
    /// Ask a worker for the round's result.
    Order(WorkerId, Order),
    /// Ask a worker for its part in the sum of the round's results.
    Ask(WorkerId, Ask),
    /// Read that sum.
    Sum,
    /// Close the round without a sum; what these workers have sent for it may have been seen.
    CloseUnchanged(Vec<WorkerId>),
    /// Tell a worker that the session is over for it.
    Stop(WorkerId),
    /// The worker is free.
    Release(WorkerId),
    /// Workers are looked for.
    SeekWorkers,
}

/// What is written down comes first, then what the rounds and people are told, then what is sent.
pub(super) fn in_order(mut effects: Vec<Effect>) -> Vec<Effect> {
    effects.sort_by_key(|effect| match effect {
        Effect::Join(..) | Effect::Leave(_) | Effect::NoteFailures(_) => 0,
        Effect::NoteTimes | Effect::NoteRevealing => 0,
        Effect::Expect(_) | Effect::Deadline(_) => 1,
        Effect::Show => 2,
        Effect::Order(..) | Effect::Ask(..) | Effect::Stop(_) => 3,
        Effect::Sum | Effect::CloseUnchanged(_) | Effect::Release(_) => 4,
        Effect::SeekWorkers => 5,
    });
    effects.dedup();
    effects
}
