//! The directory of workers and the judge over who is there.
//!
//! 1. Sessions report what happens on their connection; signs of life are noted in the connection's lease.
//! 2. [`Fleet`] decides; its effects are carried out in their order.
//! 3. Every `WORKER_CHECK_INTERVAL` all workers are looked at; pings run out in between.
//! 4. News for jobs goes out through one queue, in order, and is repeated until the job's actor has it.
//!
//! The supervisor waits for nobody. Known gap: when a session's mailbox is full, what was to be sent is
//! dropped and the connection ended; the worker is asked about its job when it comes back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use bytestring::ByteString;
use chrono::{DateTime, Utc};
use tokio::sync::mpsc;
use trainyard_shared::WorkerStatus;
use trainyard_shared::frame::close;
use trainyard_shared::ids::{JobId, WorkerId, WorkerUuid};
use trainyard_shared::message::{
    Ping, StopTraining, ToDashboard, ToWorker, WorkerMetricsData, WorkerRegisterData, WorkerUpdate,
    WorkerUpdateData,
};

use super::dispatcher::Poke;
use super::event::{CloseReason, FleetEffect, Generation, SelfReport, WorkerNews};
use super::lease::{Lease, Presence};
use super::placement::Abilities;
use super::session::{Deliver, End, WorkerSession};
use super::state::{Delivery, Fleet, FleetTiming, WorkerView};
use super::store::{self, KnownWorker};
use super::updates::{Throttle, Update};
use crate::actors::Actors;
use crate::clock::Moment;
use crate::dashboards::hub::PublishWorker;
use crate::jobs::directory::JobError;
use crate::jobs::event::Event;

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
    tick: Option<(Moment, SpawnHandle)>,
}

/// What is known of a worker beside what [`Fleet`] decides about.
struct Entry {
    uuid: WorkerUuid,
    name: String,
    presence: Arc<Presence>,
    session: Option<(Generation, Addr<WorkerSession>)>,
    abilities: Option<Abilities>,
    metrics: Option<WorkerMetricsData>,
}

/// What the database holds when the platform starts.
#[derive(Message)]
#[rtype(result = "()")]
pub struct TakeUp {
    /// All workers that are enrolled.
    pub workers: Vec<KnownWorker>,
    /// The jobs that are with one.
    pub held: BTreeMap<WorkerId, JobId>,
}

/// A worker has authenticated. The answer is its right to be heard.
#[derive(Message)]
#[rtype(result = "Lease")]
pub struct Connect {
    /// The worker, as the database knows it.
    pub worker: KnownWorker,
    /// Its session.
    pub session: Addr<WorkerSession>,
}

/// A worker has registered.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Register {
    /// Its right to be heard.
    pub lease: Lease,
    /// What it can do.
    pub data: Box<WorkerRegisterData>,
}

/// A connection is gone.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Disconnected(pub Lease);

/// A worker says how it is.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Reported {
    /// Its right to be heard.
    pub lease: Lease,
    /// What it does.
    pub report: SelfReport,
    /// How loaded it is, where it said so.
    pub metrics: Option<Box<WorkerMetricsData>>,
}

/// Take this worker for this job. The answer says whether it was free.
#[derive(Message)]
#[rtype(result = "bool")]
pub struct Claim {
    /// The worker.
    pub worker: WorkerId,
    /// The job.
    pub job: JobId,
}

/// The claim came to nothing.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Unclaim {
    /// The worker.
    pub worker: WorkerId,
    /// The job.
    pub job: JobId,
}

/// The job is not with the worker any more.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Release {
    /// The worker.
    pub worker: WorkerId,
    /// The job.
    pub job: JobId,
    /// Whether the worker itself said so.
    pub said_by_worker: bool,
}

/// Send this to the worker that has the job.
#[derive(Message)]
#[rtype(result = "Sent")]
pub struct SendCommand {
    /// The worker.
    pub worker: WorkerId,
    /// The job that it is about.
    pub job: JobId,
    /// The frame.
    pub text: ByteString,
}

/// What became of a [`SendCommand`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, MessageResponse)]
pub enum Sent {
    /// It is on its way.
    OnItsWay,
    /// The worker is away; it will be asked about the job when it comes back.
    Away,
    /// The job is not with that worker.
    NotHolding,
}

/// Which workers can be given work now?
#[derive(Message)]
#[rtype(result = "BTreeMap<WorkerId, Abilities>")]
pub struct GetFree;

/// How are all workers?
#[derive(Message)]
#[rtype(result = "BTreeMap<WorkerId, Seen>")]
pub struct GetWorkers;

/// How a worker is.
#[derive(Debug, Clone)]
pub struct Seen {
    /// What it does, and with what.
    pub view: WorkerView,
    /// When it was last heard of, if ever since the platform's start.
    pub last_seen_at: Option<DateTime<Utc>>,
    /// How loaded it is, if it has said so on this connection.
    pub metrics: Option<WorkerMetricsData>,
}

/// Give the worker nothing new from now on, or do again. Already in the database.
#[derive(Message)]
#[rtype(result = "()")]
pub struct SetDraining {
    /// The worker.
    pub worker: WorkerId,
    /// Whether it drains.
    pub draining: bool,
}

/// The worker has a new name. Already in the database.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Renamed {
    /// The worker.
    pub worker: WorkerId,
    /// Its name.
    pub name: String,
}

/// The worker's key was replaced in the database: its connection ends, after this was sent on it. The answer
/// says whether it was connected.
#[derive(Message)]
#[rtype(result = "bool")]
pub struct KeyReplaced {
    /// The worker.
    pub worker: WorkerId,
    /// The frame that brings the worker its new key, if it is to get it this way.
    pub deliver: Option<ByteString>,
}

/// The worker was deleted from the database.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Removed(pub WorkerId);

/// The platform stops.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Shutdown;

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
            session: None,
            abilities: None,
            metrics: None,
        });
        entry.name.clone_from(&worker.name);
    }

    /// Brings the signs of life that the sessions have noted into the fleet.
    fn listen(&mut self) {
        for (&worker, entry) in &self.workers {
            if let Some((generation, _)) = entry.session {
                self.fleet
                    .heard(worker, generation, entry.presence.heard_at());
            }
        }
    }

    fn carry_out(&mut self, effects: Vec<FleetEffect>, context: &mut Context<Self>) {
        for effect in effects {
            match effect {
                FleetEffect::Close {
                    worker,
                    generation,
                    reason,
                } => self.end(worker, generation, reason),
                FleetEffect::Ping(worker) => {
                    self.deliver(worker, ToWorker::Ping(Ping::default()).encode().into());
                }
                FleetEffect::StopForeign(worker, job_id) => {
                    tracing::warn!(worker.id = %worker, job.id = %job_id, "worker has a job that is not its own");
                    let stop = ToWorker::StopTraining(StopTraining { job_id });
                    self.deliver(worker, stop.encode().into());
                }
                FleetEffect::TellJob(worker, job, news) => self.tell(worker, job, news),
                FleetEffect::Available(_) => self.poke(),
                FleetEffect::Unavailable(_) => {}
                FleetEffect::Show(worker) => self.show(worker),
                FleetEffect::SaveLastSeen(worker) => {
                    self.seen.insert(worker, self.seen_at(worker));
                }
            }
        }
        self.publish_due();
        self.schedule(context);
    }

    fn end(&mut self, worker: WorkerId, generation: Generation, reason: CloseReason) {
        let Some(entry) = self.workers.get_mut(&worker) else {
            return;
        };
        let Some((_, session)) = entry.session.take_if(|(linked, _)| *linked == generation) else {
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
        // It may have ended by itself already.
        let _ = session.try_send(End { code, reason });
    }

    fn deliver(&mut self, worker: WorkerId, text: ByteString) {
        let Some(entry) = self.workers.get_mut(&worker) else {
            return;
        };
        let Some((_, session)) = &entry.session else {
            return;
        };
        if let Err(error) = session.try_send(Deliver(text)) {
            tracing::warn!(worker.id = %worker, %error, "worker's session takes nothing");
        }
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

    /// A full mailbox means that the dispatcher is about to look anyway.
    fn poke(&self) {
        let _ = self.actors.dispatcher.try_send(Poke);
    }

    fn show(&mut self, worker: WorkerId) {
        let Some(entry) = self.workers.get(&worker) else {
            return;
        };
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
        self.updates.offer(worker, Update { status, content });
    }

    fn publish_due(&mut self) {
        for (worker, update) in self.updates.due(self.now()) {
            let Some(entry) = self.workers.get(&worker) else {
                continue;
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
        let fleet = &self.fleet;
        self.workers
            .retain(|worker, _| fleet.view(*worker).is_some() || self.updates.next_due().is_some());
        self.updates
            .forget_silent(|worker| fleet.view(worker).is_some());
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
        self.check_later(context);
        context.run_interval(SAVE_INTERVAL, |act, _| act.save_last_seen());
    }
}

impl Handler<TakeUp> for Supervisor {
    type Result = ();

    fn handle(&mut self, known: TakeUp, _: &mut Context<Self>) {
        for worker in &known.workers {
            self.add(worker, known.held.get(&worker.id).copied());
        }
        self.poke();
    }
}

impl Handler<Connect> for Supervisor {
    type Result = MessageResult<Connect>;

    fn handle(&mut self, connect: Connect, context: &mut Context<Self>) -> Self::Result {
        let worker = connect.worker.id;
        self.add(&connect.worker, None);
        let (generation, effects) = self.fleet.authenticated(worker, self.now());
        self.carry_out(effects, context);
        let entry = self
            .workers
            .get_mut(&worker)
            .expect("it was added above and is in the fleet");
        entry.presence.set_current(Some(generation));
        entry.session = Some((generation, connect.session));
        entry.metrics = None;
        let lease = Lease::new(worker, generation, entry.presence.clone());
        lease.heard(self.now());
        MessageResult(lease)
    }
}

impl Handler<Register> for Supervisor {
    type Result = ();

    fn handle(&mut self, register: Register, context: &mut Context<Self>) {
        let worker = register.lease.worker();
        let data = register.data;
        if let Some(entry) = self.workers.get_mut(&worker)
            && register.lease.is_current()
        {
            let score = data
                .benchmark
                .as_ref()
                .and_then(|benchmark| benchmark.gpu_score);
            entry.abilities = Some(Abilities {
                worker_type: data.worker_type,
                gpu_memory_gb: data.gpu_memory_gb.filter(|_| data.gpu_available),
                score,
            });
        }
        let generation = register.lease.generation();
        let effects = self.fleet.registered(worker, generation, self.now());
        self.carry_out(effects, context);
    }
}

impl Handler<Disconnected> for Supervisor {
    type Result = ();

    fn handle(&mut self, Disconnected(lease): Disconnected, context: &mut Context<Self>) {
        self.listen();
        let (worker, generation) = (lease.worker(), lease.generation());
        if let Some(entry) = self.workers.get_mut(&worker)
            && entry
                .session
                .take_if(|(linked, _)| *linked == generation)
                .is_some()
        {
            entry.presence.set_current(None);
        }
        let effects = self.fleet.disconnected(worker, generation, self.now());
        self.carry_out(effects, context);
    }
}

impl Handler<Reported> for Supervisor {
    type Result = ();

    fn handle(&mut self, reported: Reported, context: &mut Context<Self>) {
        let lease = reported.lease;
        if !lease.is_current() {
            return;
        }
        if let Some(metrics) = reported.metrics
            && let Some(entry) = self.workers.get_mut(&lease.worker())
        {
            entry.metrics = Some(*metrics);
        }
        let (worker, generation) = (lease.worker(), lease.generation());
        let effects = self
            .fleet
            .reported(worker, generation, reported.report, self.now());
        self.carry_out(effects, context);
    }
}

impl Handler<Claim> for Supervisor {
    type Result = bool;

    fn handle(&mut self, claim: Claim, context: &mut Context<Self>) -> bool {
        let claimed = self.fleet.claim(claim.worker, claim.job);
        if claimed {
            self.carry_out(vec![FleetEffect::Show(claim.worker)], context);
        }
        claimed
    }
}

impl Handler<Unclaim> for Supervisor {
    type Result = ();

    fn handle(&mut self, claim: Unclaim, context: &mut Context<Self>) {
        let effects = self.fleet.unclaimed(claim.worker, claim.job, self.now());
        self.carry_out(effects, context);
    }
}

impl Handler<Release> for Supervisor {
    type Result = ();

    fn handle(&mut self, release: Release, context: &mut Context<Self>) {
        let effects = self.fleet.released(
            release.worker,
            release.job,
            release.said_by_worker,
            self.now(),
        );
        self.carry_out(effects, context);
    }
}

impl Handler<SendCommand> for Supervisor {
    type Result = Sent;

    fn handle(&mut self, command: SendCommand, _: &mut Context<Self>) -> Sent {
        match self.fleet.delivery(command.worker, command.job) {
            Delivery::On(_) => {
                self.deliver(command.worker, command.text);
                Sent::OnItsWay
            }
            Delivery::Away => Sent::Away,
            Delivery::NotHolding => Sent::NotHolding,
        }
    }
}

impl Handler<GetFree> for Supervisor {
    type Result = MessageResult<GetFree>;

    fn handle(&mut self, _: GetFree, _: &mut Context<Self>) -> Self::Result {
        let free = self.workers.iter().filter_map(|(worker, entry)| {
            let available = self.fleet.view(*worker)?.available;
            entry
                .abilities
                .filter(|_| available)
                .map(|abilities| (*worker, abilities))
        });
        MessageResult(free.collect())
    }
}

impl Handler<GetWorkers> for Supervisor {
    type Result = MessageResult<GetWorkers>;

    fn handle(&mut self, _: GetWorkers, _: &mut Context<Self>) -> Self::Result {
        self.listen();
        let now = self.now();
        let seen = self.workers.iter().filter_map(|(worker, entry)| {
            let view = self.fleet.view(*worker)?;
            let seen = Seen {
                view,
                last_seen_at: view.last_heard.map(|heard| utc_of(heard, now)),
                metrics: entry.metrics.clone(),
            };
            Some((*worker, seen))
        });
        MessageResult(seen.collect())
    }
}

impl Handler<SetDraining> for Supervisor {
    type Result = ();

    fn handle(&mut self, set: SetDraining, context: &mut Context<Self>) {
        let effects = self
            .fleet
            .set_draining(set.worker, set.draining, self.now());
        self.carry_out(effects, context);
    }
}

impl Handler<Renamed> for Supervisor {
    type Result = ();

    fn handle(&mut self, renamed: Renamed, context: &mut Context<Self>) {
        if let Some(entry) = self.workers.get_mut(&renamed.worker) {
            entry.name = renamed.name;
            self.carry_out(vec![FleetEffect::Show(renamed.worker)], context);
        }
    }
}

impl Handler<KeyReplaced> for Supervisor {
    type Result = bool;

    fn handle(&mut self, replaced: KeyReplaced, context: &mut Context<Self>) -> bool {
        let worker = replaced.worker;
        let connected = self
            .workers
            .get(&worker)
            .is_some_and(|entry| entry.session.is_some());
        if let Some(text) = replaced.deliver {
            self.deliver(worker, text);
        }
        let effects = self.fleet.key_replaced(worker, self.now());
        self.carry_out(effects, context);
        connected
    }
}

impl Handler<Removed> for Supervisor {
    type Result = ();

    fn handle(&mut self, Removed(worker): Removed, context: &mut Context<Self>) {
        let effects = self.fleet.removed(worker);
        self.carry_out(effects, context);
    }
}

impl Handler<Shutdown> for Supervisor {
    type Result = ();

    fn handle(&mut self, _: Shutdown, _: &mut Context<Self>) {
        for entry in self.workers.values() {
            if let Some((_, session)) = &entry.session {
                let reason = "the platform stops";
                let _ = session.try_send(End {
                    code: close::GOING_AWAY,
                    reason,
                });
            }
        }
        self.save_last_seen();
    }
}
