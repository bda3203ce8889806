//! One evaluation that has not ended, alive.
//!
//! 1. An event comes; the state machine decides.
//! 2. What changes is written down, then told to dashboards, then to the worker and the supervisor. Nothing else
//!    is taken in meanwhile; when it cannot be written, nothing has happened.
//! 3. Once it has ended the actor ends.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use trainyard_shared::ids::{UserId, WorkerId};
use trainyard_shared::message::{
    EvaluationCompleted, EvaluationCompletedData, EvaluationFailed, EvaluationFailedData,
    EvaluationProgress, EvaluationProgressData, ToDashboard,
};

use super::directory::Progress;
use super::orders;
use super::state::{Answer, Effect, End, EvaluationTiming, Event, Phase};
use super::store::{self, EvaluationRow};
use crate::actors::Actors;
use crate::clock::Moment;
use crate::dashboards::hub::{PublishOwned, Sight};
use crate::database::{DatabaseError, now};
use crate::sockets::queue::Topic;
use crate::workers::dispatcher::Poke;
use crate::workers::event::Occupation;
use crate::workers::lease::Lease;
use crate::workers::supervisor::{SendOn, Vacate};

/// A worker that says that it does not have an evaluation may take so long to say what became of it.
const MISSING_GRACE: Duration = Duration::from_secs(3);
/// Between two tries to take in what has happened.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Timers may fire a little early.
const TIMER_GRAIN: Duration = Duration::from_millis(2);
/// Messages that may wait.
const MAILBOX: usize = 256;

/// The actor.
pub struct EvaluationActor {
    actors: Actors,
    row: Arc<EvaluationRow>,
    phase: Phase,
    timing: EvaluationTiming,
    progress: Progress,
    deadline: Option<(Moment, SpawnHandle)>,
}

/// Let this happen to the evaluation. Nothing is answered when the worker's connection does not count any more.
#[derive(Message)]
#[rtype(result = "Result<Option<Answer>, DatabaseError>")]
pub struct Apply {
    /// What happens.
    pub event: Event,
    /// The right to be heard of the worker's connection on which it came.
    pub lease: Option<Lease>,
}

/// This has happened; it is tried again when the database fails.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Happened(pub Event);

impl EvaluationActor {
    /// The actor of an evaluation as it stands in the database.
    pub fn new(actors: Actors, row: EvaluationRow, progress: Progress) -> Self {
        let timing = EvaluationTiming {
            silence_timeout: actors.config.job_start_timeout,
            missing_grace: MISSING_GRACE,
        };
        let now = actors.clock.now();
        let phase = row.worker_id.map_or(Phase::Queued, |worker| {
            Phase::after_restart(WorkerId(worker), now, &timing)
        });
        Self {
            actors,
            row: Arc::new(row),
            phase,
            timing,
            progress,
            deadline: None,
        }
    }

    fn apply(&mut self, event: Event) -> ResponseActFuture<Self, Result<Answer, DatabaseError>> {
        let now = self.actors.clock.now();
        let outcome = self.phase.apply(event, now, &self.timing);
        let (next, answer) = (outcome.next, outcome.answer);
        let carrying = Carrying {
            actors: self.actors.clone(),
            row: self.row.clone(),
            next,
            progress: self.progress.clone(),
        };
        Box::pin(
            async move { carrying.carry_out(outcome.effects).await }
                .into_actor(self)
                .map(move |carried, evaluation, context| {
                    let follow_up = carried?;
                    evaluation.phase = next;
                    evaluation.schedule(context);
                    if let Some(event) = follow_up {
                        context.notify(Happened(event));
                    }
                    if next.is_ended() {
                        evaluation.actors.evaluations.retire(evaluation.row.id());
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
            let handle = context.run_later(wait, |evaluation, context| {
                evaluation.deadline = None;
                context.notify(Happened(Event::DeadlinePassed));
            });
            self.deadline = Some((at, handle));
        }
    }
}

/// Effects on their way.
struct Carrying {
    actors: Actors,
    row: Arc<EvaluationRow>,
    next: Phase,
    progress: Progress,
}

impl Carrying {
    /// Gives what must happen because of it, if anything.
    async fn carry_out(self, effects: Vec<Effect>) -> Result<Option<Event>, DatabaseError> {
        let mut follow_up = None;
        let id = self.row.id();
        for effect in effects {
            match effect {
                Effect::Persist(end) => {
                    let next = self.next;
                    tracing::info!(evaluation.id = %id, "evaluation is {}", next.as_str());
                    self.actors
                        .database
                        .write::<_, DatabaseError, _>(move |c| {
                            store::save(c, id, next, end.as_ref(), now())
                        })
                        .await?;
                }
                Effect::ShowProgress { done, total } => self.show_progress(done, total).await,
                Effect::ShowEnd(end) => self.show_end(end).await,
                Effect::Start(worker) => follow_up = self.start(worker).await,
                Effect::Stop(worker) => {
                    let text = orders::stop_text(id);
                    self.send(worker, text).await;
                }
                Effect::Release {
                    worker,
                    said_by_worker,
                } => {
                    let release = Vacate {
                        worker,
                        of: Occupation::Evaluation(id),
                        said_by_worker,
                    };
                    // Fails only when the platform stops.
                    let _ = self.actors.supervisor.send(release).await;
                }
            }
        }
        Ok(follow_up)
    }

    async fn start(&self, worker: WorkerId) -> Option<Event> {
        match orders::start_text(&self.actors, &self.row).await {
            Ok(text) => {
                self.send(worker, text).await;
                None
            }
            Err(error) => {
                tracing::error!(evaluation.id = %self.row.id(), %error, "start_evaluation could not be written");
                let error = format!(
                    "the platform could not send the evaluation: {}",
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
            tracing::warn!(evaluation.id = %self.row.id(), worker.id = %worker, "the worker is away");
        }
    }

    async fn publish(&self, message: ToDashboard, topic: Option<Topic>) {
        let publish = PublishOwned {
            owner: UserId(self.row.owner_id),
            sight: Sight::AsJobs,
            topic,
            text: message.encode().into(),
        };
        // Fails only when the platform stops.
        let _ = self.actors.dashboards.send(publish).await;
    }

    async fn show_progress(&self, done: u64, total: u64) {
        self.progress.set(done, total);
        let message = ToDashboard::EvaluationProgress(EvaluationProgress {
            worker_id: None,
            evaluation_id: self.row.id(),
            data: EvaluationProgressData { done, total },
        });
        let topic = Topic::Evaluation(self.row.id());
        self.publish(message, Some(topic)).await;
    }

    async fn show_end(&self, end: End) {
        let evaluation_id = self.row.id();
        let failed = |error, failure_kind| {
            ToDashboard::EvaluationFailed(EvaluationFailed {
                worker_id: None,
                evaluation_id,
                message_id: None,
                data: EvaluationFailedData {
                    error,
                    failure_kind,
                },
            })
        };
        let message = match end {
            End::Figures(metrics) => ToDashboard::EvaluationCompleted(EvaluationCompleted {
                worker_id: None,
                evaluation_id,
                message_id: None,
                data: EvaluationCompletedData { metrics },
            }),
            End::Failure(failure) => failed(failure.error, Some(failure.kind)),
            End::Cancelled => failed("cancelled".to_owned(), None),
        };
        self.publish(message, None).await;
    }
}

impl Actor for EvaluationActor {
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

impl Handler<Apply> for EvaluationActor {
    type Result = AtomicResponse<Self, Result<Option<Answer>, DatabaseError>>;

    fn handle(&mut self, apply: Apply, _: &mut Context<Self>) -> Self::Result {
        if apply.lease.is_some_and(|lease| !lease.is_current()) {
            return AtomicResponse::new(Box::pin(fut::ready(Ok(None))));
        }
        let applied = self.apply(apply.event);
        AtomicResponse::new(Box::pin(applied.map(|answer, _, _| answer.map(Some))))
    }
}

impl Handler<Happened> for EvaluationActor {
    type Result = AtomicResponse<Self, ()>;

    fn handle(&mut self, Happened(event): Happened, _: &mut Context<Self>) -> Self::Result {
        let again = event.clone();
        AtomicResponse::new(Box::pin(self.apply(event).map(|answer, act, context| {
            if let Err(error) = answer {
                tracing::error!(evaluation.id = %act.row.id(), %error, "what has happened is tried again");
                context.notify_later(Happened(again), RETRY_DELAY);
            }
        })))
    }
}
