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

use super::commit::{CommitError, commit};
use super::directory::JobError;
use super::event::{Answer, Effect, Event, News, Outcome, Record, Transition};
use super::news;
use super::orders;
use super::phase::{JobTiming, Phase};
use super::state::JobState;
use super::store::{self, JobFacts, StoredJob};
use super::waiting::Reasons;
use crate::actors::Actors;
use crate::artifacts;
use crate::auth::Role;
use crate::clock::Moment;
use crate::dashboards::hub::{SessionId, Subscribe, Subscribed};
use crate::database::{DatabaseError, now};
use crate::metrics::writer::Flush;
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
        }
    }

    fn now(&self) -> Moment {
        self.actors.clock.now()
    }

    fn apply(&mut self, event: Event) -> ActFuture<Result<Answer, JobError>> {
        let now = self.now();
        self.asked_at = now;
        let outcome = self.state.apply(event.clone(), now, &self.timing);
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

    /// Takes the state from the database, and makes up for what could not be told while it was unknown.
    /// Waiting times begin anew; who is connected is still known.
    fn reread(&self) -> ActFuture<()> {
        let (actors, facts) = (self.actors.clone(), self.facts.clone());
        let (before, timing, now) = (self.state.clone(), self.timing, self.now());
        let reading = async move {
            let id = facts.id;
            let read = actors.database.read(move |c| store::load(c, id, now));
            let Some(mut stored) = read.await? else {
                return Ok(None);
            };
            stored.state.after_restart(now, &timing);
            stored.state.awaiting_worker &= before.awaiting_worker;
            reconcile(&actors, &facts, &before, &stored.state).await;
            Ok(Some(stored))
        };
        Box::pin(reading.into_actor(self).map(
            |stored: Result<_, DatabaseError>, job, context| match stored {
                Ok(Some(stored)) => {
                    job.state = stored.state;
                    job.revision = stored.revision;
                    job.schedule(context);
                    if let Phase::Assigned { worker, .. } = job.state.phase {
                        let (holds, first) = (false, true);
                        context.notify(Happened(Event::WorkerHolds {
                            worker,
                            holds,
                            first,
                        }));
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
}

type ActFuture<T> = ResponseActFuture<JobActor, T>;

/// An event on its way through.
struct Change {
    actors: Actors,
    facts: Arc<JobFacts>,
    before: JobState,
    revision: i64,
    event: Event,
}

/// What came of an event.
struct Carried {
    next: JobState,
    revision: i64,
    answer: Answer,
    follow_up: Vec<Event>,
}

/// Nothing came of it.
struct Failed {
    error: JobError,
    /// Whether it is unknown what the database holds now.
    reread: bool,
}

impl Change {
    async fn carry_out(self, outcome: Outcome) -> Result<Carried, Failed> {
        let Outcome {
            next,
            effects,
            answer,
        } = outcome;
        let mut revision = self.revision;
        let mut follow_up = Vec::new();
        for effect in effects {
            match effect {
                Effect::Persist(transition) => {
                    revision = self.persist(&next, transition).await?;
                }
                Effect::Publish(news) => {
                    let change = news::Change {
                        before: &self.before,
                        after: &next,
                    };
                    news::publish(&self.actors, &self.facts, news, &change).await;
                }
                Effect::Send(command) => {
                    let order = orders::Order {
                        facts: &self.facts,
                        state: &next,
                        event: &self.event,
                    };
                    follow_up.extend(order.give(&self.actors, command).await);
                }
            }
        }
        Ok(Carried {
            next,
            revision,
            answer,
            follow_up,
        })
    }

    async fn persist(&self, next: &JobState, transition: Transition) -> Result<i64, Failed> {
        self.check_files(&transition)
            .await
            .map_err(|error| Failed {
                error,
                reread: false,
            })?;
        let voids_points =
            matches!(transition.record, Some(Record::Started(_))) && next.attempt > 1;
        let ends = transition.to.is_ended() && !transition.from.is_ended();
        let checkpoint = matches!(transition.record, Some(Record::Checkpoint(_)));
        if voids_points || ends || checkpoint {
            // What was reported must be in the database before a part of it is void, before a checkpoint behind
            // it is acknowledged, and before anyone hears that the job has ended and asks for all of it.
            let flushed = self.actors.metrics.send(Flush).await;
            flushed
                .unwrap_or(Err(DatabaseError::Stopped))
                .map_err(failed)?;
        }
        tracing::info!(
            job.id = %self.facts.id, job.attempt = next.attempt, from = %transition.from,
            to = %transition.to, detail = transition.detail, "job {}", transition.kind.as_str()
        );
        let (next, revision) = (next.clone(), self.revision);
        let committed = self
            .actors
            .database
            .write(move |c| commit(c, revision, &next, &transition, now()))
            .await;
        committed.map_err(|error| match error {
            CommitError::Stale => Failed {
                error: DatabaseError::Busy.into(),
                reread: true,
            },
            CommitError::Database(error) => failed(error),
        })
    }

    async fn check_files(&self, transition: &Transition) -> Result<(), JobError> {
        let files = match &transition.record {
            Some(Record::Checkpoint(data)) => &data.files,
            Some(Record::Result(data)) => &data.files,
            _ => return Ok(()),
        };
        let storage = self.actors.storage.as_ref();
        Ok(artifacts::check_stored(storage, self.facts.id, files).await?)
    }
}

fn failed(error: DatabaseError) -> Failed {
    let reread = !matches!(error, DatabaseError::Full | DatabaseError::Busy);
    Failed {
        error: error.into(),
        reread,
    }
}

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
            actors
                .database
                .write::<_, DatabaseError, _>(move |c| store::delete(c, job))
                .await?;
            if let Err(error) = artifacts::delete_of_job(actors.storage.as_ref(), job).await {
                tracing::error!(job.id = %job, %error, "files of a deleted job are left");
            }
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
