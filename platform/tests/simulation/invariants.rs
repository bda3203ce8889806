//! What must hold at every moment, whatever goes wrong. The page `ARCHITECTURE.md` lists the same.

use std::collections::{BTreeMap, BTreeSet};

use trainyard_platform::federated::state::Doing;
use trainyard_platform::jobs::event::{Event as JobEvent, News, Transition, TransitionKind};
use trainyard_platform::jobs::phase::Phase;
use trainyard_platform::jobs::state::JobState;
use trainyard_platform::workers::event::{Generation, Occupation};
use trainyard_platform::workers::lease::Lease;
use trainyard_shared::ids::{FederatedSessionId, JobId, MessageId, WorkerId};
use trainyard_shared::message::{ErrorCode, FromWorker};
use trainyard_shared::{FailureKind, JobStatus};
use trainyard_worker::connection::waiting::{JobAttempt, ended_job};

use crate::jobs::{START_TIMEOUT_MS, STOP_GRACE_MS};
use crate::supervisor::{CHECK_INTERVAL_MS, HEARTBEAT_TIMEOUT_MS, PING_GRACE_MS};
use crate::world::World;

/// A job may be running without anybody who has it for this long: the silence that is waited for, the check
/// behind it, one that is skipped after a pause, the last question, and time for a worker that comes back meanwhile
/// and is gone again.
const RUNNING_MS: u64 = HEARTBEAT_TIMEOUT_MS + 2 * CHECK_INTERVAL_MS + PING_GRACE_MS + 180_000;
/// Twice the deadline: an unclear write makes it begin anew.
const ASSIGNED_MS: u64 = 2 * START_TIMEOUT_MS + 60_000;
const STOPPING_MS: u64 = 2 * STOP_GRACE_MS + 60_000;

/// What has been seen so far, beside what is in the world.
#[derive(Default)]
pub struct Record {
    pub violation: Option<String>,
    pub healed_at: u64,
    /// Steps that each job has.
    pub totals: BTreeMap<JobId, u64>,
    /// What an acknowledged message says about the database.
    acknowledged: Vec<Fact>,
    /// Ends of jobs that a worker keeps until they are taken, by machine.
    kept_ends: BTreeMap<MessageId, JobAttempt>,
    ended: BTreeSet<(JobId, u32)>,
    /// Failures for loss since the worker last connected.
    losses: BTreeMap<WorkerId, u32>,
    offline: BTreeMap<WorkerId, bool>,
    draining: BTreeSet<WorkerId>,
    begun: BTreeSet<(usize, u32, JobAttempt)>,
    shown: BTreeMap<JobId, Shown>,
    without_owner_since: BTreeMap<JobId, u64>,
    /// Since when a worker and a session do not agree on whether it takes part.
    disagree_since: BTreeMap<(FederatedSessionId, WorkerId), u64>,
}

/// How a job was last shown to dashboards by the present run of the platform.
struct Shown {
    attempt: u32,
    step: u64,
    ended: bool,
}

/// What must be in the database once a message about it is acknowledged, and stay there.
enum Fact {
    Started(JobId, u32),
    Checkpoint(JobId, u32, u64),
    Ended(JobId, u32),
}

impl Record {
    pub fn total_steps(&self, job: JobId) -> u64 {
        self.totals.get(&job).copied().unwrap_or(1)
    }

    pub fn platform_started(&mut self) {
        self.shown.clear();
        self.offline.clear();
        self.draining.clear();
        self.losses.clear();
        self.without_owner_since.clear();
        self.disagree_since.clear();
    }

    pub fn connected(&mut self, worker: WorkerId) {
        self.losses.insert(worker, 0);
        self.offline.insert(worker, false);
    }

    pub fn drains(&mut self, worker: WorkerId, draining: bool) {
        match draining {
            true => self.draining.insert(worker),
            false => self.draining.remove(&worker),
        };
    }

    /// A message is put into the outbox, if there is room.
    pub fn said(&mut self, message: &FromWorker, disk_full: bool) {
        if let (Some(id), Some(job)) = (message.message_id(), ended_job(message))
            && !disk_full
        {
            self.kept_ends.insert(id, job);
        }
    }

    /// The platform does not take a message.
    pub fn refused(&mut self, message: &FromWorker, code: ErrorCode) {
        if let Some(id) = message.message_id().filter(|_| !code.keeps_message()) {
            self.kept_ends.remove(&id);
        }
    }

    /// What a machine still had to say, which will never come back.
    pub fn forget(&mut self, message: MessageId) {
        self.kept_ends.remove(&message);
    }
}

impl World {
    pub fn violated(&mut self, what: impl FnOnce() -> String) {
        if self.record.violation.is_none() {
            let what = what();
            self.note(|| format!("VIOLATED: {what}"));
            self.record.violation = Some(what);
        }
    }

    /// Ended is final; an attempt ends once; a worker has one job; an owner stays the owner.
    pub fn check_transition(&mut self, before: &JobState, next: &JobState, done: &Transition) {
        let job = next.id;
        let kind = done.kind;
        let (from, to) = (before.status(), next.status());
        self.note(|| {
            format!(
                "job {job} attempt {}: {from} -> {to} ({}) {}",
                next.attempt,
                kind.as_str(),
                done.detail
            )
        });
        if done.from != from {
            self.violated(|| {
                format!(
                    "job {job}: written over {from}, though it builds on {}",
                    done.from
                )
            });
        }
        let allowed = match kind {
            TransitionKind::Resumed => to == JobStatus::Queued,
            TransitionKind::CheckpointSaved => to == from,
            _ => false,
        };
        if from.is_ended() && !allowed {
            self.violated(|| {
                format!(
                    "job {job}: {from} is final, and became {to} by {}",
                    kind.as_str()
                )
            });
        }
        let is_new = matches!(kind, TransitionKind::Resumed | TransitionKind::Retried);
        if next.attempt != before.attempt + u32::from(is_new) {
            self.violated(|| {
                format!(
                    "job {job}: attempt {} follows {}",
                    next.attempt, before.attempt
                )
            });
        }
        let ends = matches!(
            kind,
            TransitionKind::Completed
                | TransitionKind::Failed
                | TransitionKind::Retried
                | TransitionKind::Stopped
        );
        if ends && !self.record.ended.insert((job, before.attempt)) {
            self.violated(|| format!("job {job}: attempt {} ends twice", before.attempt));
        }
        if before
            .owners
            .iter()
            .any(|(attempt, owner)| next.owners.get(attempt) != Some(owner))
        {
            self.violated(|| format!("job {job}: an attempt has another owner than before"));
        }
        if let Some(worker) = next.phase.worker() {
            let mut others = self.database.jobs.iter().filter(|(id, _)| **id != job);
            if let Some((other, _)) =
                others.find(|(_, row)| row.state.phase.worker() == Some(worker))
            {
                let other = *other;
                self.violated(|| format!("worker {worker} has jobs {other} and {job} at once"));
            }
        }
        let fails = matches!(kind, TransitionKind::Failed | TransitionKind::Retried);
        let failure = next.failure.as_ref().filter(|_| fails);
        let lost = failure.is_some_and(|failure| failure.kind == FailureKind::WorkerLost);
        if let Some(worker) = before.phase.worker().filter(|_| lost) {
            let losses = self.record.losses.entry(worker).or_default();
            *losses += 1;
            if *losses > 1 {
                self.violated(|| format!("one outage of worker {worker} failed two jobs"));
            }
        }
    }

    /// An acknowledged message is in the database.
    pub fn check_acknowledgement(&mut self, message: &FromWorker) {
        if let Some(id) = message.message_id() {
            self.record.kept_ends.remove(&id);
        }
        let fact = match message {
            FromWorker::JobStarted(m) => m.attempt.map(|attempt| Fact::Started(m.job_id, attempt)),
            FromWorker::CheckpointSaved(m) => m
                .attempt
                .map(|attempt| Fact::Checkpoint(m.job_id, attempt, m.data.step)),
            other => ended_job(other).and_then(|end| Some(Fact::Ended(end.job_id, end.attempt?))),
        };
        if let Some(fact) = fact {
            self.check_fact(&fact);
            self.record.acknowledged.push(fact);
        }
    }

    /// Whatever was acknowledged is still there.
    pub fn check_acknowledged(&mut self) {
        let facts = std::mem::take(&mut self.record.acknowledged);
        for fact in &facts {
            self.check_fact(fact);
        }
        self.record.acknowledged = facts;
    }

    fn check_fact(&mut self, fact: &Fact) {
        let (Fact::Started(job, attempt)
        | Fact::Checkpoint(job, attempt, _)
        | Fact::Ended(job, attempt)) = fact;
        let state = self.database.jobs.get(job).map(|row| &row.state);
        let holds = state.is_some_and(|state| {
            state.attempt > *attempt
                || match fact {
                    Fact::Started(..) => {
                        !matches!(state.phase, Phase::Queued | Phase::Assigned { .. })
                    }
                    Fact::Checkpoint(_, _, step) => {
                        state.checkpoints.contains_key(&(*attempt, *step))
                    }
                    Fact::Ended(..) => state.status().is_ended(),
                }
        });
        if !holds {
            let what = match fact {
                Fact::Started(..) => "a start",
                Fact::Checkpoint(..) => "a checkpoint",
                Fact::Ended(..) => "an end",
            };
            self.violated(|| {
                format!("{what} of job {job} attempt {attempt} was acknowledged and is not stored")
            });
        }
    }

    /// Only the current connection is heard.
    pub fn check_heard(&mut self, lease: &Lease, current: Option<Generation>, event: &JobEvent) {
        if current != Some(lease.generation()) {
            let worker = lease.worker();
            self.violated(|| {
                format!("a replaced connection of worker {worker} is heard: {event:?}")
            });
        }
    }

    /// A worker that drains is given nothing new.
    pub fn check_claim(&mut self, worker: WorkerId) {
        if self.record.draining.contains(&worker) {
            self.violated(|| format!("worker {worker} drains and is given a job"));
        }
    }

    /// One outage is one offline event.
    pub fn check_shown_worker(&mut self, worker: WorkerId, offline: bool) {
        let before = self.record.offline.insert(worker, offline);
        if before == Some(true) && !offline {
            // It may only come back by connecting, which is noted elsewhere.
            self.violated(|| {
                format!("worker {worker} was offline and is shown online without a connection")
            });
        }
    }

    /// An attempt begins once in a process, and only with its owner.
    pub fn check_begun(&mut self, machine: usize, job: JobAttempt) {
        let host = &self.machines[machine];
        let (run, worker) = (host.run, host.worker);
        if !self.record.begun.insert((machine, run, job)) {
            self.violated(|| format!("machine {machine} begins {job:?} a second time"));
        }
        let row = self.database.jobs.get(&job.job_id);
        let owner = row.and_then(|row| row.state.owners.get(&job.attempt?).copied());
        if owner != Some(worker) {
            self.violated(|| format!("machine {machine} begins {job:?}, whose owner is {owner:?}"));
        }
    }

    /// Dashboards see no step back within an attempt, and no end undone.
    pub fn publish(&mut self, state: &JobState, news: &News) {
        if *news != News::Update {
            return;
        }
        let shown = Shown {
            attempt: state.attempt,
            step: state.progress.step(),
            ended: state.status().is_ended(),
        };
        let (attempt, step) = (shown.attempt, shown.step);
        let job = state.id;
        let Some(before) = self.record.shown.insert(job, shown) else {
            return;
        };
        let ended = state.status().is_ended();
        let back = attempt < before.attempt
            || attempt == before.attempt && (step < before.step || before.ended && !ended);
        if back {
            self.violated(|| {
                format!(
                    "job {job} is shown at attempt {attempt}, step {step}, after attempt {}, step {}",
                    before.attempt, before.step
                )
            });
        }
    }

    /// Nothing stays with a worker that does not have it, beyond the stated time.
    pub fn check_invariants(&mut self) {
        let sees = self.platform.process.is_some() && self.platform.paused_until <= self.now;
        let mut late = None;
        for (job, row) in &self.database.jobs {
            let bound = match row.state.phase {
                Phase::Assigned { .. } => ASSIGNED_MS,
                Phase::Running { .. } => RUNNING_MS,
                Phase::Stopping { .. } => STOPPING_MS,
                _ => {
                    self.record.without_owner_since.remove(job);
                    continue;
                }
            };
            let has_owner = self.machines.iter().enumerate().any(|(index, machine)| {
                row.state.phase.worker() == Some(machine.worker)
                    && machine.is_registered()
                    && machine.paused_until <= self.now
                    && machine.current_job(self.now) == Some(*job)
                    && self
                        .link_of(index)
                        .is_some_and(|link| !self.links[link].dead)
            });
            if has_owner || !sees {
                self.record.without_owner_since.remove(job);
                continue;
            }
            let since = *self
                .record
                .without_owner_since
                .entry(*job)
                .or_insert(self.now);
            if self.now - since > bound {
                late = Some((*job, row.state.status(), self.now - since));
            }
        }
        self.check_sessions(sees);
        if let Some((job, status, late_ms)) = late {
            self.violated(|| {
                format!("job {job} is {status} for {late_ms} ms without anybody who has it")
            });
        }
    }

    /// A worker has one thing to do. Beyond the stated time no session counts on a worker that does not train for
    /// it, and no worker is kept for a session, or trains for one, that does not count on it.
    fn check_sessions(&mut self, sees: bool) {
        let Some(process) = self.platform.process.as_ref().filter(|_| sees) else {
            return self.record.disagree_since.clear();
        };
        let mut disagree = BTreeMap::new();
        let mut twice = None;
        for (id, actor) in &process.federated {
            for (worker, member) in actor.state.members() {
                if matches!(member.doing, Doing::Trains { .. }) && !self.trains_for(*id, *worker) {
                    disagree.insert(
                        (*id, *worker),
                        "counts on a worker that does not train for it",
                    );
                }
            }
        }
        for worker in self.database.workers.keys() {
            let fleet = &process.supervisor.fleet;
            let Some(Occupation::Session(id)) = fleet.occupation_of(*worker) else {
                continue;
            };
            if fleet.view(*worker).is_some_and(|view| view.holds.is_some()) {
                twice = Some(*worker);
            }
            let actor = process.federated.get(&id);
            if !actor.is_some_and(|actor| actor.state.members().contains_key(worker)) {
                disagree.insert((id, *worker), "keeps a worker that does not take part");
            }
        }
        for machine in self.machines.iter().take(self.twin()) {
            let Some(id) = machine
                .current_session()
                .filter(|_| machine.is_registered())
            else {
                continue;
            };
            let actor = process.federated.get(&id);
            if !actor.is_some_and(|actor| actor.state.members().contains_key(&machine.worker)) {
                let key = (id, machine.worker);
                disagree.insert(key, "has ended for a worker that still takes part");
            }
        }
        let (now, known) = (self.now, std::mem::take(&mut self.record.disagree_since));
        let mut late = None;
        for (key, what) in disagree {
            let since = known.get(&key).copied().unwrap_or(now);
            self.record.disagree_since.insert(key, since);
            if now - since > RUNNING_MS {
                late = Some((key, what, now - since));
            }
        }
        if let Some(worker) = twice {
            self.violated(|| format!("worker {worker} has a job and a session"));
        }
        if let Some(((id, worker), what, late_ms)) = late {
            self.violated(|| format!("session {id} {what}: worker {worker}, for {late_ms} ms"));
        }
    }

    /// Whether a worker that is connected takes part in a session, or has a result of its to deliver.
    fn trains_for(&self, id: FederatedSessionId, worker: WorkerId) -> bool {
        self.machines.iter().enumerate().any(|(index, machine)| {
            machine.worker == worker
                && machine.is_registered()
                && machine.paused_until <= self.now
                && (machine.current_session() == Some(id)
                    || !machine.disk.outbox.undelivered_rounds(id).is_empty())
                && self
                    .link_of(index)
                    .is_some_and(|link| !self.links[link].dead)
        })
    }

    /// Whether everything has come to rest: nothing is with a worker, nothing waits that could run, and every
    /// worker has said all that it had to say.
    pub fn has_settled(&mut self) -> bool {
        let resting = self.unrest().is_none();
        if resting && let Some((id, job)) = self.record.kept_ends.first_key_value() {
            let what = format!("the end of {job:?} was kept ({id}) and never arrived");
            self.violated(|| what);
        }
        resting
    }

    pub fn explain_unrest(&mut self) {
        if let Some(what) = self.unrest() {
            self.violated(|| format!("everything was repaired long ago, and yet: {what}"));
        }
    }

    fn unrest(&self) -> Option<String> {
        let Some(process) = &self.platform.process else {
            return Some("the platform does not run".to_owned());
        };
        for (index, machine) in self.machines.iter().enumerate() {
            let Some(running) = &machine.process else {
                if index == self.twin() {
                    continue;
                }
                return Some(format!("machine {index} does not run"));
            };
            if !machine.is_registered() {
                return Some(format!("machine {index} is not registered"));
            }
            if let Some(running) = &running.running {
                return Some(format!("machine {index} trains {:?}", running.job));
            }
            if let Some(session) = machine.current_session() {
                return Some(format!("machine {index} takes part in session {session}"));
            }
            if !machine.disk.outbox.is_empty() {
                return Some(format!(
                    "machine {index} has {} messages left",
                    machine.disk.outbox.len()
                ));
            }
        }
        for (job, row) in &self.database.jobs {
            let may_wait = row.state.phase == Phase::Queued && !self.could_run(row.requested);
            if !row.state.status().is_ended() && !may_wait {
                return Some(format!("job {job} is {}", row.state.status()));
            }
        }
        if let Some((id, _)) = self.database.sessions.iter().find(|(_, row)| !row.ended) {
            return Some(format!("session {id} is open"));
        }
        for worker in self.database.workers.keys() {
            let view = process.supervisor.fleet.view(*worker)?;
            if let Some(job) = view.holds {
                return Some(format!("worker {worker} is thought to have job {job}"));
            }
            if let Some(with) = process.supervisor.fleet.occupation_of(*worker) {
                return Some(format!("worker {worker} is thought to have {with:?}"));
            }
        }
        None
    }

    /// Whether there is a worker for a job that asks for that one, or for any.
    fn could_run(&self, requested: Option<WorkerId>) -> bool {
        let mut workers = self.database.workers.iter();
        workers.any(|(id, row)| !row.draining && requested.is_none_or(|asked| asked == *id))
    }
}
