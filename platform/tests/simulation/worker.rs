//! A worker's machine: its disk, and the process on it with its connection to the platform. The backoff, the slot
//! and the outbox's order are the worker's own; this is what its actors do with them.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use trainyard_shared::frame::close;
use trainyard_shared::ids::{FederatedSessionId, JobId, WorkerId};
use trainyard_shared::message::{
    Authenticate, ErrorCode, FromWorker, Heartbeat, Pong, StartTraining, ToWorker, WorkerMetrics,
    WorkerMetricsData, WorkerRegister, WorkerRegisterData,
};
use trainyard_shared::{Secret, WorkerStatus};
use trainyard_worker::connection::backoff::{Backoff, LONGEST_DELAY, NextTry};
use trainyard_worker::connection::waiting::{Place, Waiting};
use trainyard_worker::tasks::slot::Slot;

use crate::disk::Disk;
use crate::network::{Frame, LinkId, Side};
use crate::rounds::TakingPart;
use crate::training::Running;
use crate::world::{Event, World};

const HEARTBEAT_MS: u64 = 30_000;
const METRICS_MS: u64 = 60_000;
const WATCH_MS: u64 = 5_000;
const AUTHENTICATE_MS: u64 = 20_000;
const PING_AFTER_MS: u64 = 20_000;
const DEAD_AFTER_MS: u64 = 60_000;
const RECONNECT_DELAY: Duration = Duration::from_secs(5);
/// As in `connection::delivery`.
const ACKNOWLEDGED_WITHIN_MS: u64 = 30_000;

/// What happens within the worker's process.
pub enum MachineEvent {
    Start,
    Connect,
    /// The socket is open, or was refused.
    Opened(Option<LinkId>),
    Beat,
    Metrics,
    Watch,
    /// The platform has not answered a close.
    GiveUp(LinkId),
    /// The files of the entry at that place are stored, or were not.
    Stored(Place, bool),
    DeliverAgain,
    /// The training gets one step further.
    Step(u64),
    /// A round of a session is trained, or the session is left.
    Round(u64),
}

pub struct Machine {
    pub worker: WorkerId,
    pub run: u32,
    pub paused_until: u64,
    /// No connection can be opened until then.
    pub cut_off_until: u64,
    pub disk: Disk,
    /// The key in the settings, once an operator has put one there.
    pub given_key: Option<u32>,
    pub process: Option<Process>,
}

pub struct Process {
    pub link: Option<Link>,
    backoff: Backoff,
    pub slot: Slot,
    pub running: Option<Running>,
    pub session: Option<TakingPart>,
    pub next: Option<StartTraining>,
    /// Reports that may be lost.
    pub reports: VecDeque<FromWorker>,
    pub sent: Option<(Place, u64)>,
    pub stored: BTreeSet<Place>,
    pub storing: Option<Place>,
    try_given_key: bool,
}

pub struct Link {
    pub id: LinkId,
    opened: u64,
    last_heard: u64,
    pinged: bool,
    pub state: LinkState,
    next_try: NextTry,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    Authenticating,
    Registered,
    Closing,
}

impl Machine {
    pub fn new(worker: WorkerId, key: u32) -> Self {
        Self {
            worker,
            run: 0,
            paused_until: 0,
            cut_off_until: 0,
            disk: Disk::new(key),
            given_key: None,
            process: None,
        }
    }

    /// The job that the worker says it has. One whose end is not delivered is still its job.
    pub fn current_job(&self, now: u64) -> Option<JobId> {
        let process = self.process.as_ref()?;
        if let Some(running) = &process.running {
            return Some(running.job.job_id);
        }
        let (place, job) = self.disk.outbox.undelivered_end()?;
        let given_up = process
            .sent
            .is_some_and(|(sent, at)| sent >= place && now - at > ACKNOWLEDGED_WITHIN_MS);
        (!given_up).then_some(job)
    }

    /// The session that the worker takes part in.
    pub fn current_session(&self) -> Option<FederatedSessionId> {
        Some(self.process.as_ref()?.session.as_ref()?.id)
    }

    fn status(&self, now: u64) -> WorkerStatus {
        match (self.current_job(now), self.current_session()) {
            (Some(_), _) => WorkerStatus::Training,
            (None, Some(_)) => WorkerStatus::Federated,
            (None, None) => WorkerStatus::Idle,
        }
    }

    pub fn is_registered(&self) -> bool {
        let link = self
            .process
            .as_ref()
            .and_then(|process| process.link.as_ref());
        link.is_some_and(|link| link.state == LinkState::Registered)
    }
}

impl World {
    pub fn machine_later(&mut self, machine: usize, wait: u64, event: MachineEvent) {
        let run = self.machines[machine].run;
        self.schedule_in(
            wait,
            Event::Machine {
                machine,
                run,
                event,
            },
        );
    }

    /// The process on a machine. Everything that gets here has checked that it runs.
    pub fn worker(&mut self, machine: usize) -> &mut Process {
        self.machines[machine]
            .process
            .as_mut()
            .expect("the worker runs")
    }

    pub fn machine_event(&mut self, machine: usize, event: MachineEvent) {
        if let MachineEvent::Start = event {
            return self.start_machine(machine);
        }
        if self.machines[machine].process.is_none() {
            return;
        }
        match event {
            MachineEvent::Start => {}
            MachineEvent::Connect => self.connect(machine),
            MachineEvent::Opened(link) => self.opened(machine, link),
            MachineEvent::Beat => {
                self.beat(machine);
                self.deliver_outbox(machine);
                self.machine_later(machine, HEARTBEAT_MS, MachineEvent::Beat);
            }
            MachineEvent::Metrics => {
                self.report_load(machine);
                self.machine_later(machine, METRICS_MS, MachineEvent::Metrics);
            }
            MachineEvent::Watch => {
                self.watch(machine);
                self.machine_later(machine, WATCH_MS, MachineEvent::Watch);
            }
            MachineEvent::GiveUp(link) => self.lose(machine, link),
            MachineEvent::Stored(place, well) => {
                let process = self.worker(machine);
                process.storing = None;
                if well {
                    process.stored.insert(place);
                }
                self.deliver_outbox(machine);
            }
            MachineEvent::DeliverAgain => {
                self.worker(machine).sent = None;
                self.deliver_outbox(machine);
            }
            MachineEvent::Step(token) => self.train(machine, token),
            MachineEvent::Round(token) => self.round_ends(machine, token),
        }
    }

    pub fn start_machine(&mut self, machine: usize) {
        if self.machines[machine].process.is_some() {
            return;
        }
        self.note(|| format!("machine {machine}: worker starts"));
        let host = &mut self.machines[machine];
        host.run += 1;
        let waiting: &Waiting = &host.disk.outbox;
        host.process = Some(Process {
            link: None,
            backoff: Backoff::new(RECONNECT_DELAY, LONGEST_DELAY),
            slot: Slot::new(waiting.undelivered_ends()),
            running: None,
            session: None,
            next: None,
            reports: VecDeque::new(),
            sent: None,
            stored: BTreeSet::new(),
            storing: None,
            try_given_key: false,
        });
        self.machine_later(machine, 0, MachineEvent::Connect);
        self.machine_later(machine, HEARTBEAT_MS, MachineEvent::Beat);
        self.machine_later(machine, METRICS_MS, MachineEvent::Metrics);
        self.machine_later(machine, WATCH_MS, MachineEvent::Watch);
    }

    /// SIGKILL; with the power, what was not synced is lost too.
    pub fn kill_machine(&mut self, machine: usize, power: bool) {
        let now = self.now;
        let host = &mut self.machines[machine];
        let Some(process) = host.process.take() else {
            return;
        };
        host.paused_until = 0;
        if power {
            host.disk.lose_power(now);
        }
        self.note(|| format!("machine {machine}: worker is killed (power: {power})"));
        match process.link {
            Some(link) if power => self.links[link.id].dead = true,
            Some(link) => self.hang_up(link.id, Side::Machine),
            None => {}
        }
    }

    fn connect(&mut self, machine: usize) {
        if self.worker(machine).link.is_some() {
            return;
        }
        let host = &self.machines[machine];
        if host.cut_off_until > self.now || self.platform.paused_until > self.now {
            // Nobody answers.
            return self.machine_later(machine, 15_000, MachineEvent::Opened(None));
        }
        if self.platform.process.is_none() {
            return self.machine_later(machine, 5, MachineEvent::Opened(None));
        }
        let link = self.open_link(machine);
        self.session_opens(link);
        let wait = self.random.between(2, 200);
        self.machine_later(machine, wait, MachineEvent::Opened(Some(link)));
    }

    fn opened(&mut self, machine: usize, link: Option<LinkId>) {
        let Some(id) = link else {
            return self.try_again(machine, NextTry::ByBackoff);
        };
        let now = self.now;
        let host = &mut self.machines[machine];
        let process = host.process.as_mut().expect("the worker runs");
        let stored = host.disk.key;
        let key = match host.given_key {
            Some(given) if process.try_given_key => given,
            _ => stored,
        };
        process.link = Some(Link {
            id,
            opened: now,
            last_heard: now,
            pinged: false,
            state: LinkState::Authenticating,
            next_try: NextTry::ByBackoff,
        });
        let authenticate = Authenticate {
            api_key: Secret::from(key.to_string()),
            worker_uuid: String::new(),
        };
        self.push(machine, FromWorker::Authenticate(authenticate));
    }

    /// Sends a message, whatever the link's state.
    pub fn push(&mut self, machine: usize, message: FromWorker) {
        if let Some(link) = self.link_of(machine) {
            self.send(link, Side::Machine, Frame::FromWorker(Box::new(message)));
        }
    }

    pub fn beat(&mut self, machine: usize) {
        if self.machines[machine].is_registered() {
            let host = &self.machines[machine];
            let status = host.status(self.now);
            let job = host.current_job(self.now);
            let sessions = host.current_session().into_iter().collect();
            self.push(
                machine,
                FromWorker::Heartbeat(Heartbeat {
                    worker_id: None,
                    status: Some(status),
                    current_job_id: job,
                    current_inference_ids: None,
                    current_evaluation_ids: None,
                    current_export_ids: None,
                    current_session_ids: Some(sessions),
                }),
            );
        }
    }

    fn report_load(&mut self, machine: usize) {
        if self.machines[machine].is_registered() {
            let status = self.machines[machine].status(self.now);
            let data = WorkerMetricsData {
                status: Some(status),
                ..WorkerMetricsData::default()
            };
            let worker_id = None;
            self.push(
                machine,
                FromWorker::WorkerMetrics(WorkerMetrics { worker_id, data }),
            );
        }
    }

    fn watch(&mut self, machine: usize) {
        let now = self.now;
        let Some(link) = &mut self.worker(machine).link else {
            return;
        };
        let (id, silent) = (link.id, now - link.last_heard);
        let too_late =
            link.state == LinkState::Authenticating && now - link.opened > AUTHENTICATE_MS;
        if too_late || silent > DEAD_AFTER_MS {
            self.hang_up(id, Side::Machine);
            self.lose(machine, id);
        } else if silent > PING_AFTER_MS && !link.pinged {
            link.pinged = true;
            self.send(id, Side::Machine, Frame::Ping);
        }
    }

    pub fn machine_hears(&mut self, link: LinkId, frame: Frame) {
        let machine = self.links[link].machine;
        if self.links[link].machine_run != self.machines[machine].run {
            return;
        }
        let now = self.now;
        let process = self.machines[machine].process.as_mut();
        let Some(current) = process.and_then(|process| process.link.as_mut()) else {
            return;
        };
        if current.id != link {
            return;
        }
        current.last_heard = now;
        current.pinged = false;
        match frame {
            Frame::ToWorker(message) => self.machine_takes(machine, *message),
            Frame::Close(close::REPLACED) => current.next_try = NextTry::AfterLongestDelay,
            Frame::RoundAsked {
                session,
                round,
                begins,
            } => self.told_round(machine, session, round, begins),
            Frame::Close(_) | Frame::Ping | Frame::Pong | Frame::FromWorker(_) => {}
        }
    }

    fn machine_takes(&mut self, machine: usize, message: ToWorker) {
        match message {
            ToWorker::EnrollmentComplete(issued) => {
                let key = issued.data.api_key.expose().parse().unwrap_or(0);
                self.machines[machine].disk.key = key;
                self.worker(machine).try_given_key = false;
                if let Some(link) = self.link_of(machine) {
                    self.send(link, Side::Machine, Frame::Close(1000));
                    self.close(machine, NextTry::AtOnce);
                }
            }
            ToWorker::Authenticated(_) => self.authenticated(machine),
            ToWorker::AuthFailed(_) => {
                let given = self.machines[machine].given_key.is_some();
                let process = self.worker(machine);
                process.try_given_key = given && !process.try_given_key;
                self.close(machine, NextTry::ByBackoff);
            }
            ToWorker::Ping(ping) => {
                let host = &self.machines[machine];
                let status = host.status(self.now);
                let job = host.current_job(self.now);
                let sessions: Vec<_> = host.current_session().into_iter().collect();
                self.push(
                    machine,
                    FromWorker::Pong(Pong {
                        worker_id: None,
                        status: Some(status),
                        busy: job.is_some() || !sessions.is_empty(),
                        current_job_id: job,
                        current_inference_ids: None,
                        current_evaluation_ids: None,
                        current_export_ids: None,
                        current_session_ids: Some(sessions),
                        ping_id: ping.ping_id,
                    }),
                );
            }
            ToWorker::Ack(ack) => self.forget_message(machine, ack.message_id),
            ToWorker::Error(error) => {
                let Some(id) = error.message_id else { return };
                if !error.code.keeps_message() {
                    self.forget_message(machine, id);
                } else if error.code == ErrorCode::TryAgain {
                    self.machine_later(machine, 5_000, MachineEvent::DeliverAgain);
                }
            }
            ToWorker::StartTraining(start) => self.told_to_start(machine, start),
            ToWorker::StopTraining(stop) => self.told_to_stop(machine, stop.job_id),
            ToWorker::StopFederatedTraining(stop) => self.told_to_leave(machine, stop.session_id),
            _ => {}
        }
    }

    fn authenticated(&mut self, machine: usize) {
        let process = self.worker(machine);
        let Some(link) = &mut process.link else {
            return;
        };
        if link.state != LinkState::Authenticating {
            return;
        }
        link.state = LinkState::Registered;
        process.backoff.reset();
        process.sent = None;
        let data = WorkerRegisterData::default();
        let worker_id = None;
        self.push(
            machine,
            FromWorker::WorkerRegister(WorkerRegister { worker_id, data }),
        );
        self.beat(machine);
        self.report_load(machine);
        self.deliver_outbox(machine);
    }

    /// Says nothing more, and gives the link up where the platform does not close it.
    fn close(&mut self, machine: usize, next_try: NextTry) {
        let Some(link) = &mut self.worker(machine).link else {
            return;
        };
        link.state = LinkState::Closing;
        link.next_try = next_try;
        let id = link.id;
        self.machine_later(machine, 2_000, MachineEvent::GiveUp(id));
    }

    /// The end of a link as the machine sees it.
    pub fn machine_loses(&mut self, link: LinkId) {
        let machine = self.links[link].machine;
        if self.links[link].machine_run == self.machines[machine].run
            && self.machines[machine].process.is_some()
        {
            self.lose(machine, link);
        }
    }

    fn lose(&mut self, machine: usize, id: LinkId) {
        let process = self.worker(machine);
        if let Some(link) = process.link.take_if(|link| link.id == id) {
            if link.state == LinkState::Closing {
                self.hang_up(id, Side::Machine);
            }
            self.try_again(machine, link.next_try);
        }
    }

    fn try_again(&mut self, machine: usize, next_try: NextTry) {
        let uniform = self.random.uniform();
        let delay = self.worker(machine).backoff.delay(next_try, uniform);
        self.machine_later(machine, delay.as_millis() as u64, MachineEvent::Connect);
    }
}
