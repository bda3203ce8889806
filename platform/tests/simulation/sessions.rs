//! Federated sessions as the simulation runs them: the real [`Session`] decides about workers; the rounds, their
//! merges and the rows are played.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use trainyard_platform::clock::Moment;
use trainyard_platform::federated::state::{
    Effect, Event, Failures, Known, Order, Session, Settings, Stage, Times,
};
use trainyard_platform::workers::event::{Occupation, WorkerNews};
use trainyard_platform::workers::lease::Lease;
use trainyard_platform::workers::placement::Abilities;
use trainyard_shared::ids::{FederatedSessionId, WorkerId};
use trainyard_shared::message::{ErrorCode, FromWorker};

use crate::network::LinkId;
use crate::platform::PlatformEvent;
use crate::supervisor::ToSupervisor;
use crate::world::{Broken, World};

const MIN_WORKERS: usize = 2;
const ROUND_TIMEOUT: Duration = Duration::from_secs(600);
const RETRY_MS: u64 = 1_000;

/// A session's rows, as they would be read back.
#[derive(Debug, Clone)]
pub struct SessionRow {
    total_rounds: u64,
    round: u64,
    merging: bool,
    pub ended: bool,
    results: BTreeSet<WorkerId>,
    pub members: BTreeSet<WorkerId>,
    shards: BTreeMap<WorkerId, u64>,
    failures: Failures,
    times: Times,
}

/// A session's actors: of its workers, and of its rounds.
pub struct SessionActor {
    pub state: Session,
    mailbox: VecDeque<Event>,
    /// The first of the mailbox could not be written down and is tried again.
    retries: bool,
    /// Results that close the round.
    expected: usize,
    /// When something is due.
    due: Option<Moment>,
}

/// What happens to a session within the platform's process.
#[derive(Debug, Clone, Copy)]
pub enum SessionEvent {
    /// Its actor takes the next event.
    Take,
    Merged,
    Due,
    /// News of a worker goes out to it.
    News(WorkerId, WorkerNews),
}

fn settings() -> Settings {
    Settings {
        shards: 3,
        min_workers: MIN_WORKERS,
        max_workers: 3,
        round_timeout: ROUND_TIMEOUT,
        deadline_deviations: 4.0,
        allowed: None,
    }
}

impl World {
    fn session_actor(&mut self, id: FederatedSessionId) -> Option<&mut SessionActor> {
        self.platform.process.as_mut()?.federated.get_mut(&id)
    }

    fn session_later(&mut self, wait: u64, id: FederatedSessionId, event: SessionEvent) {
        self.platform_later(wait, PlatformEvent::Session(id, event));
    }

    /// Somebody makes a session.
    pub fn make_session(&mut self) {
        let id = FederatedSessionId(self.database.sessions.len() as i64 + 1);
        let total_rounds = self.random.between(1, 5);
        self.note(|| format!("session {id} is made, of {total_rounds} rounds"));
        let row = SessionRow {
            total_rounds,
            round: 0,
            merging: false,
            ended: false,
            results: BTreeSet::new(),
            members: BTreeSet::new(),
            shards: BTreeMap::new(),
            failures: Failures::default(),
            times: Times::default(),
        };
        self.database.sessions.insert(id, row);
        self.start_session(id);
    }

    /// Starts the actors of a session as it stands in the database.
    pub fn start_session(&mut self, id: FederatedSessionId) {
        let now = self.moment();
        let row = self.database.sessions[&id].clone();
        let stage = match row.merging {
            true => Stage::Merging,
            false => Stage::Open,
        };
        let known = Known {
            stage,
            round: row.round,
            results: row.results,
            members: row.members,
            shards: row.shards,
            failures: row.failures,
            times: row.times,
        };
        let state = Session::new(settings(), None, known, now);
        let actor = SessionActor {
            state,
            mailbox: VecDeque::new(),
            retries: false,
            expected: MIN_WORKERS,
            due: None,
        };
        self.process().federated.insert(id, actor);
        if row.merging {
            self.merge_later(id);
        }
        self.tell_session(id, Event::TimePassed);
    }

    /// Somebody ends a session.
    pub fn stop_session(&mut self, id: FederatedSessionId) {
        if self.session_actor(id).is_some() && self.write_session(id, |row| row.ended = true) {
            self.note(|| format!("session {id} is stopped"));
            self.tell_session(id, Event::Ended);
        }
    }

    /// Writes a session's row, or fails to; what was written may look as if it had failed.
    fn write_session(
        &mut self,
        id: FederatedSessionId,
        change: impl FnOnce(&mut SessionRow),
    ) -> bool {
        let fails = self.now < self.database.troubled_until && self.random.chance(400);
        let is_written = !fails || self.random.chance(250);
        if is_written {
            let row = self.database.sessions.get_mut(&id).expect("rows stay");
            change(row);
        }
        !fails
    }

    /// False for a session that has ended.
    pub fn tell_session(&mut self, id: FederatedSessionId, event: Event) -> bool {
        let Some(actor) = self.session_actor(id) else {
            return false;
        };
        actor.mailbox.push_back(event);
        let wait = self.random.below(4);
        self.session_later(wait, id, SessionEvent::Take);
        true
    }

    pub fn session_event(&mut self, id: FederatedSessionId, event: SessionEvent) {
        match event {
            SessionEvent::Take => self.session_takes(id),
            SessionEvent::Merged => self.merged(id),
            SessionEvent::Due => self.session_due(id),
            SessionEvent::News(worker, news) => {
                let event = match news {
                    WorkerNews::Registered => Event::WorkerRegistered(worker),
                    WorkerNews::Disconnected => return,
                    WorkerNews::Holds { holds, .. } => Event::WorkerHolds { worker, holds },
                    WorkerNews::Lost => Event::WorkerLost(worker),
                };
                self.tell_session(id, event);
            }
        }
    }

    /// One event: decided, written down, carried out. What cannot be written is tried again before anything else.
    fn session_takes(&mut self, id: FederatedSessionId) {
        let now = self.moment();
        let Some(actor) = self.session_actor(id).filter(|actor| !actor.retries) else {
            return;
        };
        let Some(event) = actor.mailbox.front().cloned() else {
            return;
        };
        let mut next = actor.state.clone();
        let effects = next.apply(event.clone(), now);
        let rows = effects.clone();
        let is_kept = |effect: &Effect| {
            matches!(
                effect,
                Effect::Join(..) | Effect::Leave(_) | Effect::NoteFailures(_) | Effect::NoteTimes
            )
        };
        let (failures, times) = (next.failures().clone(), next.times().clone());
        let is_written = !effects.iter().any(is_kept)
            || self.write_session(id, |row| {
                for effect in &rows {
                    match effect {
                        Effect::Join(worker, shard) => {
                            row.members.insert(*worker);
                            row.shards.insert(*worker, *shard);
                        }
                        Effect::Leave(worker) => {
                            row.members.remove(worker);
                        }
                        Effect::NoteFailures(_) => row.failures = failures.clone(),
                        Effect::NoteTimes => row.times = times.clone(),
                        _ => {}
                    }
                }
            });
        let actor = self.session_actor(id).expect("it is there");
        if !is_written {
            actor.retries = true;
            return self.platform_later(RETRY_MS, PlatformEvent::SessionAgain(id));
        }
        actor.mailbox.pop_front();
        let is_over = next.has_ended();
        actor.state = next;
        self.note(|| format!("session {id}: {event:?}"));
        for effect in effects {
            self.carry_out_of_session(id, effect);
        }
        if is_over {
            self.process().federated.remove(&id);
        } else {
            self.close_if_enough(id);
            self.schedule_session(id);
            self.platform_soon(PlatformEvent::Session(id, SessionEvent::Take));
        }
    }

    pub fn session_again(&mut self, id: FederatedSessionId) {
        if let Some(actor) = self.session_actor(id) {
            actor.retries = false;
            self.session_takes(id);
        }
    }

    fn carry_out_of_session(&mut self, id: FederatedSessionId, effect: Effect) {
        match effect {
            Effect::Expect(expected) => {
                self.session_actor(id).expect("it is there").expected = expected;
            }
            Effect::Order(worker, order) => {
                let round = self.database.sessions[&id].round;
                let begins = order == Order::Start;
                self.order_round(worker, id, round, begins);
            }
            Effect::Stop(worker) => self.stop_round(worker, id),
            Effect::Release(worker) => self.tell_supervisor(ToSupervisor::Vacate {
                worker,
                session: id,
                said_by_worker: false,
            }),
            Effect::SeekWorkers => self.poke(),
            Effect::Join(..) | Effect::Leave(_) | Effect::Deadline(_) | Effect::Show => {}
            Effect::NoteFailures(_) | Effect::NoteTimes | Effect::NoteRevealing => {}
            // There is no secure aggregation here.
            Effect::Ask(..) | Effect::Sum | Effect::CloseUnchanged(_) => {}
        }
    }

    fn schedule_session(&mut self, id: FederatedSessionId) {
        let actor = self.session_actor(id).expect("it is there");
        let next = actor.state.next_due();
        if actor.due == next {
            return;
        }
        actor.due = next;
        if let Some(at) = next {
            let wait = self.time_of(at).saturating_sub(self.now) + 2;
            self.session_later(wait, id, SessionEvent::Due);
        }
    }

    fn session_due(&mut self, id: FederatedSessionId) {
        let now = self.moment();
        let Some(actor) = self.session_actor(id) else {
            return;
        };
        if actor.due.is_none_or(|at| at > now) {
            return;
        }
        actor.due = None;
        let deadline = actor.state.deadline();
        if deadline.is_some_and(|at| at <= now)
            && self.database.sessions[&id].results.len() >= MIN_WORKERS
        {
            self.close_round(id);
        }
        self.tell_session(id, Event::TimePassed);
    }

    fn close_if_enough(&mut self, id: FederatedSessionId) {
        let expected = self.session_actor(id).expect("it is there").expected;
        let row = &self.database.sessions[&id];
        if !row.merging && row.results.len() >= expected.max(1) {
            self.close_round(id);
        }
    }

    fn close_round(&mut self, id: FederatedSessionId) {
        let row = &self.database.sessions[&id];
        if row.merging || row.ended || !self.write_session(id, |row| row.merging = true) {
            return;
        }
        self.tell_session(id, Event::RoundClosing);
        self.merge_later(id);
    }

    fn merge_later(&mut self, id: FederatedSessionId) {
        let wait = self.random.between(100, 5_000);
        self.session_later(wait, id, SessionEvent::Merged);
    }

    fn merged(&mut self, id: FederatedSessionId) {
        let row = self.database.sessions[&id].clone();
        if !row.merging || row.ended || self.session_actor(id).is_none() {
            return;
        }
        let next = row.round + 1;
        let is_last = next >= row.total_rounds;
        let is_written = self.write_session(id, |row| {
            row.round = next;
            row.merging = false;
            row.results.clear();
            row.ended = is_last;
        });
        if !is_written && self.database.sessions[&id].round != next {
            return self.session_later(RETRY_MS, id, SessionEvent::Merged);
        }
        self.note(|| format!("session {id}: round {next}, ended: {is_last}"));
        let rows = self.database.workers.iter();
        let draining = rows.filter(|(_, row)| row.draining).map(|(id, _)| *id);
        let event = match is_last {
            true => Event::Ended,
            false => Event::RoundOpened {
                round: next,
                draining: draining.collect(),
            },
        };
        self.tell_session(id, event);
    }

    /// What a worker says of a session; it is answered unless its connection does not count any more.
    pub fn take_of_session(&mut self, link: LinkId, lease: &Lease, message: FromWorker) {
        let worker = lease.worker();
        if !lease.is_current() {
            return;
        }
        let (id, round) = match &message {
            FromWorker::FederatedUpdate(said) => (said.session_id, Some(said.data.round - 1)),
            FromWorker::FederatedFailed(said) => (said.session_id, None),
            other => panic!("{other:?} is not about a session"),
        };
        let answer = match self.database.sessions.get(&id) {
            Some(row) if row.shards.contains_key(&worker) => {
                self.answer_of_session(id, worker, round, &message)
            }
            _ => Err(ErrorCode::WrongWorker),
        };
        self.session_message_answered(link, &message, answer);
    }

    fn answer_of_session(
        &mut self,
        id: FederatedSessionId,
        worker: WorkerId,
        round: Option<u64>,
        message: &FromWorker,
    ) -> Result<(), ErrorCode> {
        if let FromWorker::FederatedFailed(failed) = message {
            let event = Event::Failed {
                worker,
                round: failed.data.round.map(|round| round - 1),
                error: failed.data.error.clone(),
            };
            self.tell_session(id, event);
            return Ok(());
        }
        let row = &self.database.sessions[&id];
        let round = round.expect("a result is of a round");
        if row.ended || row.round != round || self.session_actor(id).is_none() {
            return Ok(());
        }
        let row = &self.database.sessions[&id];
        if row.merging && !row.results.contains(&worker) {
            return Ok(());
        }
        if !row.results.contains(&worker)
            && !self.write_session(id, |row| _ = row.results.insert(worker))
        {
            return Err(ErrorCode::TryAgain);
        }
        self.tell_session(id, Event::ResultTaken { worker, round });
        self.close_if_enough(id);
        Ok(())
    }

    /// The sessions that look for workers, oldest first, and whom they would take of those that are free.
    pub fn choose_for_sessions(
        &mut self,
        free: &mut BTreeMap<WorkerId, Abilities>,
    ) -> VecDeque<(FederatedSessionId, VecDeque<WorkerId>)> {
        let mut chosen = VecDeque::new();
        for (id, actor) in &self.process().federated {
            let Some(seeking) = actor.state.seeking() else {
                continue;
            };
            let workers = seeking.choose(free);
            free.retain(|worker, _| !workers.contains(worker));
            if !workers.is_empty() {
                chosen.push_back((*id, workers.into()));
            }
        }
        chosen
    }

    /// Every session that has not ended starts again, and its workers are taken for occupied.
    pub fn take_up_sessions(&mut self) {
        let rows = self.database.sessions.iter();
        let open: Vec<_> = rows
            .filter(|(_, row)| !row.ended)
            .map(|(id, row)| (*id, row.members.clone()))
            .collect();
        for (id, members) in open {
            if self.broken != Some(Broken::RestartForgetsSessions) {
                for worker in members {
                    let with = Occupation::Session(id);
                    let fleet = &mut self.process().supervisor.fleet;
                    fleet.is_occupied_since_before(worker, with);
                }
            }
            self.start_session(id);
        }
    }
}
