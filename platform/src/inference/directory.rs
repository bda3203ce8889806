//! Finds a request: those under way with their actors, and for a while those that have ended.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use actix::prelude::*;
use futures_util::future::join_all;
use trainyard_shared::ids::{InferenceId, JobId, UserId, WorkerId};
use uuid::Uuid;

use super::actor::{Happened, InferenceActor, Say};
use super::orders;
use super::record::Record;
use super::request::Request;
use super::state::{Answer, Event, Said};
use crate::actors::Actors;
use crate::auth::{Credential, Role};
use crate::clock::{Clock, Moment};
use crate::dashboards::hub::Revoke;
use crate::workers::lease::Lease;

/// Requests under way at once, of all users and of one.
const MAX_UNDER_WAY: usize = 2_048;
const MAX_OF_ONE_USER: usize = 512;
/// How long an ended request is kept, how many, and how much memory they take at most.
const KEPT_FOR: Duration = Duration::from_secs(600);
const MAX_KEPT: usize = 2_048;
const MAX_KEPT_BYTES: usize = 64 << 20;

/// The requests.
pub struct InferenceDirectory {
    arbiter: ArbiterHandle,
    clock: Clock,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    under_way: HashMap<InferenceId, UnderWay>,
    ended: HashMap<InferenceId, Arc<Record>>,
    /// The ended ones, the oldest first.
    order: VecDeque<(Moment, InferenceId, usize)>,
    ended_bytes: usize,
    is_stopping: bool,
}

struct UnderWay {
    record: Arc<Record>,
    actor: Addr<InferenceActor>,
}

/// Why a request is not taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// Too many are under way.
    TooMany,
    /// The platform stops.
    Stopping,
}

impl InferenceDirectory {
    /// A directory whose actors run on that arbiter.
    pub fn new(arbiter: ArbiterHandle, clock: Clock) -> Self {
        Self {
            arbiter,
            clock,
            inner: Mutex::default(),
        }
    }

    /// Takes a request in.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn start(
        &self,
        actors: &Actors,
        owner: UserId,
        credential: Credential,
        request: Request,
    ) -> Result<Arc<Record>, Refused> {
        let mut inner = self.lock();
        if inner.is_stopping {
            return Err(Refused::Stopping);
        }
        let of_owner = |one: &&UnderWay| one.record.owner == owner;
        if inner.under_way.len() >= MAX_UNDER_WAY
            || inner.under_way.values().filter(of_owner).count() >= MAX_OF_ONE_USER
        {
            return Err(Refused::TooMany);
        }
        let id: InferenceId = format!("infer-{}", Uuid::new_v4())
            .parse()
            .expect("the id is short and visible ASCII");
        let record = Arc::new(Record::new(id.clone(), owner, credential, request));
        let (actors, of_actor) = (actors.clone(), record.clone());
        let actor = InferenceActor::start_in_arbiter(&self.arbiter, |_| {
            InferenceActor::new(actors, of_actor)
        });
        let under_way = UnderWay {
            record: record.clone(),
            actor,
        };
        inner.under_way.insert(id, under_way);
        Ok(record)
    }

    /// Whether a request that is with that worker is answered with that job's adapter.
    pub fn needs_adapter(&self, worker: WorkerId, job: JobId) -> bool {
        self.lock().under_way.values().any(|one| {
            one.record.request.target.job() == Some(job)
                && one.record.shown().owners.last() == Some(&worker)
        })
    }

    /// The request of that id, as long as it is kept.
    pub fn get(&self, id: &InferenceId) -> Option<Arc<Record>> {
        let mut inner = self.lock();
        inner.forget_old(self.clock.now());
        let under_way = inner.under_way.get(id).map(|found| found.record.clone());
        under_way.or_else(|| inner.ended.get(id).cloned())
    }

    /// Nobody wants the answer any more. Without effect once it has ended.
    pub async fn cancel(&self, id: &InferenceId) {
        if let Some(actor) = self.actor(id) {
            // Fails when it has just ended.
            let _ = actor.send(Happened(Event::CancelAsked)).await;
        }
    }

    /// The same for those who cannot wait.
    pub fn cancel_soon(&self, id: &InferenceId) {
        let Some(actor) = self.actor(id) else {
            return;
        };
        self.arbiter.spawn(async move {
            let _ = actor.send(Happened(Event::CancelAsked)).await;
        });
    }

    /// Ends what was asked by those who may not have the answer any more: all requests of a user that is no
    /// longer or may no longer ask, and those for which a response is open that was asked for with a credential
    /// that is void.
    pub fn revoke(&self, revoke: Revoke) {
        let is_over = |record: &Record| match revoke {
            Revoke::DeletedUser(user) => record.owner == user,
            Revoke::ChangedUser(user, role) => {
                record.owner == user && (role < Role::Member || record.is_awaited())
            }
            Revoke::Credential(credential) => {
                record.credential == credential && record.is_awaited()
            }
            Revoke::Everything => record.is_awaited(),
        };
        let over: Vec<_> = {
            let inner = self.lock();
            let over = inner.under_way.values().filter(|one| is_over(&one.record));
            over.map(|one| one.record.id.clone()).collect()
        };
        for id in over {
            tracing::info!(inference.id = %id, "whoever asked may not have the answer any more");
            self.cancel_soon(&id);
        }
    }

    /// Ends all requests, and takes in no further ones: the platform stops.
    pub async fn stop(&self) {
        let actors: Vec<_> = {
            let mut inner = self.lock();
            inner.is_stopping = true;
            inner
                .under_way
                .values()
                .map(|one| one.actor.clone())
                .collect()
        };
        let ends = actors
            .iter()
            .map(|actor| actor.send(Happened(Event::PlatformStops)));
        // Fails for those that have just ended.
        join_all(ends).await;
    }

    /// A worker says something of an inference, as long as its connection counts; nothing is answered when it
    /// does not.
    pub async fn report(&self, wire_id: &InferenceId, lease: Lease, said: Said) -> Option<Answer> {
        let worker = lease.worker();
        let Some((id, attempt)) = orders::of_wire_id(wire_id) else {
            return Some(Answer::WrongWorker);
        };
        if let Some(actor) = self.actor(&id) {
            let event = Event::Said {
                worker,
                attempt,
                said,
            };
            if let Ok(answer) = actor.send(Say { lease, event }).await {
                return answer;
            }
        }
        Some(self.answer_for_ended(&id, attempt, worker))
    }

    /// Whether the worker is to go on with what it has under that id.
    pub fn is_wanted(&self, wire_id: &InferenceId, worker: WorkerId) -> bool {
        let Some((id, attempt)) = orders::of_wire_id(wire_id) else {
            return false;
        };
        let inner = self.lock();
        let found = inner.under_way.get(&id);
        found.is_some_and(|found| found.record.is_with(worker, attempt))
    }

    fn answer_for_ended(&self, id: &InferenceId, attempt: u32, worker: WorkerId) -> Answer {
        match self.lock().ended.get(id) {
            Some(record) if record.owner_of(attempt) == Some(worker) => Answer::Ignored,
            _ => Answer::WrongWorker,
        }
    }

    /// The actor of a request under way.
    pub(super) fn actor(&self, id: &InferenceId) -> Option<Addr<InferenceActor>> {
        let inner = self.lock();
        inner.under_way.get(id).map(|found| found.actor.clone())
    }

    /// The request has ended.
    pub(super) fn retire(&self, record: &Arc<Record>) {
        let now = self.clock.now();
        let bytes = record.weight_bytes();
        let mut inner = self.lock();
        inner.under_way.remove(&record.id);
        if inner
            .ended
            .insert(record.id.clone(), record.clone())
            .is_none()
        {
            inner.order.push_back((now, record.id.clone(), bytes));
            inner.ended_bytes += bytes;
        }
        inner.forget_old(now);
    }

    /// A panic while the lock was held leaves maps that are whole.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Inner {
    fn forget_old(&mut self, now: Moment) {
        while let Some((at, id, bytes)) = self.order.front() {
            let is_kept = now.since(*at) < KEPT_FOR
                && self.order.len() <= MAX_KEPT
                && self.ended_bytes <= MAX_KEPT_BYTES;
            if is_kept {
                return;
            }
            self.ended_bytes -= bytes;
            self.ended.remove(id);
            self.order.pop_front();
        }
    }
}
