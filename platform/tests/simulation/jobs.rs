//! A job's actor as the simulation runs it: the real [`JobState`], and the order of persist, publish, send around
//! it. Between any two effects other things happen, the end of the process included.

use std::collections::VecDeque;
use std::time::Duration;

use trainyard_platform::clock::Moment;
use trainyard_platform::jobs::event::{
    Answer, Command, Effect, Event as JobEvent, News, Outcome, Transition,
};
use trainyard_platform::jobs::phase::{JobTiming, Phase};
use trainyard_platform::jobs::state::JobState;
use trainyard_platform::workers::lease::Lease;
use trainyard_shared::ids::{DatasetId, JobId};
use trainyard_shared::message::{
    BaseModel, DatasetSource, ErrorCode, FromWorker, ResumePoint, StartTraining, StartTrainingData,
    StopTraining, ToWorker,
};

use crate::database::{Write, Written};
use crate::dispatcher::Round;
use crate::network::LinkId;
use crate::platform::PlatformEvent;
use crate::supervisor::{Sent, ToSupervisor};
use crate::world::{Broken, World};

pub const START_TIMEOUT_MS: u64 = 600_000;
pub const STOP_GRACE_MS: u64 = 120_000;
/// As in `jobs::actor`: a deadline that is noticed later than this was missed in a pause.
const LATE_MS: u64 = 2_000;

fn timing() -> JobTiming {
    JobTiming {
        start_timeout: Duration::from_millis(START_TIMEOUT_MS),
        stop_grace: Duration::from_millis(STOP_GRACE_MS),
        missing_grace: Duration::from_secs(3),
    }
}

/// What is said to a job's actor.
pub struct Letter {
    pub event: JobEvent,
    pub lease: Option<Lease>,
    pub reply_to: ReplyTo,
}

/// Who waits for what becomes of it.
pub enum ReplyTo {
    Session(LinkId, Box<FromWorker>),
    Dispatcher,
    /// A person at the REST API.
    User,
    /// Nobody: the job itself tries again when the database fails.
    Happened,
}

impl Letter {
    pub fn happened(event: JobEvent) -> Self {
        Self {
            event,
            lease: None,
            reply_to: ReplyTo::Happened,
        }
    }
}

pub struct JobActor {
    pub state: JobState,
    revision: i64,
    mailbox: VecDeque<Letter>,
    doing: Option<Doing>,
    rereading: bool,
    deadline: Option<Moment>,
}

/// An event on its way through.
struct Doing {
    letter: Letter,
    next: JobState,
    revision: i64,
    effects: VecDeque<Effect>,
    answer: Answer,
    follow_up: Vec<JobEvent>,
}

impl JobActor {
    /// Whether it does not know at the moment what the database holds.
    pub fn is_rereading(&self) -> bool {
        self.rereading
    }
}

impl World {
    /// The job's actor, started from its row if need be.
    pub fn wake_job(&mut self, job: JobId) -> bool {
        let now = self.moment();
        if self.process().jobs.contains_key(&job) {
            return true;
        }
        let Some(row) = self.database.jobs.get(&job).cloned() else {
            return false;
        };
        let mut state = row.state;
        state.after_restart(now, &timing());
        let actor = JobActor {
            state,
            revision: row.revision,
            mailbox: VecDeque::new(),
            doing: None,
            rereading: false,
            deadline: None,
        };
        self.process().jobs.insert(job, actor);
        self.schedule_deadline(job);
        true
    }

    fn actor(&mut self, job: JobId) -> &mut JobActor {
        self.process().jobs.get_mut(&job).expect("it was started")
    }

    /// Puts a letter into the job's mailbox.
    pub fn post(&mut self, job: JobId, letter: Letter) {
        if self.wake_job(job) {
            self.actor(job).mailbox.push_back(letter);
            self.platform_soon(PlatformEvent::Job(job));
        } else if let ReplyTo::Session(link, message) = letter.reply_to {
            self.work_message_answered(link, &message, Ok(Answer::WrongWorker));
        }
    }

    pub fn job_takes(&mut self, job: JobId) {
        let now = self.moment();
        let accepts_stale = self.broken == Some(Broken::StaleGenerationAccepted);
        let actor = self.actor(job);
        if actor.doing.is_some() || actor.rereading {
            return;
        }
        let Some(letter) = actor.mailbox.pop_front() else {
            return;
        };
        if letter
            .lease
            .as_ref()
            .is_some_and(|lease| !lease.is_current())
            && !accepts_stale
        {
            // A newer connection has taken over: nobody waits for an answer.
            return self.platform_soon(PlatformEvent::Job(job));
        }
        if let Some(lease) = &letter.lease {
            let current = self.process().supervisor.fleet.generation(lease.worker());
            self.check_heard(lease, current, &letter.event);
        }
        let actor = self.actor(job);
        let Outcome {
            next,
            effects,
            answer,
        } = actor.state.apply(letter.event.clone(), now, &timing());
        actor.doing = Some(Doing {
            letter,
            next,
            revision: actor.revision,
            effects: effects.into(),
            answer,
            follow_up: Vec::new(),
        });
        self.go_on(job);
    }

    /// Carries effects out up to one that has to be waited for.
    fn go_on(&mut self, job: JobId) {
        loop {
            let actor = self.actor(job);
            let Some(doing) = &mut actor.doing else {
                return;
            };
            match doing.effects.pop_front() {
                Some(Effect::Persist(transition)) => return self.persist(job, transition),
                Some(Effect::Publish(news)) => {
                    let next = doing.next.clone();
                    self.publish(&next, &news);
                }
                Some(Effect::Send(command)) => {
                    if self.give_order(job, command) {
                        return;
                    }
                }
                None => return self.done(job),
            }
        }
    }

    fn persist(&mut self, job: JobId, transition: Transition) {
        let doing = self.actor(job).doing.as_ref().expect("it persists");
        let write = Write {
            job,
            revision: doing.revision,
            next: doing.next.clone(),
            transition,
        };
        self.database.waiting.push_back(write);
        let slow = self.random.chance(10);
        let wait = match slow {
            true => self.random.between(500, 5_000),
            false => self.random.between(1, 25),
        };
        self.platform_later(wait, PlatformEvent::Written);
    }

    /// The first write in line is done.
    pub fn written(&mut self) {
        let Some(write) = self.database.waiting.pop_front() else {
            return;
        };
        let job = write.job;
        match self.write(write) {
            Written::Yes(revision) => {
                let doing = self.actor(job).doing.as_mut().expect("it persists");
                doing.revision = revision;
                self.go_on(job);
            }
            Written::Nothing => self.failed(job, false),
            Written::Stale => self.failed(job, true),
            Written::Unknown => {
                self.note(|| format!("job {job}: nobody knows whether it was written"));
                self.failed(job, self.broken != Some(Broken::CommitWithoutComparing));
            }
        }
    }

    fn failed(&mut self, job: JobId, reread: bool) {
        let doing = self.actor(job).doing.take().expect("it persists");
        if reread {
            self.actor(job).rereading = true;
            let wait = self.random.between(1, 20);
            self.platform_later(wait, PlatformEvent::Reread(job));
        }
        match doing.letter.reply_to {
            ReplyTo::Happened => {
                let again = PlatformEvent::Again(job, doing.letter.event);
                self.platform_later(LATE_MS, again);
            }
            reply_to => self.reply(reply_to, Err(ErrorCode::TryAgain)),
        }
        self.platform_soon(PlatformEvent::Job(job));
    }

    fn reply(&mut self, reply_to: ReplyTo, answer: Result<Answer, ErrorCode>) {
        match reply_to {
            ReplyTo::Session(link, message) => self.work_message_answered(link, &message, answer),
            ReplyTo::Dispatcher => {
                self.platform_soon(PlatformEvent::Dispatcher(Round::Assigned(answer)));
            }
            ReplyTo::User | ReplyTo::Happened => {}
        }
    }

    fn done(&mut self, job: JobId) {
        let actor = self.actor(job);
        let doing = actor.doing.take().expect("it was done");
        actor.state = doing.next;
        actor.revision = doing.revision;
        self.schedule_deadline(job);
        for event in doing.follow_up {
            self.post(job, Letter::happened(event));
        }
        self.reply(doing.letter.reply_to, Ok(doing.answer));
        self.platform_soon(PlatformEvent::Job(job));
    }

    /// Takes the state from the row, and makes up for what could not be told (as `jobs::actor` does).
    pub fn reread(&mut self, job: JobId) {
        let now = self.moment();
        let row = self.database.jobs.get(&job).cloned().expect("rows stay");
        let actor = self.actor(job);
        let before = std::mem::replace(&mut actor.state, row.state);
        let order = actor.state.after_unclear_write(&before, now, &timing());
        actor.revision = row.revision;
        actor.rereading = false;
        let state = actor.state.clone();
        self.publish(&state, &News::Update);
        let with = state.phase.worker();
        if let Some(worker) = before.phase.worker().filter(|worker| with != Some(*worker)) {
            self.tell_supervisor(ToSupervisor::Release {
                worker,
                job,
                said_by_worker: false,
                is_awaited: false,
            });
        }
        if state.phase == Phase::Queued {
            self.poke();
        }
        if let Some(order) = order {
            self.post(job, Letter::happened(order));
        }
        self.schedule_deadline(job);
        self.platform_soon(PlatformEvent::Job(job));
    }

    /// True when the answer has to be waited for.
    fn give_order(&mut self, job: JobId, command: Command) -> bool {
        let doing = self.actor(job).doing.as_ref().expect("it gives orders");
        let message = match command {
            Command::Start(worker) => (worker, start_training(&doing.next)),
            Command::Stop(worker) => (worker, StopTraining { job_id: job }.into()),
            Command::Release {
                worker,
                said_by_worker,
            } => {
                self.tell_supervisor(ToSupervisor::Release {
                    worker,
                    job,
                    said_by_worker,
                    is_awaited: true,
                });
                return true;
            }
            Command::Enqueue => {
                self.poke();
                return false;
            }
            Command::KeepPoint | Command::KeepLine => return false,
        };
        let (worker, message) = message;
        let message = Box::new(message);
        self.tell_supervisor(ToSupervisor::SendCommand {
            worker,
            job,
            message,
        });
        true
    }

    /// The supervisor has answered an order.
    pub fn order_given(
        &mut self,
        job: JobId,
        sent: Option<(trainyard_shared::ids::WorkerId, Sent)>,
    ) {
        let Some(doing) = &mut self.actor(job).doing else {
            return;
        };
        match sent {
            Some((worker, Sent::Away)) => {
                doing.follow_up.push(JobEvent::WorkerDisconnected(worker))
            }
            Some((worker, Sent::NotHolding)) => doing.follow_up.push(JobEvent::WorkerLost(worker)),
            Some((_, Sent::OnItsWay)) | None => {}
        }
        self.go_on(job);
    }

    fn schedule_deadline(&mut self, job: JobId) {
        let actor = self.actor(job);
        let next = actor.state.next_deadline();
        if actor.deadline == next {
            return;
        }
        actor.deadline = next;
        if let Some(at) = next {
            let due = self.time_of(at).max(self.now);
            self.platform_later(due - self.now, PlatformEvent::Deadline { job, at, due });
        }
    }

    pub fn deadline(&mut self, job: JobId, at: Moment, due: u64) {
        if self.actor(job).deadline != Some(at) {
            return;
        }
        if self.now - due >= LATE_MS {
            let due = self.now + LATE_MS;
            return self.platform_later(LATE_MS, PlatformEvent::Deadline { job, at, due });
        }
        self.actor(job).deadline = None;
        self.post(job, Letter::happened(JobEvent::DeadlinePassed));
    }
}

fn start_training(state: &JobState) -> ToWorker {
    let dataset = DatasetSource {
        storage_path: String::new(),
        download_url: "".into(),
        format: String::new(),
        id: DatasetId(1),
        sha256: None,
        size_bytes: None,
        max_bad_rows: None,
    };
    let base_model = BaseModel {
        huggingface_id: String::new(),
        download_urls: Vec::new(),
    };
    let resume = state.resume_from.map(|step| ResumePoint {
        step,
        files: Vec::new(),
    });
    let data = StartTrainingData {
        dataset,
        base_model,
        config: serde_json::Map::new(),
        output_path: String::new(),
        resume,
    };
    StartTraining {
        job_id: state.id,
        attempt: Some(state.attempt),
        data,
    }
    .into()
}
