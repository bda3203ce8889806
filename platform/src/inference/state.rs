//! What becomes of one inference request (PROTOCOL 7, 8, 11). Pure.
//!
//! 1. A request waits until it is given to a worker. Each time is an attempt of its own with its own id on the
//!    wire, so that nothing that is said of an earlier one can be mistaken for the present one.
//! 2. Only the worker that has the attempt is heard. Tokens are taken in their order; the end comes once.
//! 3. When that worker's connection is gone, tokens may be lost that were on their way. If none has been shown
//!    yet, the request waits again; else it fails, since a gap in an answer is worse than none.
//! 4. Ended is final: what a former owner still says is confirmed and ignored.

use std::time::Duration;

use trainyard_shared::FailureKind;
use trainyard_shared::ids::WorkerId;
use trainyard_shared::message::InferenceCompletedData;

use crate::clock::Moment;

/// Attempts that a request gets; workers that are lost over it are not to be lost for ever.
const MAX_ATTEMPTS: u32 = 3;
/// Longest answer that is kept, each of its tokens with what is kept of where it ends.
const MAX_ANSWER_BYTES: usize = 4 << 20;
const BYTES_PER_TOKEN: usize = size_of::<usize>();

/// The waiting times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InferenceTiming {
    /// How long a request may wait for a worker.
    pub queue_timeout: Duration,
    /// How long a worker may be silent about it, loading the model included.
    pub silence_timeout: Duration,
}

/// Where a request stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It waits for a worker.
    Waiting,
    /// A worker has it.
    Running(WorkerId),
    /// It has been answered.
    Completed,
    /// There will be no (further) answer.
    Failed,
    /// Nobody wants the answer any more.
    Cancelled,
}

impl Phase {
    /// Whether it has ended.
    pub const fn is_ended(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }

    /// The word in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running(_) => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Whose a failure is, for those who must answer for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// The request's: nobody could answer it.
    Request,
    /// There is no worker for it, at least not in time.
    NoWorker,
    /// The worker's, or that of the way to it.
    Worker,
    /// Nobody was heard of in time.
    Silence,
    /// Nobody's: the platform stops.
    Stop,
}

impl Blame {
    /// Whether the same request may be answered a little later.
    pub const fn may_pass(self) -> bool {
        matches!(self, Self::NoWorker | Self::Stop)
    }
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// For a person.
    pub error: String,
    /// Whose it is.
    pub blame: Blame,
}

/// One request, as far as decisions need it.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestState {
    /// Where it stands.
    pub phase: Phase,
    /// Who had, or has, which attempt: the first is the first entry.
    pub owners: Vec<WorkerId>,
    /// Why it waits, as the router knows it.
    pub waits_because: String,
    deadline: Moment,
    shown_bytes: usize,
}

/// What happens to a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// It is given to a worker.
    Placed(WorkerId),
    /// There is no worker for it at the moment.
    NotPlaced {
        /// Why, for a person.
        reason: String,
        /// What to expect.
        prospect: Prospect,
    },
    /// A worker says something of an attempt.
    Said {
        /// The worker.
        worker: WorkerId,
        /// The attempt that it names, from 1.
        attempt: u32,
        /// What it says.
        said: Said,
    },
    /// The connection on which an attempt was sent is gone.
    WorkerGone(WorkerId),
    /// Nobody wants the answer any more.
    CancelAsked,
    /// The deadline has passed.
    DeadlinePassed,
    /// The platform stops.
    PlatformStops,
}

/// Whether a request that waits will be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prospect {
    /// Workers that could take it are busy or away.
    Later,
    /// No worker could ever take it.
    Never,
}

/// What a worker says of an inference.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    /// The next piece of the answer.
    Tokens(Vec<String>),
    /// The answer is whole.
    Completed(InferenceCompletedData),
    /// There will be none.
    Failed {
        /// Why, for a person.
        error: String,
        /// Whose it is, where the worker says so.
        kind: Option<FailureKind>,
    },
}

/// What must be done, in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// The next piece of the answer is there.
    Show(Vec<String>),
    /// The answer is whole.
    ShowCompleted(InferenceCompletedData),
    /// There will be no (further) answer.
    ShowFailed(Failure),
    /// Nobody wants it any more.
    ShowCancelled,
    /// It waits for a worker.
    Enqueue,
    /// It waits no longer.
    LeaveQueue,
    /// Send it to the worker, as this attempt.
    Start(WorkerId, u32),
    /// Tell the worker to stop this attempt.
    Stop(WorkerId, u32),
    /// The worker has room for another one.
    Free(WorkerId),
}

/// What is said to whoever made something happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It was taken in.
    Taken,
    /// It is of the past: confirmed, and without effect. A worker that still works at it may stop.
    Ignored,
    /// It is not that worker's to say.
    WrongWorker,
}

impl RequestState {
    /// A request that has just been made.
    pub fn new(now: Moment, timing: &InferenceTiming) -> Self {
        Self {
            phase: Phase::Waiting,
            owners: Vec::new(),
            waits_because: String::new(),
            deadline: now + timing.queue_timeout,
            shown_bytes: 0,
        }
    }

    /// When [`Event::DeadlinePassed`] is due.
    pub fn next_deadline(&self) -> Option<Moment> {
        (!self.phase.is_ended()).then_some(self.deadline)
    }

    /// Lets an event happen.
    pub fn apply(
        &mut self,
        event: Event,
        now: Moment,
        timing: &InferenceTiming,
    ) -> (Answer, Vec<Effect>) {
        match event {
            Event::Placed(worker) => self.placed(worker, now, timing),
            Event::NotPlaced { reason, prospect } => self.not_placed(reason, prospect),
            Event::Said {
                worker,
                attempt,
                said,
            } => self.said(worker, attempt, said, now, timing),
            Event::WorkerGone(worker) => self.worker_gone(worker, now, timing),
            Event::CancelAsked => self.cancelled(),
            Event::DeadlinePassed => self.deadline_passed(now, timing),
            Event::PlatformStops => self.platform_stops(),
        }
    }

    /// The present attempt, from 1; 0 before the first.
    pub fn attempt(&self) -> u32 {
        u32::try_from(self.owners.len()).unwrap_or(u32::MAX)
    }

    fn placed(
        &mut self,
        worker: WorkerId,
        now: Moment,
        timing: &InferenceTiming,
    ) -> (Answer, Vec<Effect>) {
        if self.phase != Phase::Waiting {
            return (Answer::Ignored, vec![Effect::Free(worker)]);
        }
        self.phase = Phase::Running(worker);
        self.owners.push(worker);
        self.deadline = now + timing.silence_timeout;
        (Answer::Taken, vec![Effect::Start(worker, self.attempt())])
    }

    fn not_placed(&mut self, reason: String, prospect: Prospect) -> (Answer, Vec<Effect>) {
        if self.phase != Phase::Waiting {
            return (Answer::Ignored, Vec::new());
        }
        self.waits_because = reason;
        let effects = match prospect {
            Prospect::Later => Vec::new(),
            Prospect::Never => self.fail_waiting(),
        };
        (Answer::Taken, effects)
    }

    fn said(
        &mut self,
        worker: WorkerId,
        attempt: u32,
        said: Said,
        now: Moment,
        timing: &InferenceTiming,
    ) -> (Answer, Vec<Effect>) {
        if owner_of(&self.owners, attempt) != Some(worker) {
            return (Answer::WrongWorker, Vec::new());
        }
        if self.phase != Phase::Running(worker) || attempt != self.attempt() {
            return (Answer::Ignored, Vec::new());
        }
        // Empty tokens say nothing: they are not kept, and nothing but them is silence.
        let said = match said {
            Said::Tokens(mut tokens) => {
                tokens.retain(|token| !token.is_empty());
                if tokens.is_empty() {
                    return (Answer::Taken, Vec::new());
                }
                Said::Tokens(tokens)
            }
            end => end,
        };
        self.deadline = now + timing.silence_timeout;
        let effects = match said {
            Said::Tokens(tokens) => {
                let sizes = tokens.iter().map(|token| token.len() + BYTES_PER_TOKEN);
                self.shown_bytes += sizes.sum::<usize>();
                if self.shown_bytes > MAX_ANSWER_BYTES {
                    let error = format!(
                        "the worker's answer is longer than the {MAX_ANSWER_BYTES} bytes that are kept"
                    );
                    let stop = Effect::Stop(worker, attempt);
                    return (Answer::Taken, self.fail(error, Blame::Worker, vec![stop]));
                }
                vec![Effect::Show(tokens)]
            }
            Said::Completed(data) => {
                self.phase = Phase::Completed;
                vec![Effect::ShowCompleted(data), Effect::Free(worker)]
            }
            Said::Failed { error, kind } => {
                let blame = match kind {
                    Some(FailureKind::BadConfig) => Blame::Request,
                    _ => Blame::Worker,
                };
                self.fail(error, blame, Vec::new())
            }
        };
        (Answer::Taken, effects)
    }

    fn worker_gone(
        &mut self,
        worker: WorkerId,
        now: Moment,
        timing: &InferenceTiming,
    ) -> (Answer, Vec<Effect>) {
        if self.phase != Phase::Running(worker) {
            return (Answer::Ignored, Vec::new());
        }
        let error = "the connection to the worker was lost while it answered";
        if self.shown_bytes > 0 || self.attempt() >= MAX_ATTEMPTS {
            let effects = self.fail(error.to_owned(), Blame::Worker, Vec::new());
            return (Answer::Taken, effects);
        }
        self.phase = Phase::Waiting;
        self.waits_because = error.to_owned();
        self.deadline = now + timing.queue_timeout;
        (Answer::Taken, vec![Effect::Free(worker), Effect::Enqueue])
    }

    fn cancelled(&mut self) -> (Answer, Vec<Effect>) {
        let effects = match self.phase {
            Phase::Waiting => vec![Effect::ShowCancelled, Effect::LeaveQueue],
            Phase::Running(worker) => vec![
                Effect::ShowCancelled,
                Effect::Stop(worker, self.attempt()),
                Effect::Free(worker),
            ],
            Phase::Completed | Phase::Failed | Phase::Cancelled => {
                return (Answer::Ignored, Vec::new());
            }
        };
        self.phase = Phase::Cancelled;
        (Answer::Taken, effects)
    }

    fn deadline_passed(&mut self, now: Moment, timing: &InferenceTiming) -> (Answer, Vec<Effect>) {
        if self.phase.is_ended() || now < self.deadline {
            return (Answer::Ignored, Vec::new());
        }
        let effects = match self.phase {
            Phase::Running(worker) => {
                let seconds = timing.silence_timeout.as_secs_f64();
                let error = format!("the worker has said nothing for {seconds} s");
                let stop = Effect::Stop(worker, self.attempt());
                self.fail(error, Blame::Silence, vec![stop])
            }
            _ => self.fail_waiting(),
        };
        (Answer::Taken, effects)
    }

    fn platform_stops(&mut self) -> (Answer, Vec<Effect>) {
        let error = "the platform is stopping".to_owned();
        let blame = Blame::Stop;
        let effects = match self.phase {
            Phase::Waiting => {
                self.phase = Phase::Failed;
                let failure = Failure { error, blame };
                vec![Effect::ShowFailed(failure), Effect::LeaveQueue]
            }
            Phase::Running(worker) => {
                let stop = Effect::Stop(worker, self.attempt());
                self.fail(error, blame, vec![stop])
            }
            Phase::Completed | Phase::Failed | Phase::Cancelled => {
                return (Answer::Ignored, Vec::new());
            }
        };
        (Answer::Taken, effects)
    }

    fn fail_waiting(&mut self) -> Vec<Effect> {
        self.phase = Phase::Failed;
        let why = if self.waits_because.is_empty() {
            "no worker was free in time"
        } else {
            &self.waits_because
        };
        let failure = Failure {
            error: format!("no worker takes the request: {why}"),
            blame: Blame::NoWorker,
        };
        vec![Effect::ShowFailed(failure), Effect::LeaveQueue]
    }

    /// Ends a request that is with a worker.
    fn fail(&mut self, error: String, blame: Blame, before: Vec<Effect>) -> Vec<Effect> {
        let Phase::Running(worker) = self.phase else {
            return before;
        };
        self.phase = Phase::Failed;
        let mut effects = vec![Effect::ShowFailed(Failure { error, blame })];
        effects.extend(before);
        effects.push(Effect::Free(worker));
        effects
    }
}

/// Who had that attempt, counted from 1.
pub fn owner_of(owners: &[WorkerId], attempt: u32) -> Option<WorkerId> {
    let index = usize::try_from(attempt).ok()?.checked_sub(1)?;
    owners.get(index).copied()
}

#[cfg(test)]
mod tests;
