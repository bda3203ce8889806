//! The directory of workers and the judge over who is there.
//!
//! 1. Sessions report what happens on their connection; signs of life are noted in the connection's lease.
//! 2. [`Fleet`] decides; its effects are carried out in their order.
//! 3. Every `WORKER_CHECK_INTERVAL` all workers are looked at; pings run out in between.
//! 4. News for jobs goes out through one queue, in order, and is repeated until the job's actor has it.
//!
//! The supervisor waits for nobody. Known gap: when a session's mailbox is full, what was to be sent is
//! dropped and the connection ended; the worker is asked about its job when it comes back.

mod handlers;
mod messages;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use bytestring::ByteString;
use chrono::{DateTime, Utc};
use tokio::sync::mpsc;
use trainyard_shared::WorkerStatus;
use trainyard_shared::frame::close;
use trainyard_shared::ids::{FederatedSessionId, JobId, TaskId, WorkerId, WorkerUuid};
use trainyard_shared::message::{
    Ping, StopFederatedTraining, StopTraining, ToDashboard, ToWorker, WorkerMetricsData,
    WorkerUpdate, WorkerUpdateData,
};

use super::dispatcher::Poke;
use super::event::{CloseReason, FleetEffect, Generation, Occupation, WorkerNews};
use super::lease::Presence;
use super::placement::Abilities;
use super::session::{Deliver, End, WorkerSession};
use super::state::{Fleet, FleetTiming};
use super::store::{self, KnownWorker};
use super::updates::{Throttle, Update};
use crate::actors::Actors;
use crate::clock::Moment;
use crate::dashboards::hub::PublishWorker;
use crate::evaluations::Evaluations;
use crate::exports::Exports;
use crate::federated::state as federated;
use crate::inference::router;
use crate::jobs::directory::JobError;
use crate::jobs::event::Event;
use crate::sockets::outgoing::Outgoing;
use crate::tasks::{self, Kind};

pub use messages::{
    Claim, Connect, Disconnected, GetCandidates, GetFree, GetWorkers, KeyReplaced, Occupy,
    Register, Release, Removed, Renamed, Reported, Seen, SendCommand, SendOn, Sent, SetDraining,
    SetServing, Shutdown, TakeUp, Unclaim, Vacate,
};

/// A registered worker can be given work after this time at the latest.
const SETTLE: Duration = Duration::from_millis(500);
/// When a worker was last seen is written down this often.
const SAVE_INTERVAL: Duration = Duration::from_secs(5);
/// How long to wait before a job is told again that its worker is lost.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Messages that may wait.
const MAILBOX: usize = 8_192;

/// The actor.
pub struct Supervisor {
    actors: Actors,
    fleet: Fleet,
    workers: BTreeMap<WorkerId, Entry>,
    updates: Throttle<WorkerUpdateData>,
    seen: BTreeMap<WorkerId, DateTime<Utc>>,
    news: Option<mpsc::UnboundedSender<(JobId, Event)>>,
    links: Option<mpsc::UnboundedSender<router::LinkGone>>,
    tick: Option<(Moment, SpawnHandle)>,
}

/// What is known of a worker beside what [`Fleet`] decides about.
struct Entry {
    uuid: WorkerUuid,
    name: String,
    presence: Arc<Presence>,
    link: Option<Link>,
    abilities: Option<Abilities>,
    models: Vec<String>,
    metrics: Option<WorkerMetricsData>,
}

/// The connection that counts.
struct Link {
    generation: Generation,
    session: Addr<WorkerSession>,
    outgoing: Outgoing,
    _notice: Option<LinkNotice>,
}

/// Tells the inference router that a connection counts no longer, however that comes about.
struct LinkNotice {
    worker: WorkerId,
    generation: Generation,
    links: mpsc::UnboundedSender<router::LinkGone>,
}

impl Drop for LinkNotice {
    fn drop(&mut self) {
        let gone = router::LinkGone {
            worker: self.worker,
            link: self.generation,
        };
        // The receiver lives as long as the actors' thread.
        let _ = self.links.send(gone);
    }
}

impl Supervisor {
    /// A supervisor that knows no worker yet.
    pub fn new(actors: Actors) -> Self {
        let timing = FleetTiming {
            heartbeat_timeout: actors.config.worker_heartbeat_timeout,
            check_interval: actors.config.worker_check_interval,
            ping_grace: actors.config.worker_ping_grace,
            settle: SETTLE,
        };
        let fleet = Fleet::new(timing, actors.clock.now());
        Self {
            actors,
            fleet,
            workers: BTreeMap::new(),
            updates: Throttle::default(),
            seen: BTreeMap::new(),
            news: None,
            links: None,
            tick: None,
        }
    }

    fn now(&self) -> Moment {
        self.actors.clock.now()
    }

    fn add(&mut self, worker: &KnownWorker, holds: Option<JobId>) {
        let now = self.now();
        self.fleet.add(worker.id, holds, worker.draining, now);
        let entry = self.workers.entry(worker.id).or_insert_with(|| Entry {
            uuid: worker.uuid,
            name: worker.name.clone(),
            presence: Arc::default(),
            link: None,
            abilities: None,
            models: Vec::new(),
            metrics: None,
        });
        entry.name.clone_from(&worker.name);
    }

    /// Brings the signs of life that the sessions have noted into the fleet.
    fn listen(&mut self) {
        for (&worker, entry) in &self.workers {
            if let Some(link) = &entry.link {
                let heard_at = entry.presence.heard_at();
                self.fleet.heard(worker, link.generation, heard_at);
            }
        }
    }

    fn carry_out(&mut self, effects: Vec<FleetEffect>, context: &mut Context<Self>) {
        let mut effects = VecDeque::from(effects);
        while let Some(effect) = effects.pop_front() {
            match effect {
                FleetEffect::Close {
                    worker,
                    generation,
                    reason,
                } => self.end(worker, generation, reason),
                FleetEffect::Ping(worker) => {
                    let ping = ToWorker::Ping(Ping::default());
                    effects.extend(self.deliver(worker, ping.encode().into()));
                }
                FleetEffect::StopForeign(worker, job_id) => {
                    tracing::warn!(worker.id = %worker, job.id = %job_id, "worker has a job that is not its own");
                    let stop = ToWorker::StopTraining(StopTraining { job_id });
                    effects.extend(self.deliver(worker, stop.encode().into()));
                }
                FleetEffect::TellJob(worker, job, news) => self.tell(worker, job, news),
                FleetEffect::StopForeignSession(worker, session_id) => {
                    // Most often one that has just ended, of which the worker has not heard yet.
                    tracing::info!(worker.id = %worker, session.id = %session_id, "worker is told that it is in no such session");
                    let stop = StopFederatedTraining { session_id };
                    let stop = ToWorker::StopFederatedTraining(stop).encode();
                    effects.extend(self.deliver(worker, stop.into()));
                }
                FleetEffect::TellOccupation(worker, occupation, news) => {
                    self.tell_occupation(worker, occupation, news);
                }
                FleetEffect::Available(_) => self.poke(),
                FleetEffect::Unavailable(_) => {}
                FleetEffect::Show(worker) => self.show(worker),
                FleetEffect::SaveLastSeen(worker) => {
                    self.seen.insert(worker, self.seen_at(worker));
                }
            }
        }
        for (worker, update) in self.updates.due(self.now()) {
            self.publish(worker, update);
        }
        self.schedule(context);
    }

    fn end(&mut self, worker: WorkerId, generation: Generation, reason: CloseReason) {
        let Some(entry) = self.workers.get_mut(&worker) else {
            return;
        };
        let Some(link) = entry.link.take_if(|link| link.generation == generation) else {
            return;
        };
        entry.presence.set_current(None);
        tracing::info!(worker.id = %worker, ?reason, "worker's connection is closed");
        let (code, reason) = match reason {
            CloseReason::Replaced => (close::REPLACED, "replaced by a newer connection"),
            CloseReason::Silent => (close::DEADLINE_PASSED, "no answer to ping"),
            CloseReason::KeyReplaced => (close::AUTHENTICATION_FAILED, "the key was replaced"),
            CloseReason::Deleted => (close::NOT_ALLOWED, "the worker was deleted"),
        };
        let end = End {
            code,
            reason: reason.into(),
        };
        if link.session.try_send(end).is_err() {
            link.outgoing.close_now(code, reason);
        }
    }

    /// Sends a frame on the worker's connection. A session that takes nothing loses its connection; what
    /// follows from that is given back.
    fn deliver(&mut self, worker: WorkerId, text: ByteString) -> Vec<FleetEffect> {
        let Some(entry) = self.workers.get_mut(&worker) else {
            return Vec::new();
        };
        let Some(link) = &entry.link else {
            return Vec::new();
        };
        let Err(error) = link.session.try_send(Deliver(text)) else {
            return Vec::new();
        };
        tracing::warn!(worker.id = %worker, %error, "worker's session takes nothing");
        let reason = "too much is waiting to be taken";
        link.outgoing.close_now(close::RATE_LIMITED, reason);
        let generation = link.generation;
        entry.link = None;
        entry.presence.set_current(None);
        self.fleet
            .disconnected(worker, generation, self.actors.clock.now())
    }

    fn tell(&mut self, worker: WorkerId, job: JobId, news: WorkerNews) {
        let event = match news {
            WorkerNews::Registered => Event::WorkerRegistered(worker),
            WorkerNews::Disconnected => Event::WorkerDisconnected(worker),
            WorkerNews::Holds { holds, first } => Event::WorkerHolds {
                worker,
                holds,
                first,
            },
            WorkerNews::Lost => {
                tracing::warn!(worker.id = %worker, job.id = %job, "worker is lost with its job");
                Event::WorkerLost(worker)
            }
        };
        if let Some(news) = &self.news {
            // The receiver lives as long as this actor's thread.
            let _ = news.send((job, event));
        }
    }

    /// A worker that names its exports, be it none, can be given some.
    fn makes_exports(&mut self, worker: WorkerId) {
        let entry = self.workers.get_mut(&worker);
        if let Some(abilities) = entry.and_then(|entry| entry.abilities.as_mut())
            && !std::mem::replace(&mut abilities.exports, true)
        {
            self.poke();
        }
    }

    /// Whoever occupies the worker takes it in its own time.
    fn tell_occupation(&self, worker: WorkerId, occupation: Occupation, news: WorkerNews) {
        if news == WorkerNews::Lost {
            tracing::warn!(worker.id = %worker, ?occupation, "worker is lost");
        }
        match occupation {
            Occupation::Task(TaskId::Evaluation(id)) => {
                self.tell_task::<Evaluations>(worker, id, news)
            }
            Occupation::Task(TaskId::Export(id)) => self.tell_task::<Exports>(worker, id, news),
            Occupation::Session(id) => self.tell_session(worker, id, news),
        }
    }

    fn tell_session(&self, worker: WorkerId, session: FederatedSessionId, news: WorkerNews) {
        let event = match news {
            WorkerNews::Registered => federated::Event::WorkerRegistered(worker),
            // It has its time to come back.
            WorkerNews::Disconnected => return,
            WorkerNews::Holds { holds, .. } => federated::Event::WorkerHolds { worker, holds },
            WorkerNews::Lost => federated::Event::WorkerLost(worker),
        };
        let actors = self.actors.clone();
        actix::spawn(async move {
            // One that has just ended has released its workers.
            actors.federated.apply(session, event).await;
        });
    }

    fn tell_task<K: Kind>(&self, worker: WorkerId, id: K::Id, news: WorkerNews) {
        if let Some(event) = tasks::event_of_news(worker, news) {
            let actors = self.actors.clone();
            actix::spawn(async move { K::directory(&actors).tell(id, event).await });
        }
    }

    /// A full mailbox means that the dispatcher is about to look anyway.
    fn poke(&self) {
        let _ = self.actors.dispatcher.try_send(Poke);
        self.poke_router();
    }

    fn poke_router(&self) {
        // As above.
        let _ = self.actors.router.try_send(router::Poke);
    }

    fn show(&mut self, worker: WorkerId) {
        if let Some(update) = self.update(worker) {
            self.updates.offer(worker, update);
        }
    }

    fn update(&self, worker: WorkerId) -> Option<Update<WorkerUpdateData>> {
        let entry = self.workers.get(&worker)?;
        let view = self.fleet.view(worker);
        let status = view.map_or(WorkerStatus::Offline, |view| view.status);
        let metrics = entry.metrics.clone().unwrap_or_default();
        let content = WorkerUpdateData {
            gpu_utilization: metrics.gpu_utilization,
            gpu_memory_used: metrics.gpu_memory_used,
            gpu_memory_total: metrics.gpu_memory_total,
            cpu_utilization: metrics.cpu_utilization,
            ram_used: metrics.ram_used,
            ram_total: metrics.ram_total,
            current_job_id: view.and_then(|view| view.holds),
            id: Some(worker),
            name: Some(entry.name.clone()),
            status_message: metrics.status_message,
            status,
        };
        Some(Update { status, content })
    }

    fn publish(&self, worker: WorkerId, update: Update<WorkerUpdateData>) {
        let Some(entry) = self.workers.get(&worker) else {
            return;
        };
        let message = ToDashboard::WorkerUpdate(WorkerUpdate {
            worker_id: entry.uuid.to_string(),
            data: update.content,
        });
        let publish = PublishWorker {
            worker,
            status: update.status,
            text: message.encode().into(),
        };
        if let Err(error) = self.actors.dashboards.try_send(publish) {
            tracing::warn!(worker.id = %worker, %error, "worker_update is not published");
        }
    }

    fn seen_at(&self, worker: WorkerId) -> DateTime<Utc> {
        let heard = self.fleet.view(worker).and_then(|view| view.last_heard);
        utc_of(heard.unwrap_or_else(|| self.now()), self.now())
    }

    /// Wakes up for whatever is due next.
    fn schedule(&mut self, context: &mut Context<Self>) {
        let next = [self.fleet.next_tick(), self.updates.next_due()]
            .into_iter()
            .flatten()
            .min();
        if self.tick.as_ref().map(|(at, _)| *at) == next {
            return;
        }
        if let Some((_, handle)) = self.tick.take() {
            context.cancel_future(handle);
        }
        if let Some(at) = next {
            let wait = at.since(self.now());
            let handle = context.run_later(wait, |supervisor, context| {
                supervisor.tick = None;
                supervisor.listen();
                let effects = supervisor.fleet.tick(supervisor.now());
                supervisor.carry_out(effects, context);
            });
            self.tick = Some((at, handle));
        }
    }

    /// Not an interval: after a pause that would make up for every check that was missed, at once.
    fn check_later(&self, context: &mut Context<Self>) {
        let interval = self.actors.config.worker_check_interval;
        context.run_later(interval, |supervisor, context| {
            supervisor.check(context);
            supervisor.check_later(context);
        });
    }

    fn check(&mut self, context: &mut Context<Self>) {
        self.listen();
        let effects = self.fleet.check(self.now());
        self.carry_out(effects, context);
        for (&worker, entry) in &self.workers {
            if entry.link.is_some() {
                self.seen.insert(worker, self.seen_at(worker));
            }
        }
    }

    fn save_last_seen(&mut self) {
        let seen = std::mem::take(&mut self.seen);
        if seen.is_empty() {
            return;
        }
        let database = self.actors.database.clone();
        actix::spawn(async move {
            if let Err(error) = database
                .write(move |c| store::save_last_seen(c, &seen))
                .await
            {
                tracing::warn!(%error, "when workers were last seen could not be written");
            }
        });
    }
}

/// Tells jobs what became of their workers, in order. A job takes it in its own time.
async fn carry_news(actors: Actors, mut news: mpsc::UnboundedReceiver<(JobId, Event)>) {
    while let Some((job, event)) = news.recv().await {
        match actors.jobs.tell(&actors, job, event.clone()).await {
            Ok(()) | Err(JobError::NotFound) => {}
            Err(error) => {
                tracing::error!(job.id = %job, %error, "news of its worker is told again");
                actix::spawn(insist(actors.clone(), job, event));
            }
        }
    }
}

/// Tells the inference router of connections that are gone.
async fn carry_link_news(actors: Actors, mut gone: mpsc::UnboundedReceiver<router::LinkGone>) {
    while let Some(link) = gone.recv().await {
        // Fails only when the platform stops.
        let _ = actors.router.send(link).await;
    }
}

async fn insist(actors: Actors, job: JobId, event: Event) {
    loop {
        tokio::time::sleep(RETRY_DELAY).await;
        match actors.jobs.tell(&actors, job, event.clone()).await {
            Ok(()) | Err(JobError::NotFound) => return,
            Err(_) => {}
        }
    }
}

/// The moment as a time of day, which is only shown.
fn utc_of(moment: Moment, now: Moment) -> DateTime<Utc> {
    Utc::now() - now.since(moment)
}

impl Actor for Supervisor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        context.set_mailbox_capacity(MAILBOX);
        let (sender, receiver) = mpsc::unbounded_channel();
        self.news = Some(sender);
        actix::spawn(carry_news(self.actors.clone(), receiver));
        let (sender, receiver) = mpsc::unbounded_channel();
        self.links = Some(sender);
        actix::spawn(carry_link_news(self.actors.clone(), receiver));
        self.check_later(context);
        context.run_interval(SAVE_INTERVAL, |act, _| act.save_last_seen());
    }
}
