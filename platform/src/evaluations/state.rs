//! What becomes of one evaluation (PROTOCOL 7, 8, 11). Pure.
//!
//! queued -> running -> completed | failed | cancelled. It occupies its worker like a job. A worker that was
//! away is asked what it has: an evaluation that it never took is sent again, one that it had and has no more
//! fails. Ended is final; what its worker still says is confirmed and ignored.

use std::time::Duration;

use trainyard_shared::FailureKind;
use trainyard_shared::ids::WorkerId;
use trainyard_shared::message::EvaluationMetrics;

use crate::clock::Moment;

/// So often an evaluation is sent to a worker that does not take it.
const MAX_SENDS: u32 = 3;

/// The waiting times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvaluationTiming {
    /// How long a worker may be silent about it, downloads included.
    pub silence_timeout: Duration,
    /// A worker that says that it does not have it may take so long to say what became of it.
    pub missing_grace: Duration,
}

/// Where an evaluation stands.
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
    /// The figures are there.
    Completed(WorkerId),
    /// There will be no figures.
    Failed(Option<WorkerId>),
    /// Nobody wants them any more.
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

/// What happens to an evaluation.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// It is given to a worker.
    Assigned(WorkerId),
    /// It could not be put into words for its worker: a fault of the platform's or of what it names.
    CannotStart(String),
    /// A worker says something of it.
    Said(WorkerId, Said),
    /// Its worker says whether it has it.
    WorkerHolds {
        /// The worker.
        worker: WorkerId,
        /// Whether it has.
        holds: bool,
    },
    /// Its worker is given up.
    WorkerLost(WorkerId),
    /// Nobody wants the figures any more.
    CancelAsked,
    /// A deadline has passed.
    DeadlinePassed,
}

/// What a worker says of an evaluation.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    /// So much is done.
    Progress {
        /// Examples that are done.
        done: u64,
        /// Examples in all.
        total: u64,
    },
    /// The figures.
    Completed(EvaluationMetrics),
    /// There will be none.
    Failed {
        /// Why, for a person.
        error: String,
        /// Whose it is.
        kind: Option<FailureKind>,
    },
}

/// Why there are no figures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// For a person.
    pub error: String,
    /// Whose it is.
    pub kind: FailureKind,
}

/// What is shown and stored of an end.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    /// The figures.
    Figures(EvaluationMetrics),
    /// Why there are none.
    Failure(Failure),
    /// They are not wanted.
    Cancelled,
}

/// What must be done, in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Write the phase down.
    Persist(Option<End>),
    /// Show how far it is.
    ShowProgress {
        /// Examples that are done.
        done: u64,
        /// Examples in all.
        total: u64,
    },
    /// Show its end.
    ShowEnd(End),
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
pub struct Outcome {
    /// Where it stands then.
    pub next: Phase,
    /// What must be done.
    pub effects: Vec<Effect>,
    /// What is answered.
    pub answer: Answer,
}

impl Phase {
    /// Where it stands after the platform's restart: its worker has its time to come back.
    pub fn after_restart(worker: WorkerId, now: Moment, timing: &EvaluationTiming) -> Self {
        Self::Running {
            worker,
            silent_by: now + timing.silence_timeout,
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
    pub fn apply(self, event: Event, now: Moment, timing: &EvaluationTiming) -> Outcome {
        match event {
            Event::Assigned(worker) => self.assigned(worker, now, timing),
            Event::CannotStart(error) => self.fail(error, FailureKind::Internal, false, None),
            Event::Said(worker, said) => self.said(worker, said, now, timing),
            Event::WorkerHolds { worker, holds } => self.worker_holds(worker, holds, now, timing),
            Event::WorkerLost(worker) if self.worker() == Some(worker) => {
                let error = "the worker disconnected during the evaluation";
                self.fail(error.to_owned(), FailureKind::WorkerLost, false, None)
            }
            Event::WorkerLost(_) => self.ignored(),
            Event::CancelAsked => self.cancelled(),
            Event::DeadlinePassed => self.deadline_passed(now, timing),
        }
    }

    fn ignored(self) -> Outcome {
        self.outcome(Answer::Ignored, Vec::new())
    }

    fn outcome(self, answer: Answer, effects: Vec<Effect>) -> Outcome {
        Outcome {
            next: self,
            effects,
            answer,
        }
    }

    fn assigned(self, worker: WorkerId, now: Moment, timing: &EvaluationTiming) -> Outcome {
        if self != Self::Queued {
            return self.ignored();
        }
        let next = Self::Running {
            worker,
            silent_by: now + timing.silence_timeout,
            missing_by: None,
            sends: 1,
            is_taken: false,
        };
        next.outcome(
            Answer::Taken,
            vec![Effect::Persist(None), Effect::Start(worker)],
        )
    }

    fn said(self, by: WorkerId, said: Said, now: Moment, timing: &EvaluationTiming) -> Outcome {
        if self.worker() != Some(by) {
            return self.outcome(Answer::WrongWorker, Vec::new());
        }
        let Self::Running { worker, sends, .. } = self else {
            return self.ignored();
        };
        match said {
            Said::Progress { done, total } => {
                let next = Self::Running {
                    worker,
                    silent_by: now + timing.silence_timeout,
                    missing_by: None,
                    sends,
                    is_taken: true,
                };
                let done = done.min(total);
                next.outcome(Answer::Taken, vec![Effect::ShowProgress { done, total }])
            }
            Said::Completed(figures) => {
                let end = End::Figures(possible(figures));
                Self::Completed(worker).end(end, worker, true, None)
            }
            Said::Failed { error, kind } => {
                let kind = kind.unwrap_or(FailureKind::Internal);
                self.fail(error, kind, true, None)
            }
        }
    }

    fn worker_holds(
        self,
        by: WorkerId,
        holds: bool,
        now: Moment,
        timing: &EvaluationTiming,
    ) -> Outcome {
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
            silent_by,
            missing_by: (!holds).then(|| missing_by.unwrap_or(now + timing.missing_grace)),
            sends,
            is_taken: is_taken || holds,
        };
        next.outcome(Answer::Taken, Vec::new())
    }

    fn cancelled(self) -> Outcome {
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

    fn deadline_passed(self, now: Moment, timing: &EvaluationTiming) -> Outcome {
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
                let error = "the worker does not have the evaluation any more: it was restarted";
                return self.fail(error.to_owned(), FailureKind::WorkerRestarted, false, None);
            }
            if sends >= MAX_SENDS {
                let error = "the worker does not take the evaluation";
                return self.fail(error.to_owned(), FailureKind::NotStarted, false, None);
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
            let seconds = timing.silence_timeout.as_secs_f64();
            let error = format!("the worker has said nothing of the evaluation for {seconds} s");
            let stop = Some(Effect::Stop(worker));
            return self.fail(error, FailureKind::NotStarted, false, stop);
        }
        self.ignored()
    }

    fn fail(
        self,
        error: String,
        kind: FailureKind,
        said_by_worker: bool,
        stop: Option<Effect>,
    ) -> Outcome {
        let Self::Running { worker, .. } = self else {
            return self.ignored();
        };
        let end = End::Failure(Failure { error, kind });
        Self::Failed(Some(worker)).end(end, worker, said_by_worker, stop)
    }

    fn end(
        self,
        end: End,
        worker: WorkerId,
        said_by_worker: bool,
        stop: Option<Effect>,
    ) -> Outcome {
        let mut effects = vec![Effect::Persist(Some(end.clone())), Effect::ShowEnd(end)];
        effects.extend(stop);
        effects.push(Effect::Release {
            worker,
            said_by_worker,
        });
        self.outcome(Answer::Taken, effects)
    }
}

/// The figures without those that no model can have: a gap is shown in their place, as for one that is not finite.
fn possible(figures: EvaluationMetrics) -> EvaluationMetrics {
    EvaluationMetrics {
        perplexity: figures.perplexity.filter(|value| *value >= 1.0),
        loss: figures.loss.filter(|value| *value >= 0.0),
        token_accuracy: figures
            .token_accuracy
            .filter(|value| (0.0..=1.0).contains(value)),
        tokens: figures.tokens,
    }
}

#[cfg(test)]
mod tests;
