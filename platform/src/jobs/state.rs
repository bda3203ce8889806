//! What becomes of a job: every state, what may happen in it, and what follows (PROTOCOL 4 and 5).
//!
//! Pure: [`JobState::apply`] gets an event and the present moment and gives the next state and the
//! effects, in the order in which they must be carried out: persist, publish, send. Nothing of it holds
//! until `Persist` is committed. [`super::actor`] carries it out for real, a simulation in memory.
//!
//! ```text
//! queued -> assigned -> running -> completed | failed | stopped
//!    ^          |          |
//!    |          +-> stopping -> stopped        failed, stopped: resumed as a new attempt -> queued
//!    +------------ a retry, a new attempt -----+
//! ```

mod reports;
mod resume;

use std::collections::BTreeMap;

use trainyard_shared::ids::{JobId, WorkerId};
use trainyard_shared::{FailureKind, JobStatus};

use super::event::{
    Answer, Command, Event, News, Outcome, Record, StepBuilder, Transition, TransitionKind,
};
use super::failure::{Failure, is_worth_a_retry};
use super::phase::{CheckpointMark, JobTiming, Phase};
use super::progress::Progress;
use crate::clock::Moment;

use resume::resume_detail;
pub use resume::why_anew;

/// Longest error text of a worker that is kept; it goes to every list of jobs and to dashboards.
const MAX_ERROR_BYTES: usize = 128 * 1024;

/// What a job is to those who decide about it.
#[derive(Debug, Clone, PartialEq)]
pub struct JobState {
    /// Its id.
    pub id: JobId,
    /// Where it stands.
    pub phase: Phase,
    /// The present attempt, or the one that comes next, from 1.
    pub attempt: u32,
    /// So many attempts may follow a failed one without anybody asking.
    pub max_retries: u32,
    /// How many of those are left.
    pub retries_left: u32,
    /// Which worker has, or had, which attempt.
    pub owners: BTreeMap<u32, WorkerId>,
    /// Whether the worker that has it has no connection at the moment.
    pub awaiting_worker: bool,
    /// The step of the checkpoint that the present attempt goes on from.
    pub resume_from: Option<u64>,
    /// The checkpoints that are recorded, by (attempt, step): newest last.
    pub checkpoints: BTreeMap<(u32, u64), CheckpointMark>,
    /// So many checkpoints with checked files are kept, beside the one that the present attempt goes on from.
    pub save_total_limit: usize,
    /// How many steps the present attempt has, where its worker said so when it started.
    pub total_steps: Option<u64>,
    /// Newest progress of the present attempt.
    pub progress: Progress,
    /// Why it failed last. Kept while a retry is queued.
    pub failure: Option<Failure>,
}

/// Whose a message is, by worker and attempt.
enum Standing {
    /// The attempt that counts.
    Present,
    /// An attempt of that worker's that does not count any more.
    Earlier,
    /// Not this worker's.
    Foreign,
}

impl JobState {
    /// A job that has just been made.
    pub fn new(id: JobId, max_retries: u32) -> Self {
        Self {
            id,
            phase: Phase::Queued,
            attempt: 1,
            max_retries,
            retries_left: max_retries,
            owners: BTreeMap::new(),
            awaiting_worker: false,
            resume_from: None,
            checkpoints: BTreeMap::new(),
            save_total_limit: usize::MAX,
            total_steps: None,
            progress: Progress::default(),
            failure: None,
        }
    }

    /// The status that others see.
    pub fn status(&self) -> JobStatus {
        self.phase.status()
    }

    /// When [`Event::DeadlinePassed`] is due.
    pub fn next_deadline(&self) -> Option<Moment> {
        match self.phase {
            Phase::Assigned { start_by, .. } => Some(start_by),
            Phase::Running { missing_by, .. } => missing_by,
            Phase::Stopping { stop_by, .. } => Some(stop_by),
            _ => None,
        }
    }

    /// What follows from `event`.
    pub fn apply(&self, event: Event, now: Moment, timing: &JobTiming) -> Outcome {
        match event {
            Event::Assign(worker) => self.assign(worker, now, timing),
            Event::StopAsked => self.stop(now, timing),
            Event::ResumeAsked => self.resume(),
            Event::Reported {
                worker,
                attempt,
                report,
            } => match self.standing(worker, attempt) {
                Standing::Present
                    if attempt.is_none() && self.may_end_an_earlier_attempt(worker, &report) =>
                {
                    self.ignored("not begun yet: the end of an earlier attempt")
                }
                Standing::Present => self.report(worker, *report),
                Standing::Earlier => self.ignored("an earlier attempt"),
                Standing::Foreign => self.unchanged(Answer::WrongWorker),
            },
            Event::DeadlinePassed => self.deadline(now),
            Event::WorkerRegistered(worker)
            | Event::WorkerDisconnected(worker)
            | Event::WorkerHolds { worker, .. }
            | Event::WorkerLost(worker)
                if self.phase.worker() != Some(worker) =>
            {
                self.ignored("the job is not with that worker")
            }
            Event::WorkerRegistered(_) => self.awaiting(false),
            Event::WorkerDisconnected(_) => self.awaiting(true),
            Event::WorkerHolds {
                worker,
                holds,
                first,
            } => self.worker_holds(worker, holds, first, now, timing),
            Event::WorkerLost(_) => self.gone(
                FailureKind::WorkerLost,
                "Worker disconnected during training",
            ),
        }
    }

    fn standing(&self, worker: WorkerId, attempt: Option<u32>) -> Standing {
        let owns = |attempt: u32| self.owners.get(&attempt) == Some(&worker);
        match attempt {
            None if owns(self.attempt) => Standing::Present,
            None if self.owners.values().any(|owner| *owner == worker) => Standing::Earlier,
            Some(attempt) if attempt == self.attempt && owns(attempt) => Standing::Present,
            Some(attempt) if attempt < self.attempt && owns(attempt) => Standing::Earlier,
            _ => Standing::Foreign,
        }
    }

    fn assign(&self, worker: WorkerId, now: Moment, timing: &JobTiming) -> Outcome {
        if self.phase != Phase::Queued {
            return self.unchanged(Answer::Refused);
        }
        let mut next = self.clone();
        next.phase = Phase::Assigned {
            worker,
            start_by: now + timing.start_timeout,
        };
        next.owners.insert(self.attempt, worker);
        next.awaiting_worker = false;
        self.step(next, TransitionKind::Assigned, String::new())
            .record(Record::Owner(worker))
            .publish(News::Update)
            .send(Command::Start(worker))
            .done()
    }

    fn stop(&self, now: Moment, timing: &JobTiming) -> Outcome {
        let mut next = self.clone();
        match self.phase {
            Phase::Queued => {
                next.phase = Phase::Stopped;
                next.failure = None;
                self.step(next, TransitionKind::Stopped, String::new())
                    .publish(News::Update)
                    .done()
            }
            Phase::Assigned { worker, .. } | Phase::Running { worker, .. } => {
                next.phase = Phase::Stopping {
                    worker,
                    stop_by: now + timing.stop_grace,
                };
                self.step(next, TransitionKind::StopAsked, String::new())
                    .publish(News::Update)
                    .send(Command::Stop(worker))
                    .done()
            }
            Phase::Stopping { .. } => self.unchanged(Answer::Taken),
            Phase::Completed | Phase::Failed | Phase::Stopped => self.unchanged(Answer::Refused),
        }
    }

    fn resume(&self) -> Outcome {
        if !matches!(self.phase, Phase::Failed | Phase::Stopped) {
            return self.unchanged(Answer::Refused);
        }
        let mut next = self.next_attempt();
        next.retries_left = self.max_retries;
        next.failure = None;
        let detail = resume_detail(&next);
        self.step(next, TransitionKind::Resumed, detail)
            .publish(News::Update)
            .send(Command::Enqueue)
            .done()
    }

    /// The worker does not have the job any more, and did not say how it ended.
    fn gone(&self, kind: FailureKind, error: &str) -> Outcome {
        match self.phase {
            Phase::Stopping { .. } => self.stopped(error, false),
            _ => self.failed(
                Failure {
                    kind,
                    error: error.to_owned(),
                },
                None,
                false,
            ),
        }
    }

    fn failed(&self, failure: Failure, named_step: Option<u64>, said_by_worker: bool) -> Outcome {
        let Some(worker) = self.phase.worker() else {
            return self.ignored("the job is with no worker");
        };
        let release = Command::Release {
            worker,
            said_by_worker,
        };
        let detail = format!("{}: {}", failure.kind, failure.error);
        // Should it begin after all, it would train for nobody.
        let stop = (failure.kind == FailureKind::NotStarted).then_some(Command::Stop(worker));
        if self.retries_left > 0 && is_worth_a_retry(failure.kind) {
            let mut next = self.next_attempt();
            next.retries_left = self.retries_left - 1;
            next.failure = Some(failure);
            let detail = format!("{detail}; {}", resume_detail(&next));
            self.step(next, TransitionKind::Retried, detail)
                .publish(News::Update)
                .send_all(stop)
                .send(release)
                .send(Command::Enqueue)
                .done()
        } else {
            let mut next = self.clone();
            next.phase = Phase::Failed;
            next.awaiting_worker = false;
            next.failure = Some(failure);
            let last_checkpoint_step = self.last_checkpoint_step().or(named_step);
            self.step(next, TransitionKind::Failed, detail)
                .publish(News::Update)
                .publish(News::Failed {
                    last_checkpoint_step,
                })
                .send_all(stop)
                .send(release)
                .done()
        }
    }

    fn stopped(&self, detail: &str, said_by_worker: bool) -> Outcome {
        let mut next = self.clone();
        next.phase = Phase::Stopped;
        next.awaiting_worker = false;
        next.failure = None;
        let step = self
            .step(next, TransitionKind::Stopped, detail.to_owned())
            .publish(News::Update);
        match self.phase.worker() {
            Some(worker) => step
                .send(Command::Release {
                    worker,
                    said_by_worker,
                })
                .done(),
            None => step.done(),
        }
    }

    fn awaiting(&self, awaiting: bool) -> Outcome {
        if self.awaiting_worker == awaiting {
            return self.unchanged(Answer::Taken);
        }
        let mut next = self.clone();
        next.awaiting_worker = awaiting;
        StepBuilder::passing(next).publish(News::Update).done()
    }

    fn worker_holds(
        &self,
        worker: WorkerId,
        holds: bool,
        first: bool,
        now: Moment,
        timing: &JobTiming,
    ) -> Outcome {
        let mut next = self.clone();
        match &mut next.phase {
            Phase::Running { missing_by, .. } => {
                *missing_by = match (holds, *missing_by) {
                    (true, _) => None,
                    (false, since) => since.or(Some(now + timing.missing_grace)),
                };
                StepBuilder::passing(next).done()
            }
            Phase::Assigned { .. } if first && !holds => StepBuilder::passing(next)
                .send(Command::Start(worker))
                .done(),
            Phase::Stopping { .. } if first && holds => StepBuilder::passing(next)
                .send(Command::Stop(worker))
                .done(),
            Phase::Stopping { stop_by, .. } if !holds => {
                *stop_by = (*stop_by).min(now + timing.missing_grace);
                StepBuilder::passing(next).done()
            }
            _ => self.unchanged(Answer::Taken),
        }
    }

    fn deadline(&self, now: Moment) -> Outcome {
        match self.phase {
            Phase::Assigned { start_by, .. } if start_by <= now => {
                self.gone(FailureKind::NotStarted, "not started")
            }
            Phase::Running {
                missing_by: Some(missing_by),
                ..
            } if missing_by <= now => self.gone(FailureKind::WorkerRestarted, "worker restarted"),
            Phase::Stopping { stop_by, .. } if stop_by <= now => {
                self.stopped("the worker did not say so in time", false)
            }
            _ => self.unchanged(Answer::Taken),
        }
    }

    fn next_attempt(&self) -> Self {
        let mut next = self.clone();
        next.phase = Phase::Queued;
        next.attempt = self.attempt + 1;
        next.awaiting_worker = false;
        next.resume_from = self.resumable_checkpoint().map(|(_, step)| step);
        next.total_steps = None;
        next.progress = Progress::default();
        next
    }

    fn unchanged(&self, answer: Answer) -> Outcome {
        Outcome {
            next: self.clone(),
            effects: Vec::new(),
            answer,
        }
    }

    fn ignored(&self, why: &'static str) -> Outcome {
        self.unchanged(Answer::Ignored(why))
    }

    /// A change that goes into the database and the job's history.
    fn step(&self, next: Self, kind: TransitionKind, detail: String) -> StepBuilder {
        let (from, to) = (self.status(), next.status());
        StepBuilder::persisted(
            next,
            Transition {
                kind,
                from,
                to,
                detail,
                record: None,
            },
        )
    }
}

#[cfg(test)]
mod tests;
