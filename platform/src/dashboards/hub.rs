//! Who watches what. One update is written once, whoever many read it; each dashboard has a bounded queue of
//! its own, which this actor fills without ever waiting.

use std::collections::{HashMap, HashSet};

use actix::prelude::*;
use bytestring::ByteString;
use trainyard_shared::WorkerStatus;
use trainyard_shared::frame::close;
use trainyard_shared::ids::{JobId, UserId, WorkerId};

use crate::auth::{Credential, Role};
use crate::jobs::news::Audience;
use crate::sockets::outgoing::Outgoing;
use crate::sockets::queue::{Overflow, Topic};

/// Jobs that one dashboard may watch at once.
pub const MAX_SUBSCRIPTIONS: usize = 1_000;
/// Messages that may wait.
const MAILBOX: usize = 16_384;

/// The actor.
#[derive(Default)]
pub struct Dashboards {
    sessions: HashMap<SessionId, Watcher>,
    subscribers: HashMap<JobId, HashSet<SessionId>>,
    /// What each worker was last shown to do: a change of that is never merged away.
    worker_status: HashMap<WorkerId, WorkerStatus>,
    last_id: u64,
}

/// One connected dashboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId(u64);

struct Watcher {
    user: UserId,
    role: Role,
    credential: Credential,
    outgoing: Outgoing,
    jobs: HashSet<JobId>,
}

/// A dashboard has connected.
#[derive(Message)]
#[rtype(result = "SessionId")]
pub struct Join {
    /// Its user.
    pub user: UserId,
    /// What the user may do.
    pub role: Role,
    /// With what it came in.
    pub credential: Credential,
    /// Its queue.
    pub outgoing: Outgoing,
}

/// A dashboard is gone.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Leave(pub SessionId);

/// Let this dashboard watch this job. Its right to do so has been checked.
#[derive(Message)]
#[rtype(result = "Subscribed")]
pub struct Subscribe {
    /// The dashboard.
    pub session: SessionId,
    /// The job.
    pub job: JobId,
    /// How the job stands now, as the frame to begin with.
    pub current: ByteString,
}

/// What became of a [`Subscribe`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, MessageResponse)]
pub enum Subscribed {
    /// It watches the job, or did already.
    Yes,
    /// It watches as many jobs as it may.
    TooMany,
}

/// The dashboard does not watch the job any more.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Unsubscribe {
    /// The dashboard.
    pub session: SessionId,
    /// The job.
    pub job: JobId,
}

/// Tell dashboards something of a job.
#[derive(Message)]
#[rtype(result = "()")]
pub struct PublishJob {
    /// The job.
    pub job: JobId,
    /// Whose it is.
    pub owner: UserId,
    /// Who is told.
    pub audience: Audience,
    /// Whether a newer one of these makes this one superfluous.
    pub replaceable: bool,
    /// The frame.
    pub text: ByteString,
}

/// Tell the dashboards of those who may see it something that belongs to a user.
#[derive(Message)]
#[rtype(result = "()")]
pub struct PublishOwned {
    /// The user.
    pub owner: UserId,
    /// Who else may see it.
    pub sight: Sight,
    /// What makes it superfluous when it comes again; none for what may not be lost.
    pub topic: Option<Topic>,
    /// The frame.
    pub text: ByteString,
}

/// Who may see what belongs to a user, beside that user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// Administrators: chats are private.
    Private,
    /// All but other members, as with jobs.
    AsJobs,
}

/// Tell all dashboards how a worker is.
#[derive(Message)]
#[rtype(result = "()")]
pub struct PublishWorker {
    /// The worker.
    pub worker: WorkerId,
    /// What it does.
    pub status: WorkerStatus,
    /// The frame.
    pub text: ByteString,
}

/// What may no longer be done with a credential.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub enum Revoke {
    /// The user was deleted.
    DeletedUser(UserId),
    /// What the user may do has changed.
    ChangedUser(UserId, Role),
    /// The credential is void.
    Credential(Credential),
    /// Some news was missed: nobody is trusted any more.
    Everything,
}

/// How many dashboards are connected, and how many jobs are watched?
#[cfg(test)]
#[derive(Message)]
#[rtype(result = "(usize, usize)")]
pub struct GetSize;

/// The platform stops.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Shutdown;

impl Dashboards {
    fn push(watcher: &Watcher, text: &ByteString, topic: Topic, replaceable: bool) {
        let taken = if replaceable {
            watcher.outgoing.update(text.clone(), topic)
        } else {
            watcher.outgoing.push(text.clone(), Some(topic))
        };
        Self::judge(watcher, taken);
    }

    fn judge(watcher: &Watcher, taken: Result<(), Overflow>) {
        if taken.is_err() {
            tracing::warn!(user.id = %watcher.user, "dashboard takes too little of what is sent to it");
            let reason = "too much is waiting to be taken";
            watcher.outgoing.close_now(close::DEADLINE_PASSED, reason);
        }
    }

    fn end(&self, code: u16, reason: &str, wanted: impl Fn(&Watcher) -> bool) {
        for watcher in self.sessions.values().filter(|watcher| wanted(watcher)) {
            watcher.outgoing.close_now(code, reason);
        }
    }
}

impl Actor for Dashboards {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        context.set_mailbox_capacity(MAILBOX);
    }
}

impl Handler<Join> for Dashboards {
    type Result = MessageResult<Join>;

    fn handle(&mut self, join: Join, _: &mut Context<Self>) -> Self::Result {
        self.last_id += 1;
        let id = SessionId(self.last_id);
        let watcher = Watcher {
            user: join.user,
            role: join.role,
            credential: join.credential,
            outgoing: join.outgoing,
            jobs: HashSet::new(),
        };
        self.sessions.insert(id, watcher);
        MessageResult(id)
    }
}

impl Handler<Leave> for Dashboards {
    type Result = ();

    fn handle(&mut self, Leave(id): Leave, _: &mut Context<Self>) {
        let Some(watcher) = self.sessions.remove(&id) else {
            return;
        };
        for job in watcher.jobs {
            if let Some(subscribers) = self.subscribers.get_mut(&job) {
                subscribers.remove(&id);
                if subscribers.is_empty() {
                    self.subscribers.remove(&job);
                }
            }
        }
    }
}

impl Handler<Subscribe> for Dashboards {
    type Result = Subscribed;

    fn handle(&mut self, subscribe: Subscribe, _: &mut Context<Self>) -> Subscribed {
        let Some(watcher) = self.sessions.get_mut(&subscribe.session) else {
            return Subscribed::Yes;
        };
        if !watcher.jobs.contains(&subscribe.job) && watcher.jobs.len() >= MAX_SUBSCRIPTIONS {
            return Subscribed::TooMany;
        }
        watcher.jobs.insert(subscribe.job);
        self.subscribers
            .entry(subscribe.job)
            .or_default()
            .insert(subscribe.session);
        Self::push(
            watcher,
            &subscribe.current,
            Topic::Job(subscribe.job),
            false,
        );
        Subscribed::Yes
    }
}

impl Handler<Unsubscribe> for Dashboards {
    type Result = ();

    fn handle(&mut self, unsubscribe: Unsubscribe, _: &mut Context<Self>) {
        let Unsubscribe { session, job } = unsubscribe;
        if let Some(watcher) = self.sessions.get_mut(&session) {
            watcher.jobs.remove(&job);
        }
        if let Some(subscribers) = self.subscribers.get_mut(&job) {
            subscribers.remove(&session);
            if subscribers.is_empty() {
                self.subscribers.remove(&job);
            }
        }
    }
}

impl Handler<PublishJob> for Dashboards {
    type Result = ();

    fn handle(&mut self, news: PublishJob, _: &mut Context<Self>) {
        let topic = Topic::Job(news.job);
        let may_see =
            |watcher: &Watcher| watcher.role != Role::Member || watcher.user == news.owner;
        match news.audience {
            Audience::Subscribers => {
                let subscribers = self.subscribers.get(&news.job).into_iter().flatten();
                for watcher in subscribers.filter_map(|id| self.sessions.get(id)) {
                    if may_see(watcher) {
                        Self::push(watcher, &news.text, topic, news.replaceable);
                    }
                }
            }
            Audience::AllWhoMaySee => {
                for watcher in self.sessions.values().filter(|watcher| may_see(watcher)) {
                    Self::push(watcher, &news.text, topic, news.replaceable);
                }
            }
        }
    }
}

impl Handler<PublishOwned> for Dashboards {
    type Result = ();

    fn handle(&mut self, news: PublishOwned, _: &mut Context<Self>) {
        let may_see = |watcher: &&Watcher| {
            let by_role = match news.sight {
                Sight::Private => watcher.role == Role::Admin,
                Sight::AsJobs => watcher.role != Role::Member,
            };
            by_role || watcher.user == news.owner
        };
        for watcher in self.sessions.values().filter(may_see) {
            let taken = match news.topic {
                Some(topic) => watcher.outgoing.update(news.text.clone(), topic),
                None => watcher.outgoing.push(news.text.clone(), None),
            };
            Self::judge(watcher, taken);
        }
    }
}

impl Handler<PublishWorker> for Dashboards {
    type Result = ();

    fn handle(&mut self, news: PublishWorker, _: &mut Context<Self>) {
        let before = match news.status {
            // It may never come back.
            WorkerStatus::Offline => self.worker_status.remove(&news.worker),
            status => self.worker_status.insert(news.worker, status),
        };
        let replaceable = before == Some(news.status);
        for watcher in self.sessions.values() {
            Self::push(watcher, &news.text, Topic::Worker(news.worker), replaceable);
        }
    }
}

impl Handler<Revoke> for Dashboards {
    type Result = ();

    fn handle(&mut self, revoke: Revoke, _: &mut Context<Self>) {
        let (code, reason) = (close::AUTHENTICATION_FAILED, "sign in again");
        match revoke {
            Revoke::DeletedUser(user) => {
                let reason = "the user was deleted";
                self.end(close::NOT_ALLOWED, reason, |watcher| watcher.user == user);
            }
            Revoke::ChangedUser(user, role) => {
                for watcher in self
                    .sessions
                    .values_mut()
                    .filter(|watcher| watcher.user == user)
                {
                    match watcher.credential {
                        Credential::Session(_) => watcher.role = role,
                        // Its own role may be lower still: it is asked for again.
                        Credential::ApiToken(_) => watcher.outgoing.close_now(code, reason),
                    }
                }
            }
            Revoke::Credential(credential) => {
                self.end(code, reason, |watcher| watcher.credential == credential);
            }
            Revoke::Everything => self.end(code, reason, |_| true),
        }
    }
}

#[cfg(test)]
impl Handler<GetSize> for Dashboards {
    type Result = MessageResult<GetSize>;

    fn handle(&mut self, _: GetSize, _: &mut Context<Self>) -> Self::Result {
        MessageResult((self.sessions.len(), self.subscribers.len()))
    }
}

impl Handler<Shutdown> for Dashboards {
    type Result = ();

    fn handle(&mut self, _: Shutdown, _: &mut Context<Self>) {
        for watcher in self.sessions.values() {
            watcher
                .outgoing
                .close(close::GOING_AWAY, "the platform stops");
        }
    }
}
