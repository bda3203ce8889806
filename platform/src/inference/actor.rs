//! One inference request, alive.
//!
//! 1. It puts itself into the router's queue, and waits to be given to a worker.
//! 2. An event comes; the state machine decides.
//! 3. What there is to show goes into the record, which HTTP responses read, and to dashboards; only then
//!    workers and the router are told. Nothing else is taken in meanwhile.
//! 4. When the request has ended the actor ends; its record is kept for a while.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use bytestring::ByteString;
use chrono::Utc;
use trainyard_shared::FinishReason;
use trainyard_shared::ids::WorkerId;
use trainyard_shared::message::{
    InferenceCompleted, InferenceCompletedData, InferenceFailed, InferenceFailedData,
    InferenceTokens, InferenceTokensData, ToDashboard,
};

use super::orders;
use super::placement::{ModelKey, WaitingRequest};
use super::record::Record;
use super::router::{Enqueue, Free, LeaveQueue};
use super::state::{Answer, Effect, Event, Failure, InferenceTiming, Phase, RequestState};
use crate::actors::Actors;
use crate::clock::Moment;
use crate::dashboards::hub::{PublishOwned, Sight};
use crate::workers::event::Generation;
use crate::workers::lease::Lease;
use crate::workers::supervisor::SendOn;

/// Messages that may wait.
const MAILBOX: usize = 256;

/// The actor.
pub struct InferenceActor {
    actors: Actors,
    record: Arc<Record>,
    state: RequestState,
    timing: InferenceTiming,
    /// The connection on which the present attempt was sent.
    link: Option<(WorkerId, Generation)>,
    deadline: Option<(Moment, SpawnHandle)>,
}

/// Let this happen to the request.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Happened(pub Event);

/// The request is given to a worker.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Placed {
    /// The worker.
    pub worker: WorkerId,
    /// Its connection.
    pub link: Generation,
}

/// A worker's connection is gone.
#[derive(Message)]
#[rtype(result = "()")]
pub struct LinkLost {
    /// The worker.
    pub worker: WorkerId,
    /// The connection.
    pub link: Generation,
}

/// A worker says something of the request. Nothing is answered when its connection does not count any more.
#[derive(Message)]
#[rtype(result = "Option<Answer>")]
pub struct Say {
    /// Its right to be heard.
    pub lease: Lease,
    /// What it says.
    pub event: Event,
}

impl InferenceActor {
    /// The actor of a request that has just been made.
    pub fn new(actors: Actors, record: Arc<Record>) -> Self {
        let timing = InferenceTiming {
            queue_timeout: actors.config.inference_queue_timeout,
            silence_timeout: actors.config.inference_timeout,
        };
        let state = RequestState::new(actors.clock.now(), &timing);
        Self {
            actors,
            record,
            state,
            timing,
            link: None,
            deadline: None,
        }
    }

    fn apply(&mut self, event: Event) -> ResponseActFuture<Self, Answer> {
        let now = self.actors.clock.now();
        let (answer, effects) = self.state.apply(event, now, &self.timing);
        let state = &self.state;
        let (phase, owners) = (state.phase, state.owners.clone());
        let waits_because = state.waits_because.clone();
        self.record.change(|shown| {
            if let (Phase::Running(_), Phase::Waiting) = (phase, shown.phase) {
                shown.started_at = Some(Utc::now());
            }
            // The end is shown with what belongs to it.
            if !phase.is_ended() {
                shown.phase = phase;
            }
            shown.owners = owners;
            shown.waits_because = waits_because;
        });
        let carrying = Carrying {
            actors: self.actors.clone(),
            record: self.record.clone(),
            actor: None,
            link: self.link,
        };
        Box::pin(
            async move { carrying.carry_out(effects).await }
                .into_actor(self)
                .map(move |gone, request, context| {
                    if let Some(worker) = gone {
                        context.notify(Happened(Event::WorkerGone(worker)));
                    }
                    request.schedule(context);
                    if request.state.phase.is_ended() {
                        request.actors.inferences.retire(&request.record);
                        context.stop();
                    }
                    answer
                }),
        )
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
            let wait = at.since(self.actors.clock.now()) + TIMER_GRAIN;
            let handle = context.run_later(wait, |request, context| {
                request.deadline = None;
                context.notify(Happened(Event::DeadlinePassed));
            });
            self.deadline = Some((at, handle));
        }
    }
}

/// Timers may fire a little early.
const TIMER_GRAIN: Duration = Duration::from_millis(2);

/// Effects on their way.
struct Carrying {
    actors: Actors,
    record: Arc<Record>,
    actor: Option<Addr<InferenceActor>>,
    link: Option<(WorkerId, Generation)>,
}

impl Carrying {
    /// Gives the worker that turned out to be gone.
    async fn carry_out(self, effects: Vec<Effect>) -> Option<WorkerId> {
        let mut gone = None;
        for effect in effects {
            match effect {
                Effect::Show(tokens) => self.show_tokens(tokens).await,
                Effect::ShowCompleted(data) => self.show_completed(data).await,
                Effect::ShowFailed(failure) => self.show_failed(failure).await,
                Effect::ShowCancelled => self.show_cancelled().await,
                Effect::Enqueue => self.enqueue().await,
                Effect::LeaveQueue => {
                    let leave = LeaveQueue(self.record.id.clone());
                    // Fails only when the platform stops; so do the following.
                    let _ = self.actors.router.send(leave).await;
                }
                Effect::Start(worker, attempt) => {
                    let (id, request) = (&self.record.id, &self.record.request);
                    let storage = self.actors.storage.as_ref();
                    let text = orders::start_text(id, attempt, request, storage);
                    tracing::info!(
                        inference.id = %id, inference.attempt = attempt, worker.id = %worker,
                        model = request.target.name(), "inference is given to a worker"
                    );
                    if !self.send(worker, text).await {
                        gone = Some(worker);
                    }
                }
                Effect::Stop(worker, attempt) => {
                    let text = orders::stop_text(&self.record.id, attempt);
                    // A worker that is gone has nothing left to stop that anybody would see.
                    let _ = self.send(worker, text).await;
                }
                Effect::Free(worker) => {
                    let request = self.record.id.clone();
                    let _ = self.actors.router.send(Free { worker, request }).await;
                }
            }
        }
        gone
    }

    async fn enqueue(&self) {
        let Some(actor) = self
            .actor
            .clone()
            .or_else(|| self.actors.inferences.actor(&self.record.id))
        else {
            return;
        };
        let target = &self.record.request.target;
        let enqueue = Enqueue {
            request: WaitingRequest {
                id: self.record.id.clone(),
                model: ModelKey {
                    base_model: target.base_model.clone(),
                    adapter: target.job(),
                },
            },
            actor,
        };
        let _ = self.actors.router.send(enqueue).await;
    }

    async fn send(&self, worker: WorkerId, text: ByteString) -> bool {
        let link = self.link.filter(|(of, _)| *of == worker);
        let link = link.map(|(_, link)| link);
        let send = SendOn { worker, link, text };
        self.actors.supervisor.send(send).await.unwrap_or(false)
    }

    async fn publish(&self, message: ToDashboard) {
        let publish = PublishOwned {
            owner: self.record.owner,
            sight: Sight::Private,
            topic: None,
            text: message.encode().into(),
        };
        let _ = self.actors.dashboards.send(publish).await;
    }

    async fn show_tokens(&self, tokens: Vec<String>) {
        self.record.add_tokens(&tokens);
        self.publish_tokens(tokens).await;
    }

    async fn publish_tokens(&self, tokens: Vec<String>) {
        self.publish(ToDashboard::InferenceTokens(InferenceTokens {
            worker_id: None,
            inference_id: self.record.id.clone(),
            data: InferenceTokensData { tokens },
        }))
        .await;
    }

    async fn show_completed(&self, mut data: InferenceCompletedData) {
        let rest = self.record.complete(&data);
        if let Some(rest) = rest.filter(|_| self.record.request.stream) {
            self.publish_tokens(vec![rest]).await;
        }
        data.text = Some(self.record.shown().text);
        tracing::info!(
            inference.id = %self.record.id, tokens = data.tokens_generated, "inference completed"
        );
        self.publish_completed(data).await;
    }

    async fn publish_completed(&self, data: InferenceCompletedData) {
        self.publish(ToDashboard::InferenceCompleted(InferenceCompleted {
            worker_id: None,
            inference_id: self.record.id.clone(),
            message_id: None,
            data,
        }))
        .await;
    }

    async fn show_cancelled(&self) {
        self.record.change(|shown| {
            shown.phase = Phase::Cancelled;
            shown.finish_reason = Some(FinishReason::Cancelled);
            shown.ended_at = Some(Utc::now());
        });
        let shown = self.record.shown();
        tracing::info!(inference.id = %self.record.id, "inference is cancelled");
        let data = InferenceCompletedData {
            tokens_generated: Some(shown.tokens()),
            text: Some(shown.text),
            finish_reason: Some(FinishReason::Cancelled),
            ..InferenceCompletedData::default()
        };
        self.publish_completed(data).await;
    }

    async fn show_failed(&self, failure: Failure) {
        tracing::warn!(inference.id = %self.record.id, error = failure.error, "inference failed");
        let error = failure.error.clone();
        self.record.change(|shown| {
            shown.phase = Phase::Failed;
            shown.failure = Some(failure);
            shown.ended_at = Some(Utc::now());
        });
        self.publish(ToDashboard::InferenceFailed(InferenceFailed {
            worker_id: None,
            inference_id: self.record.id.clone(),
            message_id: None,
            data: InferenceFailedData {
                error,
                failure_kind: None,
            },
        }))
        .await;
    }
}

impl Actor for InferenceActor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        context.set_mailbox_capacity(MAILBOX);
        self.schedule(context);
        let carrying = Carrying {
            actors: self.actors.clone(),
            record: self.record.clone(),
            actor: Some(context.address()),
            link: None,
        };
        let queued = async move { carrying.enqueue().await };
        context.wait(queued.into_actor(self).map(|(), _, _| ()));
    }
}

impl Handler<Happened> for InferenceActor {
    type Result = AtomicResponse<Self, ()>;

    fn handle(&mut self, Happened(event): Happened, _: &mut Context<Self>) -> Self::Result {
        AtomicResponse::new(Box::pin(self.apply(event).map(|_, _, _| ())))
    }
}

impl Handler<Placed> for InferenceActor {
    type Result = AtomicResponse<Self, ()>;

    fn handle(&mut self, placed: Placed, _: &mut Context<Self>) -> Self::Result {
        if self.state.phase == Phase::Waiting {
            self.link = Some((placed.worker, placed.link));
        }
        let event = Event::Placed(placed.worker);
        AtomicResponse::new(Box::pin(self.apply(event).map(|_, _, _| ())))
    }
}

impl Handler<LinkLost> for InferenceActor {
    type Result = AtomicResponse<Self, ()>;

    fn handle(&mut self, lost: LinkLost, _: &mut Context<Self>) -> Self::Result {
        if self.link != Some((lost.worker, lost.link)) {
            return AtomicResponse::new(Box::pin(fut::ready(())));
        }
        let event = Event::WorkerGone(lost.worker);
        AtomicResponse::new(Box::pin(self.apply(event).map(|_, _, _| ())))
    }
}

impl Handler<Say> for InferenceActor {
    type Result = AtomicResponse<Self, Option<Answer>>;

    fn handle(&mut self, say: Say, _: &mut Context<Self>) -> Self::Result {
        if !say.lease.is_current() {
            return AtomicResponse::new(Box::pin(fut::ready(None)));
        }
        AtomicResponse::new(Box::pin(
            self.apply(say.event).map(|answer, _, _| Some(answer)),
        ))
    }
}
