//! One job, alive.
//!
//! 1. An event comes; the state machine decides.
//! 2. Files that a message names are checked against the object store before anything counts.
//! 3. The transition is committed, naming the revision that it builds on; only then dashboards are told, and
//!    only then workers and the dispatcher. Nothing else is taken in meanwhile.
//! 4. When the outcome of the commit is not known, the state is read anew from the database.
//! 5. With no worker and nothing to do for a while the actor ends; it is started again when it is asked.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use trainyard_shared::ids::UserId;

use super::change::{Change, Failed};
use super::directory::JobError;
use super::event::{Answer, Event, News, Outcome, Report};
use super::log_budget::LogBudget;
use super::news;
use super::phase::{JobTiming, Phase};
use super::state::JobState;
use super::store::{self, JobFacts, StoredJob};
use super::waiting::Reasons;
use crate::actors::Actors;
use crate::artifacts::{self, ArtifactError};
use crate::auth::Role;
use crate::clock::Moment;
use crate::dashboards::hub::{SessionId, Subscribe, Subscribed};
use crate::database::DatabaseError;
use crate::workers::dispatcher::Poke;
use crate::workers::lease::Lease;
use crate::workers::supervisor::Release;

/// A job that nobody asks for and that is with no worker leaves the memory after this time.
const IDLE: Duration = Duration::from_secs(60);
/// A worker that says that it does not have a job may take so long to say what became of it.
const MISSING_GRACE: Duration = Duration::from_secs(3);
/// A deadline that is noticed later than this was missed because the platform was paused: what has come in
/// meanwhile is heard first.
const LATE: Duration = Duration::from_secs(2);
/// Messages that may wait.
const MAILBOX: usize = 256;

/// The actor.
pub struct JobActor {
    actors: Actors,
    facts: Arc<JobFacts>,
    state: JobState,
    revision: i64,
    timing: JobTiming,
    deadline: Option<(Moment, SpawnHandle)>,
    asked_at: Moment,
    log_budget: LogBudget,
}

/// Let this happen to the job.
#[derive(Message)]
#[rtype(result = "Result<Answer, JobError>")]
pub struct Apply {
    /// What happens.
    pub event: Event,
    /// The right to be heard of the worker's connection on which it came.
    pub lease: Option<Lease>,
}

/// This has happened. The job deals with it, and tries again when the database fails.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Happened(pub Event);

/// How does the job stand?
#[derive(Message)]
#[rtype(result = "JobState")]
pub struct GetState;

/// Show the job to a dashboard from now on, beginning with how it stands.
#[derive(Message)]
#[rtype(result = "Result<(), SubscribeRefused>")]
pub struct Show {
    /// The dashboard.
    pub session: SessionId,
    /// Its user.
    pub user: UserId,
    /// What the user may do.
    pub role: Role,
}

/// Why a dashboard is not shown a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubscribeRefused {
    /// There is no such job, or it may not be seen.
    NotFound,
    /// The dashboard watches as many jobs as it may.
    TooMany,
    /// The platform stops.
    Stopped,
}

/// Delete the job with all that belongs to it. Refused while it is with a worker.
#[derive(Message)]
#[rtype(result = "Result<Answer, JobError>")]
pub struct Delete;

impl JobActor {
    /// The actor of a job that has just been read from the database.
    pub fn new(actors: Actors, job: StoredJob) -> Self {
        let timing = JobTiming {
            start_timeout: actors.config.job_start_timeout,
            stop_grace: actors.config.stop_grace,
            missing_grace: MISSING_GRACE,
        };
        let now = actors.clock.now();
        let mut state = job.state;
        state.after_restart(now, &timing);
        Self {
            actors,
            facts: Arc::new(job.facts),
            state,
            revision: job.revision,
            timing,
            deadline: None,
            asked_at: now,
            log_budget: LogBudget::new(now),
        }
    }

    fn now(&self) -> Moment {
        self.actors.clock.now()
    }

    fn apply(&mut self, event: Event) -> ActFuture<Result<Answer, JobError>> {
        let now = self.now();
        self.asked_at = now;
        let (event, outcome) = self.decide(event, now);
        let change = Change {
            actors: self.actors.clone(),
            facts: self.facts.clone(),
            before: self.state.clone(),
            revision: self.revision,
            event,
        };
        Box::pin(
            change
                .carry_out(outcome)
                .into_actor(self)
                .map(|carried, job, context| match carried {
                    Ok(carried) => {
                        job.state = carried.next;
                        job.revision = carried.revision;
                        job.schedule(context);
                        for event in carried.follow_up {
                            context.notify(Happened(event));
                        }
                        Ok(carried.answer)
                    }
                    Err(Failed { error, reread }) => {
                        if reread {
                            context.wait(job.reread());
                        }
                        Err(error)
                    }
                }),
        )
    }

    /// What the state machine makes of an event; a line of log is held to its limits.
    fn decide(&mut self, mut event: Event, now: Moment) -> (Event, Outcome) {
        let outcome = self.state.apply(event.clone(), now, &self.timing);
        if outcome.answer != Answer::Taken {
            return (event, outcome);
        }
        let Event::Reported { report, .. } = &mut event else {
            return (event, outcome);
        };
        let Report::Logged(line) = report.as_mut() else {
            return (event, outcome);
        };
        let Some(kept) = self.log_budget.take(line, now) else {
            let dropped = Outcome {
                next: self.state.clone(),
                effects: Vec::new(),
                answer: Answer::Ignored("more lines of log than are kept"),
            };
            return (event, dropped);
        };
        *line = kept;
        let outcome = self.state.apply(event.clone(), now, &self.timing);
        (event, outcome)
    }

    /// Takes the state from the database, and makes up for what could not be told while it was unknown.
    fn reread(&self) -> ActFuture<()> {
        let (actors, facts) = (self.actors.clone(), self.facts.clone());
        let (before, timing, now) = (self.state.clone(), self.timing, self.now());
        let reading = async move {
            let id = facts.id;
            let read = actors.database.read(move |c| store::load(c, id, now));
            let Some(mut stored) = read.await? else {
                return Ok(None);
            };
            let order = stored.state.after_unclear_write(&before, now, &timing);
            reconcile(&actors, &facts, &before, &stored.state).await;
            Ok(Some((stored, order)))
        };
        Box::pin(reading.into_actor(self).map(
            |stored: Result<_, DatabaseError>, job, context| match stored {
                Ok(Some((stored, order))) => {
                    job.state = stored.state;
                    job.revision = stored.revision;
                    job.schedule(context);
                    if let Some(order) = order {
                        context.notify(Happened(order));
                    }
                }
                Ok(None) => job.end(context),
                Err(error) => {
                    tracing::error!(job.id = %job.facts.id, %error, "job could not be read anew");
                    job.end(context);
                }
            },
        ))
    }

    fn schedule(&mut self, context: &mut Context<Self>) {
        let next = self.state.next_deadline();
        if self.deadline.as_ref().map(|(at, _)| *at) == next {
            return;
        }
        if let Some((_, handle)) = self.deadline.take() {
            context.cancel_future(handle);
        }
        if let Some(at) = next {
            self.watch(at, at.since(self.now()), context);
        }
    }

    fn watch(&mut self, at: Moment, wait: Duration, context: &mut Context<Self>) {
        let due = at.max(self.now() + wait);
        let handle = context.run_later(wait, move |job, context| {
            if job.now().since(due) >= LATE {
                job.watch(at, LATE, context);
                return;
            }
            job.deadline = None;
            context.notify(Happened(Event::DeadlinePassed));
        });
        self.deadline = Some((at, handle));
    }

    fn end(&self, context: &mut Context<Self>) {
        self.actors.jobs.forget(self.facts.id, &context.address());
        context.stop();
    }

    fn end_when_idle(&self, context: &mut Context<Self>) {
        let idle = self.now().since(self.asked_at) >= IDLE;
        if idle && self.state.phase.worker().is_none() {
            self.end(context);
        }
    }
}

/// Tells others what the database turned out to hold.
async fn reconcile(actors: &Actors, facts: &JobFacts, before: &JobState, after: &JobState) {
    let change = news::Change { before, after };
    news::publish(actors, facts, News::Update, &change).await;
    if let Some(worker) = before.phase.worker()
        && after.phase.worker() != Some(worker)
    {
        let release = Release {
            worker,
            job: facts.id,
            said_by_worker: false,
        };
        // Fails only when the platform stops.
        let _ = actors.supervisor.send(release).await;
    }
    if after.phase == Phase::Queued {
        // A full mailbox means that the dispatcher is about to look anyway.
        let _ = actors.dispatcher.try_send(Poke);
    }
}

type ActFuture<T> = ResponseActFuture<JobActor, T>;

impl Actor for JobActor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        context.set_mailbox_capacity(MAILBOX);
        self.schedule(context);
        context.run_interval(IDLE, |job, context| job.end_when_idle(context));
    }
}

impl Handler<Apply> for JobActor {
    type Result = AtomicResponse<Self, Result<Answer, JobError>>;

    fn handle(&mut self, apply: Apply, _: &mut Context<Self>) -> Self::Result {
        if apply.lease.is_some_and(|lease| !lease.is_current()) {
            let superseded = std::future::ready(Err(JobError::Superseded));
            return AtomicResponse::new(Box::pin(superseded.into_actor(self)));
        }
        AtomicResponse::new(self.apply(apply.event))
    }
}

impl Handler<Happened> for JobActor {
    type Result = AtomicResponse<Self, ()>;

    fn handle(&mut self, Happened(event): Happened, _: &mut Context<Self>) -> Self::Result {
        let again = event.clone();
        AtomicResponse::new(Box::pin(self.apply(event).map(|answer, job, context| {
            if let Err(error) = answer {
                tracing::error!(job.id = %job.facts.id, %error, "what has happened is tried again");
                context.notify_later(Happened(again), LATE);
            }
        })))
    }
}

impl Handler<GetState> for JobActor {
    type Result = MessageResult<GetState>;

    fn handle(&mut self, _: GetState, _: &mut Context<Self>) -> Self::Result {
        self.asked_at = self.now();
        MessageResult(self.state.clone())
    }
}

impl Handler<Show> for JobActor {
    type Result = AtomicResponse<Self, Result<(), SubscribeRefused>>;

    fn handle(&mut self, show: Show, _: &mut Context<Self>) -> Self::Result {
        self.asked_at = self.now();
        let may_see = show.role != Role::Member || show.user == self.facts.owner;
        let (actors, facts) = (self.actors.clone(), self.facts.clone());
        let state = self.state.clone();
        let showing = async move {
            if !may_see {
                return Err(SubscribeRefused::NotFound);
            }
            let waits = match state.phase {
                Phase::Queued => {
                    let mut reasons = Reasons::default();
                    let reason = reasons.of(&actors, facts.owner, facts.requested_worker);
                    // Only for a person; without it the state is shown all the same.
                    reason.await.ok()
                }
                _ => None,
            };
            let subscribe = Subscribe {
                session: show.session,
                job: facts.id,
                current: news::update_text(&state, waits),
            };
            match actors.dashboards.send(subscribe).await {
                Ok(Subscribed::Yes) => Ok(()),
                Ok(Subscribed::TooMany) => Err(SubscribeRefused::TooMany),
                Err(_) => Err(SubscribeRefused::Stopped),
            }
        };
        AtomicResponse::new(Box::pin(showing.into_actor(self)))
    }
}

impl Handler<Delete> for JobActor {
    type Result = AtomicResponse<Self, Result<Answer, JobError>>;

    fn handle(&mut self, _: Delete, _: &mut Context<Self>) -> Self::Result {
        if self.state.phase.worker().is_some() {
            let refused = std::future::ready(Ok(Answer::Refused));
            return AtomicResponse::new(Box::pin(refused.into_actor(self)));
        }
        let (actors, job) = (self.actors.clone(), self.facts.id);
        let deleting = async move {
            // Files first: as long as the job is there, whatever is left can be deleted by another try.
            artifacts::delete_of_job(actors.storage.as_ref(), job)
                .await
                .map_err(ArtifactError::Storage)?;
            actors
                .database
                .write::<_, DatabaseError, _>(move |c| store::delete(c, job))
                .await?;
            Ok(Answer::Taken)
        };
        AtomicResponse::new(Box::pin(deleting.into_actor(self).map(
            |deleted, job, context| {
                if deleted.is_ok() {
                    job.end(context);
                }
                deleted
            },
        )))
    }
}
