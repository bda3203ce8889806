//! The platform's process: its sessions, and its start and end. It is the glue between the real state machines,
//! with mailboxes that are emptied one message at a time, so that everything can happen in between.

use std::collections::{BTreeMap, VecDeque};

use trainyard_platform::clock::Moment;
use trainyard_platform::jobs::event::{Answer, Event as JobEvent};
use trainyard_platform::workers::event::{NamedWork, ReportedBy, SelfReport};
use trainyard_platform::workers::job_messages::{self, JobMessage};
use trainyard_platform::workers::lease::Lease;
use trainyard_shared::frame::close;
use trainyard_shared::ids::{FederatedSessionId, JobId, WorkerId};
use trainyard_shared::message::{
    Ack, AuthFailed, Authenticated, Error, ErrorCode, FromWorker, ToWorker,
};

use crate::dispatcher::{Dispatcher, Round};
use crate::jobs::{JobActor, Letter, ReplyTo};
use crate::network::{Frame, LinkId, Side};
use crate::sessions::{SessionActor, SessionEvent};
use crate::supervisor::{Supervisor, ToSupervisor};
use crate::world::{Broken, Event, World};

/// What happens within the platform's process.
pub enum PlatformEvent {
    /// The key that a connection showed has been looked up.
    Authenticate {
        link: LinkId,
        key: u32,
    },
    /// It has been looked up once more, now that the connection counts.
    Entered {
        link: LinkId,
        key: u32,
    },
    /// What the worker can do has been written.
    Register {
        link: LinkId,
    },
    /// A session reads its next frame.
    Read(LinkId),
    /// The supervisor takes its next message.
    Supervisor,
    /// News of a worker goes out to a job.
    Carry,
    Check,
    Tick,
    Dispatcher(Round),
    /// A job's actor takes its next message.
    Job(JobId),
    /// What happened is tried again.
    Again(JobId, JobEvent),
    /// The job's deadline may be here; noticed when it was due, or late.
    Deadline {
        job: JobId,
        at: Moment,
        due: u64,
    },
    /// A session is told to end its connection.
    EndSession {
        link: LinkId,
        code: u16,
    },
    /// The first write in line is done.
    Written,
    /// A job reads its row anew.
    Reread(JobId),
    Session(FederatedSessionId, SessionEvent),
    /// What a session could not write down is tried again.
    SessionAgain(FederatedSessionId),
    /// News of a worker goes out to a session.
    CarryOfSession,
}

#[derive(Default)]
pub struct Platform {
    pub run: u32,
    pub paused_until: u64,
    pub process: Option<Process>,
}

pub struct Process {
    started_at: u64,
    pub sessions: BTreeMap<LinkId, Session>,
    pub supervisor: Supervisor,
    pub dispatcher: Dispatcher,
    pub jobs: BTreeMap<JobId, JobActor>,
    pub federated: BTreeMap<FederatedSessionId, SessionActor>,
}

/// One worker's connection.
pub struct Session {
    pub worker: WorkerId,
    pub lease: Option<Lease>,
    registered: bool,
    /// The next frame is not read before what this one asked for is answered.
    busy: bool,
    inbox: VecDeque<Frame>,
}

impl World {
    /// The running process. Everything that gets here has checked that it runs.
    pub fn process(&mut self) -> &mut Process {
        self.platform.process.as_mut().expect("the platform runs")
    }

    /// The present moment by the platform's own clock.
    pub fn moment(&self) -> Moment {
        let process = self.platform.process.as_ref();
        Moment::from_millis(self.now - process.map_or(self.now, |process| process.started_at))
    }

    /// The time of a moment of the platform's clock.
    pub fn time_of(&self, moment: Moment) -> u64 {
        let process = self.platform.process.as_ref();
        process.map_or(0, |process| process.started_at) + moment.as_millis()
    }

    pub fn platform_later(&mut self, wait: u64, event: PlatformEvent) {
        let run = self.platform.run;
        self.schedule_in(wait, Event::Platform { run, event });
    }

    /// As soon as the thread gets to it.
    pub fn platform_soon(&mut self, event: PlatformEvent) {
        let wait = self.random.below(4);
        self.platform_later(wait, event);
    }

    pub fn platform_event(&mut self, event: PlatformEvent) {
        match event {
            PlatformEvent::Authenticate { link, key } => self.authenticate(link, key),
            PlatformEvent::Entered { link, key } => self.entered(link, key),
            PlatformEvent::Register { link } => {
                if let Some(lease) = self.lease(link) {
                    self.tell_supervisor(ToSupervisor::Register { link, lease });
                }
            }
            PlatformEvent::Read(link) => self.read(link),
            PlatformEvent::Supervisor => self.supervise(),
            PlatformEvent::Carry => self.carry_news(),
            PlatformEvent::Check => self.check(),
            PlatformEvent::Tick => self.tick(),
            PlatformEvent::Dispatcher(round) => self.dispatch(round),
            PlatformEvent::Job(job) => self.job_takes(job),
            PlatformEvent::Again(job, event) => self.post(job, Letter::happened(event)),
            PlatformEvent::Deadline { job, at, due } => self.deadline(job, at, due),
            PlatformEvent::EndSession { link, code } => {
                if self.session(link).is_some() {
                    self.end_session(link, code);
                }
            }
            PlatformEvent::Written => self.written(),
            PlatformEvent::Reread(job) => self.reread(job),
            PlatformEvent::Session(id, event) => self.session_event(id, event),
            PlatformEvent::SessionAgain(id) => self.session_again(id),
            PlatformEvent::CarryOfSession => self.carry_news_of_session(),
        }
    }

    pub fn start_platform(&mut self) {
        if self.platform.process.is_some() {
            return;
        }
        self.note(|| "platform starts".to_owned());
        self.platform.run += 1;
        self.platform.process = Some(Process {
            started_at: self.now,
            sessions: BTreeMap::new(),
            supervisor: Supervisor::new(),
            dispatcher: Dispatcher::default(),
            jobs: BTreeMap::new(),
            federated: BTreeMap::new(),
        });
        self.record.platform_started();
        let held = self.database.with_workers();
        self.take_up_workers(&held);
        self.take_up_sessions();
        if self.broken != Some(Broken::RestartForgetsJobs) {
            for (job, _) in held {
                self.wake_job(job);
            }
        }
        self.platform_later(crate::supervisor::CHECK_INTERVAL_MS, PlatformEvent::Check);
        self.poke();
    }

    /// SIGKILL. A write that was under way may have been made all the same.
    pub fn kill_platform(&mut self) {
        let Some(process) = self.platform.process.take() else {
            return;
        };
        self.note(|| "platform is killed".to_owned());
        self.platform.paused_until = 0;
        for link in process.sessions.into_keys() {
            self.hang_up(link, Side::Platform);
        }
        let under_way = self.database.waiting.pop_front();
        self.database.waiting.clear();
        if let Some(write) = under_way.filter(|_| self.random.chance(500)) {
            self.write(write);
        }
        self.check_acknowledged();
    }

    /// A worker has opened a socket.
    pub fn session_opens(&mut self, link: LinkId) {
        let worker = self.machines[self.links[link].machine].worker;
        let session = Session {
            worker,
            lease: None,
            registered: false,
            busy: false,
            inbox: VecDeque::new(),
        };
        self.process().sessions.insert(link, session);
    }

    pub fn platform_hears(&mut self, link: LinkId, frame: Frame) {
        let Some(process) = &mut self.platform.process else {
            return;
        };
        if let Some(session) = process.sessions.get_mut(&link) {
            session.inbox.push_back(frame);
            self.platform_soon(PlatformEvent::Read(link));
        }
    }

    /// The session is at an end: its lease is given back.
    pub fn session_gone(&mut self, link: LinkId) {
        let Some(process) = &mut self.platform.process else {
            return;
        };
        if let Some(lease) = process.sessions.remove(&link).and_then(|s| s.lease) {
            self.tell_supervisor(ToSupervisor::Disconnected(lease));
        }
    }

    /// The platform closes a connection.
    pub fn end_session(&mut self, link: LinkId, code: u16) {
        self.note(|| format!("platform closes link {link} with {code}"));
        self.send(link, Side::Platform, Frame::Close(code));
        self.hang_up(link, Side::Platform);
        self.session_gone(link);
    }

    fn session(&mut self, link: LinkId) -> Option<&mut Session> {
        self.platform.process.as_mut()?.sessions.get_mut(&link)
    }

    fn lease(&mut self, link: LinkId) -> Option<Lease> {
        self.session(link)?.lease.clone()
    }

    /// What the frame asked for is answered: the next may be read.
    pub fn session_answered(&mut self, link: LinkId) {
        if let Some(session) = self.session(link) {
            session.busy = false;
            self.platform_soon(PlatformEvent::Read(link));
        }
    }

    pub fn session_registered(&mut self, link: LinkId) {
        if let Some(session) = self.session(link) {
            session.registered = true;
        }
        self.session_answered(link);
    }

    pub fn session_leased(&mut self, link: LinkId, lease: Lease, key: u32) {
        match self.session(link) {
            Some(session) => {
                session.lease = Some(lease);
                let wait = self.random.between(1, 5);
                self.platform_later(wait, PlatformEvent::Entered { link, key });
            }
            None => self.tell_supervisor(ToSupervisor::Disconnected(lease)),
        }
    }

    fn say(&mut self, link: LinkId, message: impl Into<ToWorker>) {
        let frame = Frame::ToWorker(Box::new(message.into()));
        self.send(link, Side::Platform, frame);
    }

    fn authenticate(&mut self, link: LinkId, key: u32) {
        let Some(worker) = self.session(link).map(|session| session.worker) else {
            return;
        };
        if self
            .database
            .workers
            .get(&worker)
            .is_some_and(|row| row.key == key)
        {
            self.tell_supervisor(ToSupervisor::Connect { link, worker, key });
        } else {
            let reason = "the key is not valid".to_owned();
            self.say(link, AuthFailed { reason });
            self.end_session(link, close::AUTHENTICATION_FAILED);
        }
    }

    fn entered(&mut self, link: LinkId, key: u32) {
        let Some(worker) = self.session(link).map(|session| session.worker) else {
            return;
        };
        if self
            .database
            .workers
            .get(&worker)
            .is_none_or(|row| row.key != key)
        {
            return self.end_session(link, close::AUTHENTICATION_FAILED);
        }
        self.say(
            link,
            Authenticated {
                status: "ok".to_owned(),
                worker_id: String::new(),
            },
        );
        self.session_answered(link);
    }

    fn read(&mut self, link: LinkId) {
        let Some(session) = self.session(link).filter(|session| !session.busy) else {
            return;
        };
        match session.inbox.pop_front() {
            None => return,
            Some(Frame::Ping) => self.send(link, Side::Platform, Frame::Pong),
            Some(Frame::Close(_)) => return self.session_gone(link),
            Some(Frame::FromWorker(message)) => self.take(link, *message),
            Some(Frame::Pong | Frame::ToWorker(_) | Frame::RoundAsked { .. }) => {}
        }
        self.platform_soon(PlatformEvent::Read(link));
    }

    fn take(&mut self, link: LinkId, message: FromWorker) {
        let now = self.moment();
        let accepts_stale = self.broken == Some(Broken::StaleGenerationAccepted);
        let Some(session) = self.session(link) else {
            return;
        };
        if let Some(lease) = &session.lease {
            if !lease.is_current() && !accepts_stale {
                return;
            }
            lease.heard(now);
        }
        let registered = session.registered;
        match (message, session.lease.clone()) {
            (FromWorker::Authenticate(presented), None) => {
                session.busy = true;
                let key = presented.api_key.expose().parse().unwrap_or(0);
                let wait = self.random.between(1, 20);
                self.platform_later(wait, PlatformEvent::Authenticate { link, key });
            }
            (FromWorker::WorkerRegister(_), Some(_)) => {
                session.busy = true;
                let wait = self.random.between(1, 20);
                self.platform_later(wait, PlatformEvent::Register { link });
            }
            (message, Some(lease)) if registered => self.take_from_registered(link, lease, message),
            _ => {}
        }
    }

    fn take_from_registered(&mut self, link: LinkId, lease: Lease, message: FromWorker) {
        let mut named = NamedWork::default();
        let report = match message {
            FromWorker::Heartbeat(heartbeat) => {
                named.sessions = heartbeat.current_session_ids;
                SelfReport {
                    by: ReportedBy::Heartbeat,
                    status: heartbeat.status,
                    current_job: heartbeat.current_job_id,
                }
            }
            FromWorker::Pong(pong) => {
                named.sessions = pong.current_session_ids.clone();
                job_messages::self_report(&pong)
            }
            FromWorker::WorkerMetrics(metrics) => SelfReport {
                by: ReportedBy::Metrics,
                status: metrics.data.status,
                current_job: None,
            },
            FromWorker::Error(_) => return,
            message @ (FromWorker::FederatedUpdate(_) | FromWorker::FederatedFailed(_)) => {
                self.session(link).expect("it reads").busy = true;
                return self.take_of_session(link, &lease, message);
            }
            other => return self.take_work_message(link, lease, other),
        };
        self.session(link).expect("it reads").busy = true;
        self.tell_supervisor(ToSupervisor::Reported {
            link,
            lease,
            report,
            named,
        });
    }

    fn take_work_message(&mut self, link: LinkId, lease: Lease, message: FromWorker) {
        let sent = message.clone();
        let Ok(job_message) = JobMessage::from_wire(message) else {
            panic!("a worker of ours says nothing that cannot be read");
        };
        self.session(link).expect("it reads").busy = true;
        if self.broken == Some(Broken::AckBeforeCommit) {
            self.acknowledge(link, &sent);
        }
        let job = job_message.job;
        let letter = Letter {
            event: job_message.event(lease.worker()),
            lease: Some(lease),
            reply_to: ReplyTo::Session(link, Box::new(sent)),
        };
        self.post(job, letter);
    }

    /// The session has answered a message about it.
    pub fn session_message_answered(
        &mut self,
        link: LinkId,
        message: &FromWorker,
        answer: Result<(), ErrorCode>,
    ) {
        self.work_message_answered(link, message, answer.map(|()| Answer::Taken));
    }

    /// The job has answered a message about it.
    pub fn work_message_answered(
        &mut self,
        link: LinkId,
        message: &FromWorker,
        answer: Result<Answer, ErrorCode>,
    ) {
        let refused = match answer {
            Ok(Answer::Taken | Answer::Refused | Answer::Ignored(_)) => None,
            Ok(Answer::WrongWorker) => Some(ErrorCode::WrongWorker),
            Err(code) => Some(code),
        };
        match refused {
            None => self.acknowledge(link, message),
            Some(code) => {
                let error = Error {
                    message_id: message.message_id(),
                    ..Error::in_reply_to(message.wire_type(), code, "not taken")
                };
                self.record.refused(message, code);
                self.say(link, error);
            }
        }
        self.session_answered(link);
    }

    fn acknowledge(&mut self, link: LinkId, message: &FromWorker) {
        if let Some(message_id) = message.message_id() {
            self.check_acknowledgement(message);
            self.say(link, Ack { message_id });
        }
    }
}
