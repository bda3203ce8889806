//! What becomes of one task (PROTOCOL 7, 8, 11). Pure; `P` is what comes of it: figures, or files.
//!
//! queued -> running -> completed | failed | cancelled. It occupies its worker like a job. A worker that was
//! away is asked what it has: a task that it never took is sent again, one that it had and has no more fails.
//! One of which the worker says neither how far it is nor that it has it is given up. Ended is final; what its
//! worker still says is confirmed and ignored.

use std::time::Duration;

use trainyard_shared::FailureKind;
use trainyard_shared::ids::WorkerId;
use trainyard_shared::message::TaskProgressData;

use crate::clock::Moment;

/// So often a task is sent to a worker that does not take it.
const MAX_SENDS: u32 = 3;

/// What a kind of task is called, and its waiting times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskRules {
    /// `evaluation`, for the reasons of failures.
    pub noun: &'static str,
    /// How long a worker may be silent about it.
    pub silence_timeout: Duration,
    /// A worker that says that it does not have it may take so long to say what became of it.
    pub missing_grace: Duration,
}

/// Where a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It waits for a worker.
    Queued,
    /// A worker has it.
    Running {
        /// Which.
        worker: WorkerId,
        /// When it counts as stuck.
        silent_by: Moment,
        /// When it counts as not there, if the worker has said that it does not have it.
        missing_by: Option<Moment>,
        /// How often it was sent.
        sends: u32,
        /// Whether the worker has said anything of it.
        is_taken: bool,
    },
    /// What was wanted is there.
    Completed(WorkerId),
    /// Nothing will come of it.
    Failed(Option<WorkerId>),
    /// Nobody wants it any more.
    Cancelled(Option<WorkerId>),
}

impl Phase {
    /// The word in the API and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running { .. } => "running",
            Self::Completed(_) => "completed",
            Self::Failed(_) => "failed",
            Self::Cancelled(_) => "cancelled",
        }
    }

    /// Whether it has ended.
    pub const fn is_ended(self) -> bool {
        !matches!(self, Self::Queued | Self::Running { .. })
    }

    /// The worker that has it, or had it when it ended.
    pub const fn worker(self) -> Option<WorkerId> {
        match self {
            Self::Queued => None,
            Self::Running { worker, .. } | Self::Completed(worker) => Some(worker),
            Self::Failed(worker) | Self::Cancelled(worker) => worker,
        }
    }
}

/// What happens to a task.
#[derive(Debug, Clone, PartialEq)]
pub enum Event<P> {
    /// It is given to a worker.
    Assigned(WorkerId),
    /// It could not be put into words for its worker: a fault of the platform's or of what it names.
    CannotStart(String),
    /// A worker says something of it.
    Said(WorkerId, Said<P>),
    /// Its worker says whether it has it.
    WorkerHolds {
        /// The worker.
        worker: WorkerId,
        /// Whether it has.
        holds: bool,
    },
    /// Its worker is given up.
    WorkerLost(WorkerId),
    /// Nobody wants it any more.
    CancelAsked,
    /// A deadline has passed.
    DeadlinePassed,
}

/// What a worker says of a task.
#[derive(Debug, Clone, PartialEq)]
pub enum Said<P> {
    /// So much is done.
    Progress(TaskProgressData),
    /// What came of it.
    Completed(P),
    /// Nothing will.
    Failed {
        /// Why, for a person.
        error: String,
        /// Whose it is.
        kind: Option<FailureKind>,
    },
}

/// Why nothing came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// For a person.
    pub error: String,
    /// Whose it is.
    pub kind: FailureKind,
}

/// What is shown and stored of an end.
#[derive(Debug, Clone, PartialEq)]
pub enum End<P> {
    /// What came of it.
    Product(P),
    /// Why nothing did.
    Failure(Failure),
    /// It is not wanted.
    Cancelled,
}

/// What must be done, in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect<P> {
    /// Write the phase down.
    Persist(Option<End<P>>),
    /// Show how far it is.
    ShowProgress(TaskProgressData),
    /// Show its end.
    ShowEnd(End<P>),
    /// Send it to the worker.
    Start(WorkerId),
    /// Tell the worker to stop.
    Stop(WorkerId),
    /// The worker is free.
    Release {
        /// Which.
        worker: WorkerId,
        /// Whether it said so itself.
        said_by_worker: bool,
    },
}

/// What is said to whoever made something happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It was taken in.
    Taken,
    /// It is of the past, or comes too late: confirmed, and without effect.
    Ignored,
    /// It is not that worker's to say.
    WrongWorker,
}

/// The next phase, what is to be done, what is answered.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome<P> {
    /// Where it stands then.
    pub next: Phase,
    /// What must be done.
    pub effects: Vec<Effect<P>>,
    /// What is answered.
    pub answer: Answer,
}

impl Phase {
    /// Where it stands after the platform's restart: its worker has its time to come back.
    pub fn after_restart(worker: WorkerId, now: Moment, rules: &TaskRules) -> Self {
        Self::Running {
            worker,
            silent_by: now + rules.silence_timeout,
            missing_by: None,
            sends: MAX_SENDS,
            is_taken: true,
        }
    }

    /// When [`Event::DeadlinePassed`] is due.
    pub fn next_deadline(self) -> Option<Moment> {
        match self {
            Self::Running {
                silent_by,
                missing_by,
                ..
            } => Some(missing_by.map_or(silent_by, |at| at.min(silent_by))),
            _ => None,
        }
    }

    /// Lets an event happen.
    pub fn apply<P: Clone>(self, event: Event<P>, now: Moment, rules: &TaskRules) -> Outcome<P> {
        match event {
            Event::Assigned(worker) => self.assigned(worker, now, rules),
            Event::CannotStart(error) => self.fail(error, FailureKind::Internal, false, None),
            Event::Said(worker, said) => self.said(worker, said, now, rules),
            Event::WorkerHolds { worker, holds } => self.worker_holds(worker, holds, now, rules),
            Event::WorkerLost(worker) if self.worker() == Some(worker) => {
                let error = format!("the worker disconnected during the {}", rules.noun);
                self.fail(error, FailureKind::WorkerLost, false, None)
            }
            Event::WorkerLost(_) => self.ignored(),
            Event::CancelAsked => self.cancelled(),
            Event::DeadlinePassed => self.deadline_passed(now, rules),
        }
    }

    fn ignored<P>(self) -> Outcome<P> {
        self.outcome(Answer::Ignored, Vec::new())
    }

    fn outcome<P>(self, answer: Answer, effects: Vec<Effect<P>>) -> Outcome<P> {
        Outcome {
            next: self,
            effects,
            answer,
        }
    }

    fn assigned<P>(self, worker: WorkerId, now: Moment, rules: &TaskRules) -> Outcome<P> {
        if self != Self::Queued {
            return self.ignored();
        }
        let next = Self::Running {
            worker,
            silent_by: now + rules.silence_timeout,
            missing_by: None,
            sends: 1,
            is_taken: false,
        };
        next.outcome(
            Answer::Taken,
            vec![Effect::Persist(None), Effect::Start(worker)],
        )
    }

    fn said<P: Clone>(
        self,
        by: WorkerId,
        said: Said<P>,
        now: Moment,
        rules: &TaskRules,
    ) -> Outcome<P> {
        if self.worker() != Some(by) {
            return self.outcome(Answer::WrongWorker, Vec::new());
        }
        let Self::Running { worker, sends, .. } = self else {
            return self.ignored();
        };
        match said {
            Said::Progress(TaskProgressData { done, total }) => {
                let next = Self::Running {
                    worker,
                    silent_by: now + rules.silence_timeout,
                    missing_by: None,
                    sends,
                    is_taken: true,
                };
                let done = done.min(total);
                let shown = Effect::ShowProgress(TaskProgressData { done, total });
                next.outcome(Answer::Taken, vec![shown])
            }
            Said::Completed(product) => {
                Self::Completed(worker).end(End::Product(product), worker, true, None)
            }
            Said::Failed { error, kind } => {
                let kind = kind.unwrap_or(FailureKind::Internal);
                self.fail(error, kind, true, None)
            }
        }
    }

    fn worker_holds<P>(
        self,
        by: WorkerId,
        holds: bool,
        now: Moment,
        rules: &TaskRules,
    ) -> Outcome<P> {
        let Self::Running {
            worker,
            silent_by,
            missing_by,
            sends,
            is_taken,
        } = self
        else {
            return self.ignored();
        };
        if worker != by {
            return self.ignored();
        }
        let next = Self::Running {
            worker,
            silent_by: if holds {
                now + rules.silence_timeout
            } else {
                silent_by
            },
            missing_by: (!holds).then(|| missing_by.unwrap_or(now + rules.missing_grace)),
            sends,
            is_taken: is_taken || holds,
        };
        next.outcome(Answer::Taken, Vec::new())
    }

    fn cancelled<P: Clone>(self) -> Outcome<P> {
        match self {
            Self::Queued => {
                let effects = vec![
                    Effect::Persist(Some(End::Cancelled)),
                    Effect::ShowEnd(End::Cancelled),
                ];
                Self::Cancelled(None).outcome(Answer::Taken, effects)
            }
            Self::Running { worker, .. } => {
                let stop = Some(Effect::Stop(worker));
                Self::Cancelled(Some(worker)).end(End::Cancelled, worker, false, stop)
            }
            _ => self.ignored(),
        }
    }

    fn deadline_passed<P: Clone>(self, now: Moment, rules: &TaskRules) -> Outcome<P> {
        let noun = rules.noun;
        let Self::Running {
            worker,
            silent_by,
            missing_by,
            sends,
            is_taken,
        } = self
        else {
            return self.ignored();
        };
        if missing_by.is_some_and(|at| at <= now) {
            if is_taken {
                let error =
                    format!("the worker does not have the {noun} any more: it was restarted");
                return self.fail(error, FailureKind::WorkerRestarted, false, None);
            }
            if sends >= MAX_SENDS {
                let error = format!("the worker does not take the {noun}");
                return self.fail(error, FailureKind::NotStarted, false, None);
            }
            let next = Self::Running {
                worker,
                silent_by,
                missing_by: None,
                sends: sends + 1,
                is_taken,
            };
            return next.outcome(Answer::Taken, vec![Effect::Start(worker)]);
        }
        if silent_by <= now {
            let seconds = rules.silence_timeout.as_secs_f64();
            let error = format!("the worker has said nothing of the {noun} for {seconds} s");
            let stop = Some(Effect::Stop(worker));
            return self.fail(error, FailureKind::NotStarted, false, stop);
        }
        self.ignored()
    }

    fn fail<P: Clone>(
        self,
        error: String,
        kind: FailureKind,
        said_by_worker: bool,
        stop: Option<Effect<P>>,
    ) -> Outcome<P> {
        let Self::Running { worker, .. } = self else {
            return self.ignored();
        };
        let end = End::Failure(Failure { error, kind });
        Self::Failed(Some(worker)).end(end, worker, said_by_worker, stop)
    }

    fn end<P: Clone>(
        self,
        end: End<P>,
        worker: WorkerId,
        said_by_worker: bool,
        stop: Option<Effect<P>>,
    ) -> Outcome<P> {
        let mut effects = vec![Effect::Persist(Some(end.clone())), Effect::ShowEnd(end)];
        effects.extend(stop);
        effects.push(Effect::Release {
            worker,
            said_by_worker,
        });
        self.outcome(Answer::Taken, effects)
    }
}

#[cfg(test)]
mod tests;
