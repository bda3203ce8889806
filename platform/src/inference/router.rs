//! Gives waiting inference requests to workers.
//!
//! 1. A request puts itself at the end of the queue.
//! 2. Whatever may have changed who has room makes the router look: it asks the supervisor for the workers, and
//!    pairs by the rules in [`super::placement`].
//! 3. Those that could not be placed are told why they wait.
//! 4. When a worker's connection is gone, its requests are told.
//!
//! Known gap: a worker under steady inference is never idle, so a training job that could only run there waits.

use std::collections::{BTreeMap, HashMap, VecDeque};

use actix::prelude::*;
use trainyard_shared::ids::{InferenceId, WorkerId};

use super::actor::{Happened, InferenceActor, LinkLost, Placed};
use super::placement::{Candidate, Load, WaitingRequest, outlook, place};
use super::state::Event;
use crate::actors::Actors;
use crate::workers::event::Generation;
use crate::workers::supervisor::{GetCandidates, SetServing};

/// Messages that may wait.
const MAILBOX: usize = 16_384;

/// The actor.
pub struct InferenceRouter {
    actors: Actors,
    waiting: VecDeque<(WaitingRequest, Addr<InferenceActor>)>,
    workers: BTreeMap<WorkerId, Serving>,
    state: State,
}

/// What one worker has been given.
#[derive(Default)]
struct Serving {
    running: HashMap<InferenceId, Addr<InferenceActor>>,
    load: Load,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Resting,
    Looking,
    LookingAndPoked,
}

/// A request waits for a worker.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Enqueue {
    /// The request.
    pub request: WaitingRequest,
    /// Its actor.
    pub actor: Addr<InferenceActor>,
}

/// A request waits no longer.
#[derive(Message)]
#[rtype(result = "()")]
pub struct LeaveQueue(pub InferenceId);

/// A request is not with the worker any more.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Free {
    /// The worker.
    pub worker: WorkerId,
    /// The request.
    pub request: InferenceId,
}

/// Look whether a request can be given to a worker.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Poke;

/// A worker's connection is gone.
#[derive(Message)]
#[rtype(result = "()")]
pub struct LinkGone {
    /// The worker.
    pub worker: WorkerId,
    /// The connection.
    pub link: Generation,
}

impl InferenceRouter {
    /// A router that rests.
    pub fn new(actors: Actors) -> Self {
        Self {
            actors,
            waiting: VecDeque::new(),
            workers: BTreeMap::new(),
            state: State::Resting,
        }
    }

    fn poke(&mut self, context: &mut Context<Self>) {
        match self.state {
            State::Resting => self.look(context),
            State::Looking => self.state = State::LookingAndPoked,
            State::LookingAndPoked => {}
        }
    }

    fn look(&mut self, context: &mut Context<Self>) {
        if self.waiting.is_empty() {
            return;
        }
        self.state = State::Looking;
        let asking = self.actors.supervisor.send(GetCandidates);
        context.spawn(asking.into_actor(self).map(|known, router, context| {
            let poked = router.state == State::LookingAndPoked;
            router.state = State::Resting;
            // Fails only when the platform stops.
            if let Ok(candidates) = known {
                router.place(&candidates);
                if poked {
                    router.look(context);
                }
            }
        }));
    }

    fn place(&mut self, candidates: &BTreeMap<WorkerId, Candidate>) {
        let requests: Vec<_> = self.waiting.iter().map(|(one, _)| one.clone()).collect();
        let loads = self.workers.iter().map(|(id, one)| (*id, one.load.clone()));
        let placed = place(&requests, candidates, &loads.collect());
        for (id, worker, link) in placed {
            let found = self.waiting.iter().position(|(one, _)| one.id == id);
            let Some((request, actor)) = found.and_then(|index| self.waiting.remove(index)) else {
                continue;
            };
            // One whose mailbox is closed has ended.
            if actor.try_send(Placed { worker, link }).is_ok() {
                let serving = self.workers.entry(worker).or_default();
                serving.load.add(&request.model);
                serving.running.insert(request.id, actor);
                self.show(worker);
            }
        }
        if self.waiting.is_empty() {
            return;
        }
        let (reason, prospect) = outlook(candidates);
        for (_, actor) in &self.waiting {
            let reason = reason.clone();
            // A full mailbox has something better in it.
            let _ = actor.try_send(Happened(Event::NotPlaced { reason, prospect }));
        }
    }

    /// Tells the supervisor how much a worker has to do.
    fn show(&self, worker: WorkerId) {
        let requests = self.workers.get(&worker).map_or(0, |one| one.load.running);
        let serving = SetServing { worker, requests };
        if let Err(error) = self.actors.supervisor.try_send(serving) {
            tracing::warn!(worker.id = %worker, %error, "what a worker serves is shown late");
        }
    }
}

impl Actor for InferenceRouter {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        context.set_mailbox_capacity(MAILBOX);
    }
}

impl Handler<Enqueue> for InferenceRouter {
    type Result = ();

    fn handle(&mut self, enqueue: Enqueue, context: &mut Context<Self>) {
        self.waiting.push_back((enqueue.request, enqueue.actor));
        self.poke(context);
    }
}

impl Handler<LeaveQueue> for InferenceRouter {
    type Result = ();

    fn handle(&mut self, LeaveQueue(id): LeaveQueue, _: &mut Context<Self>) {
        self.waiting.retain(|(request, _)| request.id != id);
    }
}

impl Handler<Free> for InferenceRouter {
    type Result = ();

    fn handle(&mut self, free: Free, context: &mut Context<Self>) {
        if let Some(serving) = self.workers.get_mut(&free.worker)
            && serving.running.remove(&free.request).is_some()
        {
            serving.load.running = serving.running.len();
            self.show(free.worker);
        }
        self.poke(context);
    }
}

impl Handler<Poke> for InferenceRouter {
    type Result = ();

    fn handle(&mut self, _: Poke, context: &mut Context<Self>) {
        self.poke(context);
    }
}

impl Handler<LinkGone> for InferenceRouter {
    type Result = ();

    fn handle(&mut self, LinkGone { worker, link }: LinkGone, context: &mut Context<Self>) {
        if let Some(serving) = self.workers.get(&worker) {
            for actor in serving.running.values() {
                // It frees its place itself.
                let lost = LinkLost { worker, link };
                if let Err(SendError::Full(lost)) = actor.try_send(lost) {
                    let actor = actor.clone();
                    actix::spawn(async move {
                        let _ = actor.send(lost).await;
                    });
                }
            }
        }
        self.poke(context);
    }
}
