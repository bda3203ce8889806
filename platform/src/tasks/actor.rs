//! One task that has not ended, alive.
//!
//! 1. An event comes; the state machine decides.
//! 2. Files that its worker has made are looked at before they count.
//! 3. What changes is written down, then told to dashboards, then to the worker and the supervisor. Nothing else
//!    is taken in meanwhile; when it cannot be written, nothing has happened.
//! 4. Once it has ended the actor ends.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use trainyard_shared::ids::WorkerId;
use trainyard_shared::message::TaskProgressData;

use super::directory::Progress;
use super::state::{Answer, Effect, End, Event, Phase, TaskRules};
use super::{Kind, TaskError};
use crate::actors::Actors;
use crate::clock::Moment;
use crate::dashboards::hub::{PublishOwned, Sight};
use crate::database::{DatabaseError, now};
use crate::sockets::queue::Topic;
use crate::workers::dispatcher::Poke;
use crate::workers::event::Occupation;
use crate::workers::lease::Lease;
use crate::workers::supervisor::{SendOn, Vacate};

/// A worker that says that it does not have a task may take so long to say what became of it.
const MISSING_GRACE: Duration = Duration::from_secs(3);
/// Between two tries to take in what has happened.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Timers may fire a little early.
const TIMER_GRAIN: Duration = Duration::from_millis(2);
/// Messages that may wait.
const MAILBOX: usize = 256;

/// The actor.
pub struct TaskActor<K: Kind> {
    actors: Actors,
    row: Arc<K::Row>,
    phase: Phase,
    rules: TaskRules,
    progress: Progress,
    deadline: Option<(Moment, SpawnHandle)>,
}

/// Let this happen to the task. Nothing is answered when the worker's connection does not count any more.
pub struct Apply<K: Kind> {
    /// What happens.
    pub event: Event<K::Product>,
    /// The right to be heard of the worker's connection on which it came.
    pub lease: Option<Lease>,
}

impl<K: Kind> Message for Apply<K> {
    type Result = Result<Option<Answer>, TaskError>;
}

/// This has happened; it is tried again when the database fails.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Happened<P>(pub Event<P>);

impl<K: Kind> TaskActor<K> {
    /// The actor of a task as it stands in the database.
    pub fn new(actors: Actors, row: K::Row, progress: Progress) -> Self {
        let rules = TaskRules {
            noun: K::NOUN,
            silence_timeout: actors.config.job_start_timeout,
            missing_grace: MISSING_GRACE,
        };
        let now = actors.clock.now();
        let worker = K::facts(&row).worker;
        let phase = worker.map_or(Phase::Queued, |worker| {
            Phase::after_restart(worker, now, &rules)
        });
        Self {
            actors,
            row: Arc::new(row),
            phase,
            rules,
            progress,
            deadline: None,
        }
    }

    fn apply(
        &mut self,
        event: Event<K::Product>,
    ) -> ResponseActFuture<Self, Result<Answer, TaskError>> {
        let now = self.actors.clock.now();
        let outcome = self.phase.apply(event, now, &self.rules);
        let (next, answer) = (outcome.next, outcome.answer);
        let carrying = Carrying::<K> {
            actors: self.actors.clone(),
            row: self.row.clone(),
            next,
            progress: self.progress.clone(),
        };
        Box::pin(
            async move { carrying.carry_out(outcome.effects).await }
                .into_actor(self)
                .map(move |carried, task, context| {
                    let follow_up = carried?;
                    task.phase = next;
                    task.schedule(context);
                    if let Some(event) = follow_up {
                        context.notify(Happened(event));
                    }
                    if next.is_ended() {
                        let id = K::facts(&task.row).id;
                        K::directory(&task.actors).retire(id);
                        context.stop();
                    }
                    Ok(answer)
                }),
        )
    }

    fn schedule(&mut self, context: &mut Context<Self>) {
        let next = self.phase.next_deadline();
        if self.deadline.as_ref().map(|(at, _)| *at) == next {
            return;
        }
        if let Some((_, handle)) = self.deadline.take() {
            context.cancel_future(handle);
        }
        if let Some(at) = next {
            let wait = at.since(self.actors.clock.now()) + TIMER_GRAIN;
            let handle = context.run_later(wait, |task, context| {
                task.deadline = None;
                context.notify(Happened(Event::DeadlinePassed));
            });
            self.deadline = Some((at, handle));
        }
    }
}

/// Effects on their way.
struct Carrying<K: Kind> {
    actors: Actors,
    row: Arc<K::Row>,
    next: Phase,
    progress: Progress,
}

impl<K: Kind> Carrying<K> {
    /// Gives what must happen because of it, if anything.
    async fn carry_out(
        self,
        effects: Vec<Effect<K::Product>>,
    ) -> Result<Option<Event<K::Product>>, TaskError> {
        let mut follow_up = None;
        let id = K::facts(&self.row).id;
        for effect in effects {
            match effect {
                Effect::Persist(end) => self.persist(end).await?,
                Effect::ShowProgress(progress) => self.show_progress(progress).await,
                Effect::ShowEnd(end) => self.show_end(end).await,
                Effect::Start(worker) => follow_up = self.start(worker).await,
                Effect::Stop(worker) => self.send(worker, K::stop(id).encode().into()).await,
                Effect::Release {
                    worker,
                    said_by_worker,
                } => {
                    let vacate = Vacate {
                        worker,
                        of: Occupation::Task(id.into()),
                        said_by_worker,
                    };
                    // Fails only when the platform stops.
                    let _ = self.actors.supervisor.send(vacate).await;
                }
            }
        }
        Ok(follow_up)
    }

    async fn persist(&self, end: Option<End<K::Product>>) -> Result<(), TaskError> {
        if let Some(End::Product(product)) = &end {
            K::check(&self.actors, &self.row, product).await?;
        }
        let nothing_came = matches!(end, Some(End::Failure(_) | End::Cancelled));
        let (row, next) = (self.row.clone(), self.next);
        tracing::info!("{} {} is {}", K::NOUN, K::facts(&row).id, next.as_str());
        self.actors
            .database
            .write::<_, DatabaseError, _>(move |c| K::save(c, &row, next, end.as_ref(), now()))
            .await?;
        if nothing_came {
            K::clear_away(&self.actors, &self.row).await;
        }
        Ok(())
    }

    async fn start(&self, worker: WorkerId) -> Option<Event<K::Product>> {
        match K::start(&self.actors, &self.row).await {
            Ok(start) => {
                self.send(worker, start.encode().into()).await;
                None
            }
            Err(error) => {
                let (noun, id) = (K::NOUN, K::facts(&self.row).id);
                tracing::error!(%error, "{noun} {id} could not be put into words for its worker");
                let error = format!(
                    "the platform could not send the {noun}: {}",
                    error.message()
                );
                Some(Event::CannotStart(error))
            }
        }
    }

    /// A worker that is away is asked what it has when it comes back.
    async fn send(&self, worker: WorkerId, text: bytestring::ByteString) {
        let link = None;
        let sent = self.actors.supervisor.send(SendOn { worker, link, text });
        if !sent.await.unwrap_or(false) {
            tracing::warn!(worker.id = %worker, "the worker of {} {} is away", K::NOUN, K::facts(&self.row).id);
        }
    }

    async fn show_progress(&self, progress: TaskProgressData) {
        let id = K::facts(&self.row).id;
        self.progress.set(progress.clone());
        let text = K::progress_message(id, progress).encode();
        self.publish(text, Some(Topic::Task(id.into()))).await;
    }

    async fn show_end(&self, end: End<K::Product>) {
        let id = K::facts(&self.row).id;
        let message = match end {
            End::Product(product) => K::completed_message(&self.row, product),
            End::Failure(failure) => K::failed_message(id, failure.error, Some(failure.kind)),
            End::Cancelled => K::failed_message(id, "cancelled".to_owned(), None),
        };
        self.publish(message.encode(), None).await;
    }

    async fn publish(&self, text: String, topic: Option<Topic>) {
        let publish = PublishOwned {
            owner: K::facts(&self.row).owner,
            sight: Sight::AsJobs,
            topic,
            text: text.into(),
        };
        // Fails only when the platform stops.
        let _ = self.actors.dashboards.send(publish).await;
    }
}

impl<K: Kind> Actor for TaskActor<K> {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        context.set_mailbox_capacity(MAILBOX);
        self.schedule(context);
        if self.phase == Phase::Queued {
            // A full mailbox means that the dispatcher is about to look anyway.
            let _ = self.actors.dispatcher.try_send(Poke);
        }
    }
}

impl<K: Kind> Handler<Apply<K>> for TaskActor<K> {
    type Result = AtomicResponse<Self, Result<Option<Answer>, TaskError>>;

    fn handle(&mut self, apply: Apply<K>, _: &mut Context<Self>) -> Self::Result {
        if apply.lease.is_some_and(|lease| !lease.is_current()) {
            return AtomicResponse::new(Box::pin(fut::ready(Ok(None))));
        }
        let applied = self.apply(apply.event);
        AtomicResponse::new(Box::pin(applied.map(|answer, _, _| answer.map(Some))))
    }
}

impl<K: Kind> Handler<Happened<K::Product>> for TaskActor<K> {
    type Result = AtomicResponse<Self, ()>;

    fn handle(
        &mut self,
        Happened(event): Happened<K::Product>,
        _: &mut Context<Self>,
    ) -> Self::Result {
        let again = event.clone();
        AtomicResponse::new(Box::pin(self.apply(event).map(|answer, task, context| {
            if let Err(error) = answer {
                let id = K::facts(&task.row).id;
                tracing::error!(%error, "what has happened to {} {id} is tried again", K::NOUN);
                context.notify_later(Happened(again), RETRY_DELAY);
            }
        })))
    }
}
