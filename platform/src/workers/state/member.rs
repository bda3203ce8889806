//! One worker, as far as decisions need it: its connection, whether it counts as there, what it does.

use std::time::Duration;

use trainyard_shared::WorkerStatus;
use trainyard_shared::ids::{JobId, WorkerId};

use super::Effect;
use crate::clock::Moment;
use crate::workers::event::{CloseReason, Generation, Occupation, WorkerNews, WorkerView};

/// One worker, as far as decisions need it.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) link: Link,
    pub(super) presence: Presence,
    pub(super) last_heard: Moment,
    pub(super) ping: Option<Ping>,
    /// Whether it has yet to say on this connection which job it has.
    pub(super) first_answer_due: bool,
    /// When it can be given work although it has not said what it does.
    pub(super) settles_at: Option<Moment>,
    pub(super) reported: Option<WorkerStatus>,
    pub(super) holds: Option<JobId>,
    /// Since when it says that it does nothing, although it holds a job.
    pub(super) idle_since: Option<Moment>,
    /// Inference requests that are with it.
    pub(super) serving: usize,
    /// What it has beside a job.
    pub(super) occupied: Option<Occupation>,
    pub(super) draining: bool,
    pub(super) available: bool,
}

/// The connection that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    None,
    Authenticated(Generation),
    Registered(Generation),
}

/// Whether the worker counts as there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// There, or away for so short a time that it is not given up.
    Present,
    /// Given up, or never seen since the platform's start.
    Offline,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ping {
    pub(super) sent_at: Moment,
    pub(super) answer_by: Moment,
}

impl Link {
    pub(super) fn generation(self) -> Option<Generation> {
        match self {
            Self::None => None,
            Self::Authenticated(generation) | Self::Registered(generation) => Some(generation),
        }
    }
}

impl Member {
    pub(super) fn view(&self) -> WorkerView {
        let seen = self.presence == Presence::Present;
        WorkerView {
            status: self.status(),
            connected: self.link != Link::None,
            holds: self.holds,
            occupied: self.occupied,
            busy: self.holds.is_some() || self.occupied.is_some() || self.serving > 0,
            last_heard: seen.then_some(self.last_heard),
            available: self.available,
            draining: self.drains(),
        }
    }

    /// Whether it is to be given nothing new: an administrator wants it so, or it shuts down itself.
    fn drains(&self) -> bool {
        self.draining || self.reported == Some(WorkerStatus::Draining)
    }

    /// What it is assumed to do once a piece of work has been taken from it, until it says so itself. That it
    /// drains holds until it says otherwise or comes back.
    pub(super) fn assume(&mut self, status: WorkerStatus) {
        if self.reported != Some(WorkerStatus::Draining) {
            self.reported = Some(status);
        }
    }

    /// A piece of work, at which it was `busy`, has been taken from it. If it did not say so itself, it is asked
    /// what it does before it is given anything else.
    pub(super) fn freed(
        &mut self,
        worker: WorkerId,
        busy: WorkerStatus,
        said_by_worker: bool,
        now: Moment,
    ) -> Vec<Effect> {
        self.assume(if said_by_worker {
            WorkerStatus::Idle
        } else {
            busy
        });
        let mut effects = Vec::new();
        if matches!(self.link, Link::Registered(_)) && !said_by_worker {
            effects.push(Effect::Ping(worker));
        }
        effects.extend(self.availability(worker, now));
        effects.push(Effect::Show(worker));
        effects
    }

    pub(super) fn status(&self) -> WorkerStatus {
        if self.presence == Presence::Offline {
            return WorkerStatus::Offline;
        }
        if self.drains() {
            return WorkerStatus::Draining;
        }
        if self.holds.is_some() {
            return WorkerStatus::Training;
        }
        if let Some(occupied) = self.occupied {
            return occupied.status();
        }
        if self.serving > 0 {
            return WorkerStatus::Inference;
        }
        match (self.link, self.reported) {
            (Link::Authenticated(_), _) => WorkerStatus::Online,
            (_, Some(WorkerStatus::Offline)) => WorkerStatus::Online,
            (_, Some(reported)) => reported,
            (_, None) => WorkerStatus::Idle,
        }
    }

    /// Whether it can be given work at `now`; the effect if that has changed.
    pub(super) fn availability(&mut self, worker: WorkerId, now: Moment) -> Option<Effect> {
        let idle = matches!(
            self.reported,
            None | Some(WorkerStatus::Idle | WorkerStatus::Online)
        );
        let settled = self.settles_at.is_none_or(|at| at <= now);
        let registered = matches!(self.link, Link::Registered(_));
        let free = self.holds.is_none() && self.occupied.is_none() && self.serving == 0;
        let available = registered && settled && idle && free && !self.draining;
        if available == self.available {
            return None;
        }
        self.available = available;
        Some(if available {
            Effect::Available(worker)
        } else {
            Effect::Unavailable(worker)
        })
    }

    /// Looks at what may be due: an unanswered ping, the end of settling.
    pub(super) fn wake(
        &mut self,
        worker: WorkerId,
        now: Moment,
        ping_grace: Duration,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        if let Some(ping) = self.ping {
            if self.last_heard > ping.sent_at {
                self.ping = None;
            } else if ping.answer_by + ping_grace < now {
                // So late a look means a pause: the answer may lie unread in a buffer.
                let answer_by = now + ping_grace;
                self.ping = Some(Ping { answer_by, ..ping });
            } else if ping.answer_by <= now {
                effects.extend(self.lose(worker, now));
            }
        }
        if self.settles_at.is_some_and(|at| at <= now) {
            self.settles_at = None;
            effects.extend(self.availability(worker, now));
        }
        effects
    }

    /// Whether it has said for so long that it does nothing, although it holds a job: the end of that job may
    /// have been lost. Then it is asked, and not again for as long.
    pub(super) fn says_idle_for(&mut self, timeout: Duration, now: Moment) -> bool {
        let due = self
            .idle_since
            .is_some_and(|since| now.since(since) >= timeout && self.holds.is_some());
        if due {
            self.idle_since = Some(now);
        }
        due
    }

    pub(super) fn unlink(&mut self) {
        self.link = Link::None;
        self.idle_since = None;
        self.ping = None;
        self.first_answer_due = false;
        self.settles_at = None;
    }

    /// Gives the worker up: one offline event, one job that is told.
    pub(super) fn lose(&mut self, worker: WorkerId, now: Moment) -> Vec<Effect> {
        let mut effects = Vec::new();
        if let Some(generation) = self.link.generation() {
            effects.push(Effect::Close {
                worker,
                generation,
                reason: CloseReason::Silent,
            });
        }
        self.unlink();
        self.presence = Presence::Offline;
        self.reported = None;
        if let Some(job) = self.holds.take() {
            effects.push(Effect::TellJob(worker, job, WorkerNews::Lost));
        }
        effects.extend(self.lose_occupation(worker));
        effects.extend(self.availability(worker, now));
        effects.push(Effect::Show(worker));
        effects.push(Effect::SaveLastSeen(worker));
        effects
    }
}
