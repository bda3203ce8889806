//! Which workers there are, which connection of each counts, and when one is lost (PROTOCOL 2 and 3).
//!
//! Pure: every function gets the present moment and gives the effects in the order in which they are to be
//! carried out. [`super::supervisor`] does that for real, a simulation in memory.
//!
//! 1. A worker that authenticates gets the next generation; an older connection is closed.
//! 2. Whatever it says on the current connection is a sign of life; what it does is believed from there.
//! 3. A closed socket changes nothing but that it can be given no work. Silence of the heartbeat timeout
//!    does: at the next check it is pinged, and given up when the grace passes; without a connection it is
//!    given up at once.
//! 4. A worker that holds a job and says for that long that it does nothing is pinged too: its `pong` says
//!    whether it still has the job.
//! 5. A check that comes twice its period after the last one or later finds a platform that was paused: it
//!    is skipped, so that what has arrived meanwhile is read first.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use trainyard_shared::WorkerStatus;
use trainyard_shared::ids::{JobId, WorkerId};

use super::event::{
    CloseReason, Delivery, FleetEffect as Effect, Generation, ReportedBy, SelfReport, WorkerNews,
    WorkerView,
};
use crate::clock::Moment;
use member::{Link, Member, Ping, Presence};

/// The waiting times, from the settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FleetTiming {
    /// `WORKER_HEARTBEAT_TIMEOUT`
    pub heartbeat_timeout: Duration,
    /// `WORKER_CHECK_INTERVAL`
    pub check_interval: Duration,
    /// `WORKER_PING_GRACE`
    pub ping_grace: Duration,
    /// A worker that has registered can be given work after this time at the latest: its first
    /// `heartbeat`, which may name a job that it still has, comes before that.
    pub settle: Duration,
}

/// All workers that are enrolled.
#[derive(Debug, Clone)]
pub struct Fleet {
    timing: FleetTiming,
    members: BTreeMap<WorkerId, Member>,
    /// When something may be due with a worker between the checks.
    wakes: BTreeSet<(Moment, WorkerId)>,
    last_check: Moment,
    next_generation: u64,
}

impl Fleet {
    /// An empty fleet; checks are counted from `now`.
    pub fn new(timing: FleetTiming, now: Moment) -> Self {
        Self {
            timing,
            members: BTreeMap::new(),
            wakes: BTreeSet::new(),
            last_check: now,
            next_generation: 1,
        }
    }

    /// A worker that is in the database when the platform starts, or has just been enrolled. One that
    /// has a job is waited for as if it had been heard of now.
    pub fn add(&mut self, worker: WorkerId, holds: Option<JobId>, draining: bool, now: Moment) {
        let presence = if holds.is_some() {
            Presence::Present
        } else {
            Presence::Offline
        };
        self.members.entry(worker).or_insert(Member {
            link: Link::None,
            presence,
            last_heard: now,
            ping: None,
            first_answer_due: false,
            settles_at: None,
            reported: None,
            holds,
            idle_since: None,
            serving: 0,
            occupied: None,
            draining,
            available: false,
        });
    }

    /// A worker has proved who it is on a new connection, which takes over.
    pub fn authenticated(&mut self, worker: WorkerId, now: Moment) -> (Generation, Vec<Effect>) {
        self.add(worker, None, false, now);
        let generation = Generation(self.next_generation);
        self.next_generation += 1;
        let member = self.members.get_mut(&worker).expect("it was added above");
        let mut effects = Vec::new();
        if let Some(older) = member.link.generation() {
            let reason = CloseReason::Replaced;
            effects.push(Effect::Close {
                worker,
                generation: older,
                reason,
            });
        }
        let was_offline = member.presence == Presence::Offline;
        member.link = Link::Authenticated(generation);
        member.presence = Presence::Present;
        member.last_heard = now;
        member.ping = None;
        member.first_answer_due = false;
        member.settles_at = None;
        member.reported = None;
        effects.extend(member.availability(worker, now));
        if was_offline {
            effects.push(Effect::Show(worker));
        }
        effects.push(Effect::SaveLastSeen(worker));
        (generation, effects)
    }

    /// The worker has said what it can do.
    pub fn registered(
        &mut self,
        worker: WorkerId,
        generation: Generation,
        now: Moment,
    ) -> Vec<Effect> {
        let settles_at = now + self.timing.settle;
        let Some(member) = self.current(worker, generation) else {
            return Vec::new();
        };
        let again = member.link == Link::Registered(generation);
        member.link = Link::Registered(generation);
        member.last_heard = now;
        let mut effects = Vec::new();
        if !again {
            member.settles_at = Some(settles_at);
            if let Some(job) = member.holds {
                member.first_answer_due = true;
                effects.push(Effect::Ping(worker));
                effects.push(Effect::TellJob(worker, job, WorkerNews::Registered));
            }
            if member.occupied.is_some() {
                effects.push(Effect::Ping(worker));
                effects.extend(member.tell_occupation(worker, WorkerNews::Registered));
            }
        }
        effects.extend(member.availability(worker, now));
        effects.push(Effect::Show(worker));
        if !again {
            self.wakes.insert((settles_at, worker));
        }
        effects
    }

    /// A connection is gone. That of an older generation is nobody's business.
    pub fn disconnected(
        &mut self,
        worker: WorkerId,
        generation: Generation,
        now: Moment,
    ) -> Vec<Effect> {
        let Some(member) = self.current(worker, generation) else {
            return Vec::new();
        };
        member.unlink();
        let mut effects = Vec::new();
        if let Some(job) = member.holds {
            effects.push(Effect::TellJob(worker, job, WorkerNews::Disconnected));
        }
        effects.extend(member.tell_occupation(worker, WorkerNews::Disconnected));
        effects.extend(member.availability(worker, now));
        effects.push(Effect::Show(worker));
        effects.push(Effect::SaveLastSeen(worker));
        effects
    }

    /// A message came on that connection at that moment.
    pub fn heard(&mut self, worker: WorkerId, generation: Generation, at: Moment) {
        if let Some(member) = self.current(worker, generation) {
            member.last_heard = member.last_heard.max(at);
        }
    }

    /// The worker says how it is.
    pub fn reported(
        &mut self,
        worker: WorkerId,
        generation: Generation,
        report: SelfReport,
        now: Moment,
    ) -> Vec<Effect> {
        let Some(member) = self.current(worker, generation) else {
            return Vec::new();
        };
        if member.link != Link::Registered(generation) {
            return Vec::new();
        }
        member.last_heard = member.last_heard.max(now);
        let shown = member.status();
        if report.status.is_some() {
            member.reported = report.status;
            member.settles_at = None;
            let contradicts = report.status == Some(WorkerStatus::Idle)
                && member
                    .holds
                    .is_some_and(|job| report.current_job != Some(job));
            member.idle_since = contradicts.then(|| member.idle_since.unwrap_or(now));
        }
        let mut effects = Vec::new();
        if let Some(job) = report.current_job.filter(|job| member.holds != Some(*job)) {
            member.reported = Some(WorkerStatus::Training);
            member.settles_at = None;
            effects.push(Effect::StopForeign(worker, job));
        }
        let answers = match report.by {
            ReportedBy::Pong => true,
            ReportedBy::Heartbeat => report.current_job.is_some(),
            ReportedBy::Metrics => false,
        };
        if let Some(job) = member.holds.filter(|_| answers) {
            let holds = report.current_job == Some(job);
            let first = std::mem::take(&mut member.first_answer_due);
            effects.push(Effect::TellJob(
                worker,
                job,
                WorkerNews::Holds { holds, first },
            ));
        }
        effects.extend(member.availability(worker, now));
        if member.status() != shown || report.by == ReportedBy::Metrics {
            effects.push(Effect::Show(worker));
        }
        effects
    }

    /// Takes an available worker for a job; false if it is not (any more) available.
    #[must_use]
    pub fn claim(&mut self, worker: WorkerId, job: JobId) -> bool {
        match self.members.get_mut(&worker) {
            Some(member) if member.available => {
                member.holds = Some(job);
                member.idle_since = None;
                member.available = false;
                true
            }
            _ => false,
        }
    }

    /// The job is not with the worker any more.
    pub fn released(
        &mut self,
        worker: WorkerId,
        job: JobId,
        said_by_worker: bool,
        now: Moment,
    ) -> Vec<Effect> {
        let Some(member) = self
            .members
            .get_mut(&worker)
            .filter(|m| m.holds == Some(job))
        else {
            return Vec::new();
        };
        member.holds = None;
        member.first_answer_due = false;
        member.freed(worker, WorkerStatus::Training, said_by_worker, now)
    }

    /// The claim came to nothing: the job was not sent to the worker.
    pub fn unclaimed(&mut self, worker: WorkerId, job: JobId, now: Moment) -> Vec<Effect> {
        match self.members.get_mut(&worker) {
            Some(member) if member.holds == Some(job) => {
                member.holds = None;
                member.availability(worker, now).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    /// Gives the worker nothing new from now on, or does again.
    pub fn set_draining(&mut self, worker: WorkerId, draining: bool, now: Moment) -> Vec<Effect> {
        let Some(member) = self.members.get_mut(&worker) else {
            return Vec::new();
        };
        member.draining = draining;
        let mut effects: Vec<_> = member.availability(worker, now).into_iter().collect();
        effects.push(Effect::Show(worker));
        effects
    }

    /// The worker's key was replaced: what is connected with the old one goes.
    pub fn key_replaced(&mut self, worker: WorkerId, now: Moment) -> Vec<Effect> {
        let Some(generation) = self.members.get(&worker).and_then(|m| m.link.generation()) else {
            return Vec::new();
        };
        let reason = CloseReason::KeyReplaced;
        let mut effects = vec![Effect::Close {
            worker,
            generation,
            reason,
        }];
        effects.extend(self.disconnected(worker, generation, now));
        effects
    }

    /// The worker was deleted.
    pub fn removed(&mut self, worker: WorkerId) -> Vec<Effect> {
        let Some(mut member) = self.members.remove(&worker) else {
            return Vec::new();
        };
        let mut effects = Vec::new();
        if let Some(generation) = member.link.generation() {
            let reason = CloseReason::Deleted;
            effects.push(Effect::Close {
                worker,
                generation,
                reason,
            });
        }
        if let Some(job) = member.holds {
            effects.push(Effect::TellJob(worker, job, WorkerNews::Lost));
        }
        effects.extend(member.lose_occupation(worker));
        if member.available {
            effects.push(Effect::Unavailable(worker));
        }
        effects.push(Effect::Show(worker));
        effects
    }

    /// The regular look at all workers, every `check_interval`.
    pub fn check(&mut self, now: Moment) -> Vec<Effect> {
        let paused = now.since(self.last_check) >= self.timing.check_interval * 2;
        self.last_check = now;
        if paused {
            tracing::warn!("the platform was paused; workers are not judged by that time");
            return Vec::new();
        }
        let mut effects = Vec::new();
        for (&worker, member) in &mut self.members {
            let silent = now.since(member.last_heard) >= self.timing.heartbeat_timeout;
            if member.says_idle_for(self.timing.heartbeat_timeout, now) {
                effects.push(Effect::Ping(worker));
            }
            if member.presence == Presence::Offline || !silent || member.ping.is_some() {
                continue;
            }
            match member.link {
                Link::Registered(_) => {
                    let answer_by = now + self.timing.ping_grace;
                    member.ping = Some(Ping {
                        sent_at: now,
                        answer_by,
                    });
                    self.wakes.insert((answer_by, worker));
                    effects.push(Effect::Ping(worker));
                }
                Link::None | Link::Authenticated(_) => effects.extend(member.lose(worker, now)),
            }
        }
        effects
    }

    /// What is due at `now` between the checks: unanswered pings, workers that have settled.
    pub fn tick(&mut self, now: Moment) -> Vec<Effect> {
        let mut effects = Vec::new();
        while let Some((at, worker)) = self.wakes.first().copied().filter(|(at, _)| *at <= now) {
            self.wakes.remove(&(at, worker));
            let Some(member) = self.members.get_mut(&worker) else {
                continue;
            };
            effects.extend(member.wake(worker, now, self.timing.ping_grace));
            // What was put off is looked at again; the rest of what is due lies behind.
            let next = member.ping.map(|ping| ping.answer_by);
            self.wakes
                .extend(next.filter(|at| *at > now).map(|at| (at, worker)));
        }
        effects
    }

    /// When [`Fleet::tick`] is due next.
    pub fn next_tick(&self) -> Option<Moment> {
        self.wakes.first().map(|(at, _)| *at)
    }

    /// Whether a command about `job` can be sent to the worker, and on which connection.
    pub fn delivery(&self, worker: WorkerId, job: JobId) -> Delivery {
        match self
            .members
            .get(&worker)
            .filter(|member| member.holds == Some(job))
        {
            None => Delivery::NotHolding,
            Some(member) => match member.link {
                Link::Registered(generation) => Delivery::On(generation),
                Link::None | Link::Authenticated(_) => Delivery::Away,
            },
        }
    }

    /// How a worker is; nothing for one that there is not.
    pub fn view(&self, worker: WorkerId) -> Option<WorkerView> {
        self.members.get(&worker).map(Member::view)
    }

    /// The generation of the worker's current connection, if it has one.
    pub fn generation(&self, worker: WorkerId) -> Option<Generation> {
        self.members.get(&worker)?.link.generation()
    }

    fn current(&mut self, worker: WorkerId, generation: Generation) -> Option<&mut Member> {
        self.members
            .get_mut(&worker)
            .filter(|member| member.link.generation() == Some(generation))
    }
}

mod member;
mod occupations;
mod serving;
#[cfg(test)]
mod tests;
