//! Finds a job's actor, and starts it where there is none: whoever wants something of a job asks here.

use std::collections::HashMap;
use std::sync::Mutex;

use actix::prelude::*;
use trainyard_shared::ids::JobId;

use super::actor::{Apply, Happened, JobActor};
use super::event::{Answer, Event};
use super::store;
use crate::actors::Actors;
use crate::artifacts::ArtifactError;
use crate::database::DatabaseError;
use crate::workers::lease::Lease;

/// So often an actor is looked for that ends just when it is asked.
const TRIES: usize = 5;

/// The jobs' actors.
pub struct JobDirectory {
    arbiter: ArbiterHandle,
    running: Mutex<HashMap<JobId, Addr<JobActor>>>,
}

/// Why a job did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// There is no such job.
    #[error("there is no such job")]
    NotFound,
    /// A file that a message names is not the job's, not stored, or not as the message says.
    #[error(transparent)]
    Artifact(#[from] ArtifactError),
    /// The connection on which this came does not count any more.
    #[error("a newer connection has taken over")]
    Superseded,
    /// The database failed; nothing has changed.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl JobDirectory {
    /// A directory whose actors run on that arbiter.
    pub fn new(arbiter: ArbiterHandle) -> Self {
        Self {
            arbiter,
            running: Mutex::default(),
        }
    }

    /// Lets the platform's own event happen to a job.
    ///
    /// # Errors
    /// [`JobError`].
    pub async fn apply(
        &self,
        actors: &Actors,
        job: JobId,
        event: Event,
    ) -> Result<Answer, JobError> {
        self.ask(actors, job, || Apply {
            event: event.clone(),
            lease: None,
        })
        .await?
    }

    /// Lets what a worker says happen to a job, as long as its connection counts.
    ///
    /// # Errors
    /// [`JobError`].
    pub async fn report(
        &self,
        actors: &Actors,
        job: JobId,
        event: Event,
        lease: Lease,
    ) -> Result<Answer, JobError> {
        self.ask(actors, job, || Apply {
            event: event.clone(),
            lease: Some(lease.clone()),
        })
        .await?
    }

    /// Tells a job that something has happened, without waiting for what it makes of it. The job itself tries
    /// again when the database fails.
    ///
    /// # Errors
    /// [`JobError`]: the job does not know.
    pub async fn tell(&self, actors: &Actors, job: JobId, event: Event) -> Result<(), JobError> {
        for _ in 0..TRIES {
            let actor = self.actor(actors, job).await?;
            let told = match actor.try_send(Happened(event.clone())) {
                Ok(()) => true,
                Err(SendError::Full(happened)) => actor.send(happened).await.is_ok(),
                Err(SendError::Closed(_)) => false,
            };
            if told {
                return Ok(());
            }
            self.forget(job, &actor);
        }
        Err(DatabaseError::Stopped.into())
    }

    /// Starts the job's actor, so that its deadlines are watched.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn wake(&self, actors: &Actors, job: JobId) -> Result<(), DatabaseError> {
        match self.actor(actors, job).await {
            Ok(_) | Err(JobError::NotFound) => Ok(()),
            Err(JobError::Database(error)) => Err(error),
            Err(_) => Err(DatabaseError::Stopped),
        }
    }

    /// Asks the job's actor; started again if it ends at that moment.
    ///
    /// # Errors
    /// [`JobError::NotFound`], or the database's.
    pub async fn ask<M>(
        &self,
        actors: &Actors,
        job: JobId,
        message: impl Fn() -> M,
    ) -> Result<M::Result, JobError>
    where
        M: Message + Send + 'static,
        M::Result: Send,
        JobActor: Handler<M>,
    {
        for _ in 0..TRIES {
            let actor = self.actor(actors, job).await?;
            match actor.send(message()).await {
                Ok(answer) => return Ok(answer),
                Err(_) => self.forget(job, &actor),
            }
        }
        Err(DatabaseError::Stopped.into())
    }

    /// The actor ends.
    pub fn forget(&self, job: JobId, actor: &Addr<JobActor>) {
        let mut running = self.lock();
        if running.get(&job) == Some(actor) {
            running.remove(&job);
        }
    }

    async fn actor(&self, actors: &Actors, job: JobId) -> Result<Addr<JobActor>, JobError> {
        if let Some(actor) = self.lock().get(&job).filter(|actor| actor.connected()) {
            return Ok(actor.clone());
        }
        let now = actors.clock.now();
        let stored = actors
            .database
            .read(move |c| store::load(c, job, now))
            .await?
            .ok_or(JobError::NotFound)?;
        let mut running = self.lock();
        if let Some(actor) = running.get(&job).filter(|actor| actor.connected()) {
            return Ok(actor.clone());
        }
        let actors = actors.clone();
        let actor = JobActor::start_in_arbiter(&self.arbiter, |_| JobActor::new(actors, stored));
        running.insert(job, actor.clone());
        Ok(actor)
    }

    /// A panic while the lock was held leaves a map that is whole.
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<JobId, Addr<JobActor>>> {
        self.running
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
