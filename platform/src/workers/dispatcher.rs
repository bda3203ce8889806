//! Gives waiting jobs to free workers.
//!
//! 1. Whatever may have changed who waits or who is free pokes the dispatcher.
//! 2. It reads the queue from the database and the free workers from the supervisor, and pairs them by the
//!    rules in [`super::placement`].
//! 3. For each pair: the worker is claimed at the supervisor, so that it cannot be taken twice; the job is
//!    assigned; if that is refused (it was stopped meanwhile), the claim is given back.
//! 4. A poke that comes meanwhile makes it look once more.

use std::collections::BTreeMap;
use std::time::Duration;

use actix::prelude::*;
use trainyard_shared::ids::{JobId, WorkerId};

use super::event::Occupation;
use super::placement::{Abilities, best_for_task, place};
use super::supervisor::{Claim, GetFree, Occupy, Unclaim, Vacate};
use crate::actors::Actors;
use crate::database::DatabaseError;
use crate::evaluations::Evaluations;
use crate::exports::Exports;
use crate::federated::state as federated;
use crate::jobs::actor::GetState;
use crate::jobs::event::{Answer, Event};
use crate::jobs::store;
use crate::tasks::{self, Kind};

/// How long to wait after the queue could not be read.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The actor.
pub struct Dispatcher {
    actors: Actors,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Resting,
    Looking,
    LookingAndPoked,
}

/// Look whether a job can be given to a worker.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Poke;

impl Dispatcher {
    /// A dispatcher that rests.
    pub fn new(actors: Actors) -> Self {
        Self {
            actors,
            state: State::Resting,
        }
    }

    fn look(&mut self, context: &mut Context<Self>) {
        self.state = State::Looking;
        let round = dispatch(self.actors.clone()).into_actor(self);
        context.spawn(round.map(|outcome, dispatcher, context| {
            let poked = dispatcher.state == State::LookingAndPoked;
            dispatcher.state = State::Resting;
            match outcome {
                Ok(()) if poked => dispatcher.look(context),
                Ok(()) => {}
                Err(error) => {
                    tracing::warn!(%error, "the queue could not be read");
                    context.notify_later(Poke, RETRY_DELAY);
                }
            }
        }));
    }
}

async fn dispatch(actors: Actors) -> Result<(), DatabaseError> {
    let Ok(mut free) = actors.supervisor.send(GetFree).await else {
        return Ok(());
    };
    if free.is_empty() {
        return Ok(());
    }
    dispatch_tasks::<Evaluations>(&actors, &mut free).await?;
    dispatch_tasks::<Exports>(&actors, &mut free).await?;
    dispatch_sessions(&actors, &mut free).await;
    let (waiting, shares) = actors.database.read(store::queue).await?;
    for (job, worker) in place(&waiting, &free, &shares) {
        if !matches!(
            actors.supervisor.send(Claim { worker, job }).await,
            Ok(true)
        ) {
            continue;
        }
        match actors.jobs.apply(&actors, job, Event::Assign(worker)).await {
            Ok(Answer::Taken) => {
                tracing::info!(job.id = %job, worker.id = %worker, "job is assigned");
            }
            Ok(not_taken) => {
                tracing::info!(job.id = %job, ?not_taken, "job is not assigned");
                unclaim(&actors, worker, job).await;
            }
            Err(error) => {
                tracing::warn!(job.id = %job, %error, "job could not be assigned");
                // It may be assigned all the same: then the worker is its own.
                let state = actors.jobs.ask(&actors, job, || GetState).await;
                if !state.is_ok_and(|state| state.phase.worker() == Some(worker)) {
                    unclaim(&actors, worker, job).await;
                }
            }
        }
    }
    Ok(())
}

/// Tasks take minutes and go before jobs, each kind in its order.
async fn dispatch_tasks<K: Kind>(
    actors: &Actors,
    free: &mut BTreeMap<WorkerId, Abilities>,
) -> Result<(), DatabaseError> {
    for id in actors.database.read(K::queue).await? {
        let Some(worker) = best_for_task(free, K::can) else {
            return Ok(());
        };
        free.remove(&worker);
        let with = Occupation::Task(id.into());
        if !matches!(
            actors.supervisor.send(Occupy { worker, with }).await,
            Ok(true)
        ) {
            continue;
        }
        let event = tasks::state::Event::Assigned(worker);
        let assigned = K::directory(actors).apply(id, event).await;
        if !matches!(assigned, Ok(tasks::state::Answer::Taken)) {
            tracing::info!(?assigned, "{} {id} is not assigned", K::NOUN);
            vacate(actors, worker, with).await;
        }
    }
    Ok(())
}

/// Federated sessions take the workers that they lack, the oldest first. All that are free at the time are given
/// together, so that they begin with the same round.
async fn dispatch_sessions(actors: &Actors, free: &mut BTreeMap<WorkerId, Abilities>) {
    for (session, seeking) in actors.federated.seeking() {
        let with = Occupation::Session(session);
        let mut given = Vec::new();
        for worker in seeking.choose(free) {
            free.remove(&worker);
            let claimed = actors.supervisor.send(Occupy { worker, with }).await;
            if matches!(claimed, Ok(true)) {
                given.push(worker);
            }
        }
        if given.is_empty() {
            continue;
        }
        tracing::info!(session.id = %session, workers = ?given, "workers are given to a federated session");
        let event = federated::Event::WorkersGiven(given.clone());
        if !actors.federated.apply(session, event).await {
            for worker in given {
                vacate(actors, worker, with).await;
            }
        }
    }
}

/// The claim came to nothing: what occupies the worker was not sent to it.
async fn vacate(actors: &Actors, worker: WorkerId, of: Occupation) {
    let vacate = Vacate {
        worker,
        of,
        said_by_worker: true,
    };
    // Fails only when the platform stops.
    let _ = actors.supervisor.send(vacate).await;
}

async fn unclaim(actors: &Actors, worker: WorkerId, job: JobId) {
    // Fails only when the platform stops.
    let _ = actors.supervisor.send(Unclaim { worker, job }).await;
}

impl Actor for Dispatcher {
    type Context = Context<Self>;
}

impl Handler<Poke> for Dispatcher {
    type Result = ();

    fn handle(&mut self, _: Poke, context: &mut Context<Self>) {
        match self.state {
            State::Resting => self.look(context),
            State::Looking => self.state = State::LookingAndPoked,
            State::LookingAndPoked => {}
        }
    }
}
