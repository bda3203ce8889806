//! The supervisor as the simulation runs it: the real [`Fleet`] and leases, behind a mailbox.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use trainyard_platform::clock::Moment;
use trainyard_platform::jobs::event::Event as JobEvent;
use trainyard_platform::workers::event::{
    CloseReason, Delivery, FleetEffect, Generation, NamedWork, Occupation, SelfReport, WorkerNews,
};
use trainyard_platform::workers::lease::{Lease, Presence};
use trainyard_platform::workers::placement::Abilities;
use trainyard_platform::workers::state::{Fleet, FleetTiming};
use trainyard_shared::frame::close;
use trainyard_shared::ids::{FederatedSessionId, JobId, WorkerId};
use trainyard_shared::message::{EnrollmentComplete, Ping, StopTraining, ToWorker};
use trainyard_shared::{WorkerStatus, WorkerType};

use crate::dispatcher::Round;
use crate::jobs::Letter;
use crate::network::{Frame, LinkId, Side};
use crate::platform::PlatformEvent;
use crate::sessions::SessionEvent;
use crate::world::{Broken, World};

pub const HEARTBEAT_TIMEOUT_MS: u64 = 90_000;
pub const CHECK_INTERVAL_MS: u64 = 60_000;
pub const PING_GRACE_MS: u64 = 10_000;

/// What is said to the supervisor.
pub enum ToSupervisor {
    Connect {
        link: LinkId,
        worker: WorkerId,
        key: u32,
    },
    Register {
        link: LinkId,
        lease: Lease,
    },
    Disconnected(Lease),
    Reported {
        link: LinkId,
        lease: Lease,
        report: SelfReport,
        named: NamedWork,
    },
    GetFree,
    Occupy {
        worker: WorkerId,
        session: FederatedSessionId,
    },
    Vacate {
        worker: WorkerId,
        session: FederatedSessionId,
        said_by_worker: bool,
    },
    Claim {
        worker: WorkerId,
        job: JobId,
    },
    Unclaim {
        worker: WorkerId,
        job: JobId,
    },
    Release {
        worker: WorkerId,
        job: JobId,
        said_by_worker: bool,
        is_awaited: bool,
    },
    SendCommand {
        worker: WorkerId,
        job: JobId,
        message: Box<ToWorker>,
    },
    SetDraining {
        worker: WorkerId,
        draining: bool,
    },
    KeyReplaced {
        worker: WorkerId,
        complete: Option<Box<EnrollmentComplete>>,
    },
}

/// What became of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    OnItsWay,
    Away,
    NotHolding,
}

pub struct Supervisor {
    mailbox: VecDeque<ToSupervisor>,
    pub fleet: Fleet,
    entries: BTreeMap<WorkerId, Entry>,
    news: VecDeque<(JobId, JobEvent)>,
    session_news: VecDeque<(FederatedSessionId, WorkerId, WorkerNews)>,
    tick: Option<Moment>,
}

#[derive(Default)]
struct Entry {
    presence: Arc<Presence>,
    link: Option<(Generation, LinkId)>,
    registered: bool,
}

impl Supervisor {
    pub fn new() -> Self {
        let timing = FleetTiming {
            heartbeat_timeout: Duration::from_millis(HEARTBEAT_TIMEOUT_MS),
            check_interval: Duration::from_millis(CHECK_INTERVAL_MS),
            ping_grace: Duration::from_millis(PING_GRACE_MS),
            settle: Duration::from_millis(500),
        };
        Self {
            mailbox: VecDeque::new(),
            fleet: Fleet::new(timing, Moment::START),
            entries: BTreeMap::new(),
            news: VecDeque::new(),
            session_news: VecDeque::new(),
            tick: None,
        }
    }

    fn listen(&mut self) {
        for (&worker, entry) in &self.entries {
            if let Some((generation, _)) = entry.link {
                self.fleet
                    .heard(worker, generation, entry.presence.heard_at());
            }
        }
    }
}

impl World {
    pub fn take_up_workers(&mut self, held: &[(JobId, WorkerId)]) {
        let forgets = self.broken == Some(Broken::RestartForgetsJobs);
        let now = self.moment();
        let workers: Vec<_> = self
            .database
            .workers
            .iter()
            .map(|(w, row)| (*w, row.draining))
            .collect();
        let supervisor = &mut self.process().supervisor;
        for (worker, draining) in workers {
            let holds = held
                .iter()
                .find(|(_, with)| *with == worker)
                .map(|(job, _)| *job);
            supervisor
                .fleet
                .add(worker, holds.filter(|_| !forgets), draining, now);
            supervisor.entries.insert(worker, Entry::default());
        }
    }

    pub fn tell_supervisor(&mut self, message: ToSupervisor) {
        self.process().supervisor.mailbox.push_back(message);
        self.platform_soon(PlatformEvent::Supervisor);
    }

    pub fn supervise(&mut self) {
        let now = self.moment();
        let accepts_stale = self.broken == Some(Broken::StaleGenerationAccepted);
        let supervisor = &mut self.process().supervisor;
        let Some(message) = supervisor.mailbox.pop_front() else {
            return;
        };
        match message {
            ToSupervisor::Connect { link, worker, key } => {
                let (generation, effects) = supervisor.fleet.authenticated(worker, now);
                self.record.connected(worker);
                self.carry_out(effects);
                let entry = self.process().supervisor.entries.entry(worker).or_default();
                entry.presence.set_current(Some(generation));
                entry.link = Some((generation, link));
                entry.registered = false;
                let lease = Lease::new(worker, generation, entry.presence.clone());
                lease.heard(now);
                self.note(|| {
                    format!(
                        "worker {worker} has generation {} on link {link}",
                        generation.0
                    )
                });
                self.session_leased(link, lease, key);
            }
            ToSupervisor::Register { link, lease } => {
                if let Some(entry) = supervisor.entries.get_mut(&lease.worker())
                    && lease.is_current()
                {
                    entry.registered = true;
                }
                let effects = supervisor
                    .fleet
                    .registered(lease.worker(), lease.generation(), now);
                self.carry_out(effects);
                self.session_registered(link);
            }
            ToSupervisor::Disconnected(lease) => {
                supervisor.listen();
                let (worker, generation) = (lease.worker(), lease.generation());
                if let Some(entry) = supervisor.entries.get_mut(&worker)
                    && entry
                        .link
                        .take_if(|(current, _)| *current == generation)
                        .is_some()
                {
                    entry.presence.set_current(None);
                }
                let effects = supervisor.fleet.disconnected(worker, generation, now);
                self.carry_out(effects);
            }
            ToSupervisor::Reported {
                link,
                lease,
                report,
                named,
            } => {
                if lease.is_current() || accepts_stale {
                    let worker = lease.worker();
                    let generation = match accepts_stale {
                        true => supervisor
                            .fleet
                            .generation(worker)
                            .unwrap_or(lease.generation()),
                        false => lease.generation(),
                    };
                    let mut effects = supervisor.fleet.reported(worker, generation, report, now);
                    let fleet = &mut supervisor.fleet;
                    effects.extend(fleet.work_named(worker, generation, &named, now));
                    self.carry_out(effects);
                }
                self.session_answered(link);
            }
            ToSupervisor::GetFree => {
                let free: BTreeMap<WorkerId, Abilities> = supervisor
                    .entries
                    .iter()
                    .filter(|(worker, entry)| {
                        entry.registered
                            && supervisor.fleet.view(**worker).is_some_and(|v| v.available)
                    })
                    .map(|(worker, _)| (*worker, abilities()))
                    .collect();
                self.platform_soon(PlatformEvent::Dispatcher(Round::Free(free)));
            }
            ToSupervisor::Claim { worker, job } => {
                let claimed = supervisor.fleet.claim(worker, job);
                if claimed {
                    self.check_claim(worker);
                }
                self.platform_soon(PlatformEvent::Dispatcher(Round::Claimed(claimed)));
            }
            ToSupervisor::Occupy { worker, session } => {
                let with = Occupation::Session(session);
                let is_taken = supervisor.fleet.occupy(worker, with);
                if is_taken {
                    self.check_claim(worker);
                }
                self.platform_soon(PlatformEvent::Dispatcher(Round::Occupied(is_taken)));
            }
            ToSupervisor::Vacate {
                worker,
                session,
                said_by_worker,
            } => {
                let of = Occupation::Session(session);
                let effects = supervisor.fleet.vacated(worker, of, said_by_worker, now);
                self.carry_out(effects);
            }
            ToSupervisor::Unclaim { worker, job } => {
                let effects = supervisor.fleet.unclaimed(worker, job, now);
                self.carry_out(effects);
                self.platform_soon(PlatformEvent::Dispatcher(Round::Next));
            }
            ToSupervisor::Release {
                worker,
                job,
                said_by_worker,
                is_awaited,
            } => {
                let effects = supervisor.fleet.released(worker, job, said_by_worker, now);
                if self.broken != Some(Broken::ReleaseLost) {
                    self.carry_out(effects);
                }
                if is_awaited {
                    self.order_given(job, None);
                }
            }
            ToSupervisor::SendCommand {
                worker,
                job,
                message,
            } => {
                let sent = match supervisor.fleet.delivery(worker, job) {
                    Delivery::On(_) => {
                        self.deliver(worker, *message);
                        Sent::OnItsWay
                    }
                    Delivery::Away => Sent::Away,
                    Delivery::NotHolding => Sent::NotHolding,
                };
                self.order_given(job, Some((worker, sent)));
            }
            ToSupervisor::SetDraining { worker, draining } => {
                let effects = supervisor.fleet.set_draining(worker, draining, now);
                self.carry_out(effects);
                self.record.drains(worker, draining);
            }
            ToSupervisor::KeyReplaced { worker, complete } => {
                if let Some(complete) = complete {
                    self.deliver(worker, ToWorker::EnrollmentComplete(*complete));
                }
                let effects = self.process().supervisor.fleet.key_replaced(worker, now);
                self.carry_out(effects);
            }
        }
    }

    fn carry_out(&mut self, effects: Vec<FleetEffect>) {
        for effect in effects {
            match effect {
                FleetEffect::Close {
                    worker,
                    generation,
                    reason,
                } => {
                    self.end(worker, generation, reason);
                }
                FleetEffect::Ping(worker) => self.deliver(worker, ToWorker::Ping(Ping::default())),
                FleetEffect::StopForeign(worker, job_id) => {
                    self.note(|| format!("worker {worker} has job {job_id}, which is not its own"));
                    self.deliver(worker, ToWorker::StopTraining(StopTraining { job_id }));
                }
                FleetEffect::TellJob(worker, job, news) => {
                    self.note(|| format!("job {job} is told of worker {worker}: {news:?}"));
                    let event = match news {
                        WorkerNews::Registered => JobEvent::WorkerRegistered(worker),
                        WorkerNews::Disconnected => JobEvent::WorkerDisconnected(worker),
                        WorkerNews::Holds { holds, first } => JobEvent::WorkerHolds {
                            worker,
                            holds,
                            first,
                        },
                        WorkerNews::Lost => JobEvent::WorkerLost(worker),
                    };
                    self.process().supervisor.news.push_back((job, event));
                    self.platform_soon(PlatformEvent::Carry);
                }
                FleetEffect::Available(_) => self.poke(),
                FleetEffect::TellOccupation(worker, Occupation::Session(session), news) => {
                    let is_lost =
                        news == WorkerNews::Lost && self.broken == Some(Broken::SessionNewsLost);
                    if !is_lost {
                        let news = (session, worker, news);
                        self.process().supervisor.session_news.push_back(news);
                        self.platform_soon(PlatformEvent::CarryOfSession);
                    }
                }
                FleetEffect::TellOccupation(worker, Occupation::Task(task), _) => {
                    panic!("worker {worker} was given no task, {task:?} neither")
                }
                FleetEffect::StopForeignSession(worker, session) => {
                    self.note(|| format!("worker {worker} is not of session {session}"));
                    self.stop_round(worker, session);
                }
                FleetEffect::Unavailable(_) | FleetEffect::SaveLastSeen(_) => {}
                FleetEffect::Show(worker) => {
                    let view = self.process().supervisor.fleet.view(worker);
                    let offline = view.is_some_and(|view| view.status == WorkerStatus::Offline);
                    self.check_shown_worker(worker, offline);
                }
            }
        }
        self.schedule_tick();
    }

    fn end(&mut self, worker: WorkerId, generation: Generation, reason: CloseReason) {
        let entry = self.process().supervisor.entries.entry(worker).or_default();
        let Some((_, link)) = entry.link.take_if(|(current, _)| *current == generation) else {
            return;
        };
        entry.presence.set_current(None);
        let code = match reason {
            CloseReason::Replaced => close::REPLACED,
            CloseReason::Silent => close::DEADLINE_PASSED,
            CloseReason::KeyReplaced => close::AUTHENTICATION_FAILED,
            CloseReason::Deleted => close::NOT_ALLOWED,
        };
        // Its thread may be busy; until then it reads on.
        let wait = match self.random.chance(100) {
            true => self.random.between(100, 3_000),
            false => self.random.below(20),
        };
        self.platform_later(wait, PlatformEvent::EndSession { link, code });
    }

    fn deliver(&mut self, worker: WorkerId, message: ToWorker) {
        self.deliver_frame_to(worker, Frame::ToWorker(Box::new(message)));
    }

    /// A worker that is away is not reached.
    pub fn deliver_frame_to(&mut self, worker: WorkerId, frame: Frame) {
        let entry = self.process().supervisor.entries.get(&worker);
        if let Some((_, link)) = entry.and_then(|entry| entry.link) {
            self.send(link, Side::Platform, frame);
        }
    }

    pub fn carry_news_of_session(&mut self) {
        if let Some((session, worker, news)) = self.process().supervisor.session_news.pop_front() {
            self.session_event(session, SessionEvent::News(worker, news));
        }
    }

    pub fn carry_news(&mut self) {
        if let Some((job, event)) = self.process().supervisor.news.pop_front() {
            self.post(job, Letter::happened(event));
        }
    }

    pub fn check(&mut self) {
        let now = self.moment();
        let supervisor = &mut self.process().supervisor;
        supervisor.listen();
        let effects = supervisor.fleet.check(now);
        self.carry_out(effects);
        self.platform_later(CHECK_INTERVAL_MS, PlatformEvent::Check);
    }

    pub fn tick(&mut self) {
        let now = self.moment();
        let supervisor = &mut self.process().supervisor;
        if supervisor.tick.is_none_or(|at| at > now) {
            return;
        }
        supervisor.tick = None;
        supervisor.listen();
        let effects = supervisor.fleet.tick(now);
        self.carry_out(effects);
    }

    fn schedule_tick(&mut self) {
        let next = self.process().supervisor.fleet.next_tick();
        if self.process().supervisor.tick == next {
            return;
        }
        self.process().supervisor.tick = next;
        if let Some(at) = next {
            let wait = self.time_of(at).saturating_sub(self.now);
            self.platform_later(wait, PlatformEvent::Tick);
        }
    }
}

fn abilities() -> Abilities {
    Abilities {
        worker_type: WorkerType::Both,
        gpu_memory_gb: None,
        exports: false,
        score: None,
    }
}
