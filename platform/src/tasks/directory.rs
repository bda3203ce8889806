//! Finds the actors of the tasks of one kind that have not ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use actix::prelude::*;
use trainyard_shared::message::TaskProgressData;

use super::actor::{Apply, Happened, TaskActor};
use super::state::{Answer, Event, Said};
use super::{Kind, TaskError};
use crate::actors::Actors;
use crate::database::DatabaseError;
use crate::workers::lease::Lease;

/// The tasks of one kind that are under way.
pub struct Directory<K: Kind> {
    arbiter: ArbiterHandle,
    under_way: Mutex<HashMap<K::Id, UnderWay<K>>>,
}

struct UnderWay<K: Kind> {
    actor: Addr<TaskActor<K>>,
    progress: Progress,
}

/// How far a task is, for those who ask.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Mutex<Option<TaskProgressData>>>);

impl Progress {
    /// So much is done.
    pub fn set(&self, progress: TaskProgressData) {
        *lock(&self.0) = Some(progress);
    }

    /// How much is done, once its worker has said so.
    pub fn get(&self) -> Option<TaskProgressData> {
        lock(&self.0).clone()
    }
}

impl<K: Kind> Directory<K> {
    /// A directory whose actors run on that arbiter.
    pub fn new(arbiter: ArbiterHandle) -> Self {
        Self {
            arbiter,
            under_way: Mutex::default(),
        }
    }

    /// Starts the actor of a task that has not ended.
    pub fn start(&self, actors: &Actors, row: K::Row) {
        let id = K::facts(&row).id;
        let progress = Progress::default();
        let (actors, of_actor) = (actors.clone(), progress.clone());
        let actor =
            TaskActor::start_in_arbiter(&self.arbiter, |_| TaskActor::new(actors, row, of_actor));
        lock(&self.under_way).insert(id, UnderWay { actor, progress });
    }

    /// The task has ended.
    pub(super) fn retire(&self, id: K::Id) {
        lock(&self.under_way).remove(&id);
    }

    /// How far it is.
    pub fn progress(&self, id: K::Id) -> Option<TaskProgressData> {
        lock(&self.under_way).get(&id)?.progress.get()
    }

    /// Lets the platform's own event happen to a task. One that has ended ignores it.
    ///
    /// # Errors
    /// Those of the database: nothing has happened.
    pub async fn apply(&self, id: K::Id, event: Event<K::Product>) -> Result<Answer, TaskError> {
        let Some(actor) = self.find(id) else {
            return Ok(Answer::Ignored);
        };
        let lease = None;
        match actor.send(Apply { event, lease }).await {
            Ok(answer) => Ok(answer?.unwrap_or(Answer::Ignored)),
            Err(_) => Ok(Answer::Ignored),
        }
    }

    /// Tells a task what became of its worker, without waiting for what it makes of it.
    pub async fn tell(&self, id: K::Id, event: Event<K::Product>) {
        if let Some(actor) = self.find(id) {
            // Fails when it has just ended.
            let _ = actor.send(Happened(event)).await;
        }
    }

    /// Lets what a worker says happen to a task, as long as its connection counts; nothing is answered
    /// when it does not.
    ///
    /// # Errors
    /// Nothing has happened.
    pub async fn report(
        &self,
        actors: &Actors,
        id: K::Id,
        lease: Lease,
        said: Said<K::Product>,
    ) -> Result<Option<Answer>, TaskError> {
        let worker = lease.worker();
        if let Some(actor) = self.find(id) {
            let event = Event::Said(worker, said);
            let lease = Some(lease);
            if let Ok(answer) = actor.send(Apply { event, lease }).await {
                return answer;
            }
        }
        match actors.database.read(move |c| K::row(c, id)).await {
            Ok(row) if K::facts(&row).worker == Some(worker) => Ok(Some(Answer::Ignored)),
            Ok(_) | Err(DatabaseError::NotFound) => Ok(Some(Answer::WrongWorker)),
            Err(error) => Err(error.into()),
        }
    }

    fn find(&self, id: K::Id) -> Option<Addr<TaskActor<K>>> {
        let under_way = lock(&self.under_way);
        under_way.get(&id).map(|found| found.actor.clone())
    }
}

/// A panic while a lock was held leaves what it guards whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}
