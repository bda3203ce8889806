//! The platform's actors: how they are started, how they reach each other, how they end.
//!
//! All but the sessions run on one thread of their own; the sessions run on the threads of the HTTP server.
//! Who waits for whom: sessions wait for jobs and the supervisor; the dispatcher waits for the supervisor and
//! for jobs and tasks; jobs wait for the supervisor, the dashboards and the metrics writer; inference requests and
//! tasks wait for the supervisor, the dashboards and the router; federated sessions wait for their rounds, the
//! supervisor and the dashboards, and rounds for the dashboards. The supervisor, the dashboards, the metrics
//! writer and the router wait for nobody, so no circle can close.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use actix::prelude::*;
use trainyard_shared::ids::WorkerId;
use trainyard_worker::tasks::base_model::ModelSource;
use trainyard_worker::tasks::transfers::{Http, RetryPolicy};

use crate::clock::Clock;
use crate::config::Config;
use crate::coordinator::{self, UploadSlots};
use crate::dashboards::hub::{self, Dashboards};
use crate::database::{Database, DatabaseError};
use crate::evaluations::Evaluations;
use crate::exports::Exports;
use crate::federated::{self, directory::FederatedDirectory};
use crate::inference::directory::InferenceDirectory;
use crate::inference::router::InferenceRouter;
use crate::jobs::directory::JobDirectory;
use crate::metrics::writer::{self, MetricsWriter};
use crate::rounds::scratch::Scratch;
use crate::storage::ObjectStore;
use crate::tasks::Kind;
use crate::tasks::directory::Directory;
use crate::workers::dispatcher::Dispatcher;
use crate::workers::event::Occupation;
use crate::workers::supervisor::{self, Supervisor};

/// What the actors reach. Cheap to clone.
#[derive(Clone)]
pub struct Actors {
    inner: Arc<Inner>,
}

/// See [`Actors`].
pub struct Inner {
    /// The settings.
    pub config: Arc<Config>,
    /// The clock of all timing decisions.
    pub clock: Clock,
    /// The database.
    pub database: Database,
    /// The object store.
    pub storage: Arc<dyn ObjectStore>,
    /// The directory of workers.
    pub supervisor: Addr<Supervisor>,
    /// Gives jobs to workers.
    pub dispatcher: Addr<Dispatcher>,
    /// Who watches what.
    pub dashboards: Addr<Dashboards>,
    /// Writes metric points.
    pub metrics: Addr<MetricsWriter>,
    /// The jobs' actors.
    pub jobs: JobDirectory,
    /// Gives inference requests to workers.
    pub router: Addr<InferenceRouter>,
    /// The inference requests.
    pub inferences: InferenceDirectory,
    /// The evaluations.
    pub evaluations: Directory<Evaluations>,
    /// The exports.
    pub exports: Directory<Exports>,
    /// The thread on which the actors of federated sessions run.
    pub arbiter: ArbiterHandle,
    /// Files on their way.
    pub scratch: Scratch,
    /// Finds base models.
    pub base_models: ModelSource,
    /// The volunteer sessions.
    pub coordinators: coordinator::directory::Directory,
    /// Their uploads that are on their way.
    pub upload_slots: UploadSlots,
    /// The federated sessions of workers.
    pub federated: FederatedDirectory,
    /// Set once the platform stops: work that takes long is broken off, and the next start does it anew.
    pub stopping: Arc<AtomicBool>,
}

impl std::ops::Deref for Actors {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.inner
    }
}

/// Holds the actors' thread; see [`RunningActors::stop`].
pub struct RunningActors {
    actors: Actors,
    arbiter: Arbiter,
}

impl Actors {
    /// Starts all actors over what the database holds.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn start(
        config: Arc<Config>,
        database: Database,
        storage: Arc<dyn ObjectStore>,
        scratch: Scratch,
    ) -> Result<(Self, RunningActors), DatabaseError> {
        let http = Http::new(RetryPolicy::default()).map_err(|error| {
            tracing::error!(%error, "no HTTP client for base models");
            DatabaseError::Stopped
        })?;
        let base_models = ModelSource::new(config.models.clone(), http);
        let arbiter = Arbiter::new();
        let handle = arbiter.handle();
        let (give, given) = tokio::sync::oneshot::channel();
        arbiter.spawn_fn(move || {
            let supervisor = Context::<Supervisor>::new();
            let dispatcher = Context::<Dispatcher>::new();
            let dashboards = Context::<Dashboards>::new();
            let metrics = Context::<MetricsWriter>::new();
            let router = Context::<InferenceRouter>::new();
            let clock = Clock::start();
            let actors = Self {
                inner: Arc::new(Inner {
                    config,
                    clock,
                    database: database.clone(),
                    storage,
                    supervisor: supervisor.address(),
                    dispatcher: dispatcher.address(),
                    dashboards: dashboards.address(),
                    metrics: metrics.address(),
                    jobs: JobDirectory::new(handle.clone()),
                    router: router.address(),
                    inferences: InferenceDirectory::new(handle.clone(), clock),
                    evaluations: Directory::new(handle.clone()),
                    exports: Directory::new(handle.clone()),
                    arbiter: handle,
                    scratch,
                    base_models,
                    coordinators: coordinator::directory::Directory::default(),
                    upload_slots: UploadSlots::default(),
                    federated: FederatedDirectory::default(),
                    stopping: Arc::default(),
                }),
            };
            supervisor.run(Supervisor::new(actors.clone()));
            dispatcher.run(Dispatcher::new(actors.clone()));
            router.run(InferenceRouter::new(actors.clone()));
            dashboards.run(Dashboards::default());
            metrics.run(MetricsWriter::new(database));
            // Only fails when the platform's start was given up.
            let _ = give.send(actors);
        });
        let actors = given.await.map_err(|_| DatabaseError::Stopped)?;
        let running = RunningActors {
            actors: actors.clone(),
            arbiter,
        };
        actors.take_up_work().await?;
        Ok((actors, running))
    }

    /// Goes on from what the database holds: workers are known, those that have a job are waited for, and the
    /// jobs that are with one watch their deadlines.
    async fn take_up_work(&self) -> Result<(), DatabaseError> {
        let held = self.database.read(crate::jobs::store::with_workers).await?;
        let workers = self.database.read(crate::workers::store::all).await?;
        let evaluations = self.database.read(Evaluations::under_way).await?;
        let exports = self.database.read(Exports::under_way).await?;
        let tasks =
            with_workers::<Evaluations>(&evaluations).chain(with_workers::<Exports>(&exports));
        let sessions = federated::occupied(self).await?;
        let known = supervisor::TakeUp {
            workers,
            held: held.iter().map(|(job, worker)| (*worker, *job)).collect(),
            occupied: tasks.chain(sessions).collect(),
        };
        self.supervisor
            .send(known)
            .await
            .map_err(|_| DatabaseError::Stopped)?;
        for (job, _) in held {
            self.jobs.wake(self, job).await?;
        }
        for row in evaluations {
            self.evaluations.start(self, row);
        }
        for row in exports {
            self.exports.start(self, row);
        }
        coordinator::take_up(self).await?;
        federated::take_up(self).await
    }
}

/// The tasks that are with a worker.
fn with_workers<K: Kind>(rows: &[K::Row]) -> impl Iterator<Item = (WorkerId, Occupation)> {
    rows.iter().filter_map(|row| {
        let facts = K::facts(row);
        Some((facts.worker?, Occupation::Task(facts.id.into())))
    })
}

impl RunningActors {
    /// Breaks off what takes long, ends open requests for answers, then closes all sockets with 1001.
    pub async fn end_sessions(&self) {
        self.actors.stopping.store(true, Ordering::Relaxed);
        self.actors.inferences.stop().await;
        // A mailbox that is closed already has nothing left to end.
        let _ = self.actors.supervisor.send(supervisor::Shutdown).await;
        let _ = self.actors.dashboards.send(hub::Shutdown).await;
    }

    /// Writes what is buffered and ends the actors' thread.
    pub async fn stop(self) {
        if let Ok(Err(error)) = self.actors.metrics.send(writer::Flush).await {
            tracing::error!(%error, "the last metric points were not written");
        }
        self.arbiter.stop();
        if self.arbiter.join().is_err() {
            tracing::error!("the actors' thread panicked");
        }
    }
}
