//! Finds the actors of evaluations that have not ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use actix::prelude::*;
use trainyard_shared::ids::EvaluationId;

use super::actor::{Apply, EvaluationActor, Happened};
use super::state::{Answer, Event, Said};
use super::store::{self, EvaluationRow};
use crate::actors::Actors;
use crate::database::DatabaseError;
use crate::workers::lease::Lease;

/// The evaluations under way.
pub struct EvaluationDirectory {
    arbiter: ArbiterHandle,
    under_way: Mutex<HashMap<EvaluationId, UnderWay>>,
}

#[derive(Clone)]
struct UnderWay {
    actor: Addr<EvaluationActor>,
    progress: Progress,
}

/// How far an evaluation is, for those who ask.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Mutex<Option<(u64, u64)>>>);

impl Progress {
    /// So many examples of so many are done.
    pub fn set(&self, done: u64, total: u64) {
        *lock(&self.0) = Some((done, total));
    }

    /// Examples that are done, and examples in all.
    pub fn get(&self) -> Option<(u64, u64)> {
        *lock(&self.0)
    }
}

impl EvaluationDirectory {
    /// A directory whose actors run on that arbiter.
    pub fn new(arbiter: ArbiterHandle) -> Self {
        Self {
            arbiter,
            under_way: Mutex::default(),
        }
    }

    /// Starts the actor of an evaluation that has not ended.
    pub fn start(&self, actors: &Actors, row: EvaluationRow) {
        let id = row.id();
        let progress = Progress::default();
        let (actors, of_actor) = (actors.clone(), progress.clone());
        let actor = EvaluationActor::start_in_arbiter(&self.arbiter, |_| {
            EvaluationActor::new(actors, row, of_actor)
        });
        lock(&self.under_way).insert(id, UnderWay { actor, progress });
    }

    /// The evaluation has ended.
    pub(super) fn retire(&self, id: EvaluationId) {
        lock(&self.under_way).remove(&id);
    }

    /// How far it is.
    pub fn progress(&self, id: EvaluationId) -> Option<(u64, u64)> {
        self.find(id)?.progress.get()
    }

    /// Lets the platform's own event happen to an evaluation. One that has ended ignores it.
    ///
    /// # Errors
    /// Those of the database: nothing has happened.
    pub async fn apply(&self, id: EvaluationId, event: Event) -> Result<Answer, DatabaseError> {
        let Some(found) = self.find(id) else {
            return Ok(Answer::Ignored);
        };
        let lease = None;
        match found.actor.send(Apply { event, lease }).await {
            Ok(answer) => Ok(answer?.unwrap_or(Answer::Ignored)),
            Err(_) => Ok(Answer::Ignored),
        }
    }

    /// Tells an evaluation what became of its worker, without waiting for what it makes of it.
    pub async fn tell(&self, id: EvaluationId, event: Event) {
        if let Some(found) = self.find(id) {
            // Fails when it has just ended.
            let _ = found.actor.send(Happened(event)).await;
        }
    }

    /// Lets what a worker says happen to an evaluation, as long as its connection counts; nothing is answered
    /// when it does not.
    ///
    /// # Errors
    /// Those of the database: nothing has happened.
    pub async fn report(
        &self,
        actors: &Actors,
        id: EvaluationId,
        lease: Lease,
        said: Said,
    ) -> Result<Option<Answer>, DatabaseError> {
        let worker = lease.worker();
        if let Some(found) = self.find(id) {
            let event = Event::Said(worker, said);
            let lease = Some(lease);
            if let Ok(answer) = found.actor.send(Apply { event, lease }).await {
                return answer;
            }
        }
        let read = move |c: &mut _| store::row(c, id);
        match actors.database.read(read).await {
            Ok(row) if row.worker_id == Some(worker.get()) => Ok(Some(Answer::Ignored)),
            Ok(_) | Err(DatabaseError::NotFound) => Ok(Some(Answer::WrongWorker)),
            Err(error) => Err(error),
        }
    }

    fn find(&self, id: EvaluationId) -> Option<UnderWay> {
        lock(&self.under_way).get(&id).cloned()
    }
}

/// A panic while a lock was held leaves what it guards whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}
