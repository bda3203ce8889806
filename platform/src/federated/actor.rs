//! One federated session of workers, alive.
//!
//! 1. An event comes: from the dispatcher, the supervisor, what workers say, or the rounds. The state machine
//!    decides.
//! 2. What changes is written down, then the rounds and dashboards are told, then the workers and the supervisor.
//!    Nothing else is taken in meanwhile; when it cannot be written, nothing has happened, and it is tried again.
//! 3. Results do not come through here: they are checked beside it ([`super::directory`]), and it hears of them.
//! 4. Once the session has ended and its workers are told, the actor ends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use bytestring::ByteString;
use trainyard_shared::ids::WorkerId;

use super::directory::{SharedState, UnderWay};
use super::orders::{self, Orders};
use super::secure::sum;
use super::settings::Settings;
use super::state::masking::{Ask, Attempt, Masking};
use super::state::{Effect, Event, Failed, Failures, Known, Order, Session as State, Stage, Times};
use super::{inbox, store};
use crate::actors::Actors;
use crate::clock::Moment;
use crate::database::{DatabaseError, DbConnection, now};
use crate::rounds::actor::{RoundNews, Trouble};
use crate::rounds::session::Session;
use crate::rounds::state::{Event as RoundEvent, Phase};
use crate::rounds::store::{SessionRow, natural};
use crate::workers::dispatcher::Poke;
use crate::workers::event::Occupation;
use crate::workers::supervisor::{GetWorkers, SendOn, Vacate};
use crate::{datasets, rounds};

/// Between two tries to take in what has happened.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Timers may fire a little early.
const TIMER_GRAIN: Duration = Duration::from_millis(2);
/// Messages that may wait.
const MAILBOX: usize = 1_024;

/// The actor.
pub struct FederatedSession {
    actors: Actors,
    rounds: Arc<Session>,
    settings: Arc<Settings>,
    state: State,
    shared: SharedState,
    due: Option<(Moment, SpawnHandle)>,
}

/// This has happened; it is tried again when it cannot be written down.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Happened(pub Event);

/// Starts a session that was prepared, as it stands in the database: its rounds, its workers, and whatever is due.
///
/// # Errors
/// Those of the database.
pub async fn start(actors: &Actors, row: &SessionRow) -> Result<(), DatabaseError> {
    let id = row.id();
    let settings = Arc::new(Settings::of(row)?);
    let settings_read = settings.clone();
    let read = move |c: &mut _| {
        Ok((
            store::workers(c, id)?,
            store::times(c, id)?,
            store::revealed_round(c, id)?,
            shard_rows(c, &settings_read)?,
        ))
    };
    let (known, times, revealed_round, shard_rows) =
        actors.database.read::<_, DatabaseError, _>(read).await?;
    let (give, given) = tokio::sync::oneshot::channel();
    let (run, to_run) = tokio::sync::oneshot::channel::<FederatedSession>();
    let spawned = actors.arbiter.spawn_fn(move || {
        let context = Context::<FederatedSession>::new();
        // Only fails when whoever started it has given up.
        let _ = give.send(context.address());
        actix::spawn(async move {
            if let Ok(actor) = to_run.await {
                context.run(actor);
            }
        });
    });
    if !spawned {
        return Err(DatabaseError::Stopped);
    }
    let actor = given.await.map_err(|_| DatabaseError::Stopped)?;
    let rounds = rounds::actor::start(actors, id, Some(actor.clone().recipient())).await?;
    let (stage, round, results) = {
        let live = rounds.live();
        let stage = match live.rounds.phase() {
            Phase::Open => Stage::Open,
            Phase::Merging => Stage::Merging,
            Phase::Finished | Phase::Stopped => Stage::Ended,
        };
        let results: BTreeSet<WorkerId> = live
            .rounds
            .results()
            .keys()
            .filter_map(|name| store::worker(name))
            .collect();
        (stage, live.rounds.round(), results)
    };
    // The number of no attempt that was made before: a worker that kept keys must not take it for that one.
    let masking = settings.masking_rules().map(|rules| {
        let first = u64::from(rand::random::<u32>()) << 20;
        Masking::new(rules, first, revealed_round == Some(round))
    });
    let known = Known {
        stage,
        round,
        results,
        members: known.members,
        shards: known.shards,
        failures: Failures::new(known.failures),
        times,
    };
    let state = State::new(settings.of_state(), masking, known, actors.clock.now());
    let shared = SharedState::new(state.clone());
    actors.federated.add(
        id,
        UnderWay {
            actor,
            rounds: rounds.clone(),
            workers: shared.clone(),
            shard_rows: Arc::new(shard_rows),
        },
    );
    let session = FederatedSession {
        actors: actors.clone(),
        rounds,
        settings,
        state,
        shared,
        due: None,
    };
    run.send(session).map_err(|_| DatabaseError::Stopped)
}

/// Rows of each shard.
fn shard_rows(
    connection: &mut DbConnection,
    settings: &Settings,
) -> Result<Vec<u64>, DatabaseError> {
    let mut rows = BTreeMap::new();
    for id in &settings.dataset_ids {
        let dataset = datasets::store::get(connection, id.get())?;
        rows.insert(*id, natural(dataset.row_count));
    }
    let of_shard = |shard| settings.shard_rows(shard, rows[&settings.part(shard).0]);
    Ok((0..settings.shards).map(of_shard).collect())
}

impl FederatedSession {
    fn happen(&mut self, event: Event) -> ResponseActFuture<Self, Result<(), Trouble>> {
        let now = self.actors.clock.now();
        let mut next = self.state.clone();
        let effects = next.apply(event, now);
        let is_over = next.has_ended();
        let carrying = Carrying {
            actors: self.actors.clone(),
            rounds: self.rounds.clone(),
            settings: self.settings.clone(),
            shared: self.shared.clone(),
            next: next.clone(),
        };
        Box::pin(
            async move { carrying.carry_out(effects).await }
                .into_actor(self)
                .map(move |carried, session, context| {
                    carried?;
                    session.state = next;
                    if is_over {
                        session.actors.federated.retire(session.rounds.id());
                        context.stop();
                    } else {
                        session.schedule(context);
                    }
                    Ok(())
                }),
        )
    }

    /// Nothing else is taken in before this has happened: a worker that was lost may be given to the session again
    /// meanwhile, and must not be taken for lost after that.
    fn happen_at_last(&mut self, event: Event) -> ResponseActFuture<Self, ()> {
        let again = event.clone();
        Box::pin(self.happen(event).then(move |done, session, _| {
            let rest: ResponseActFuture<Self, ()> = match done {
                Ok(()) => Box::pin(fut::ready(())),
                Err(error) => {
                    tracing::error!(session.id = %session.rounds.id(), %error, "what has happened is tried again");
                    let wait = actix::clock::sleep(RETRY_DELAY).into_actor(session);
                    Box::pin(wait.then(move |(), session, _| session.happen_at_last(again)))
                }
            };
            rest
        }))
    }

    fn schedule(&mut self, context: &mut Context<Self>) {
        let next = self.state.next_due();
        if self.due.as_ref().map(|(at, _)| *at) == next {
            return;
        }
        if let Some((_, handle)) = self.due.take() {
            context.cancel_future(handle);
        }
        if let Some(at) = next {
            let wait = at.since(self.actors.clock.now()) + TIMER_GRAIN;
            let handle = context.run_later(wait, |session, context| {
                session.due = None;
                context.notify(Happened(Event::TimePassed));
            });
            self.due = Some((at, handle));
        }
    }
}

/// What is written down of a session's workers.
enum Noted {
    Joins(WorkerId, u64),
    Leaves(WorkerId),
    Failed(WorkerId, Option<Failed>),
    Times(Times),
    Revealing(u64),
}

/// Effects on their way.
struct Carrying {
    actors: Actors,
    rounds: Arc<Session>,
    settings: Arc<Settings>,
    shared: SharedState,
    next: State,
}

impl Carrying {
    /// What can fail comes first: until it has been carried out nothing was told to anybody.
    async fn carry_out(self, effects: Vec<Effect>) -> Result<(), Trouble> {
        self.write_down(&effects).await?;
        for effect in &effects {
            match *effect {
                Effect::Expect(enough) => {
                    let at_least = self.rounds.live().rounds.rules().at_least;
                    let event = RoundEvent::Expected { enough, at_least };
                    self.rounds.apply(event).await?;
                }
                Effect::Deadline(deadline) => {
                    self.rounds
                        .apply(RoundEvent::DeadlineMoved(deadline))
                        .await?;
                }
                _ => {}
            }
        }
        // Whoever is told may answer at once.
        self.shared.set(self.next.clone());
        for effect in effects {
            match effect {
                Effect::Join(..) | Effect::Leave(_) => {}
                Effect::NoteFailures(_) | Effect::NoteTimes | Effect::NoteRevealing => {}
                Effect::Expect(_) | Effect::Deadline(_) => {}
                Effect::Show => self.show().await,
                Effect::Order(worker, order) => self.order(worker, order).await,
                Effect::Ask(worker, ask) => self.ask(worker, ask).await,
                Effect::Sum => self.sum(),
                Effect::CloseUnchanged(workers) => {
                    let (actors, rounds) = (self.actors.clone(), self.rounds.clone());
                    let closing = sum::close_unchanged(actors, rounds, self.next.round(), workers);
                    actix::spawn(closing);
                }
                Effect::Stop(worker) => {
                    self.send(worker, orders::stop(self.rounds.id())).await;
                }
                Effect::Release(worker) => self.release(worker).await,
                // A full mailbox means that the dispatcher is about to look anyway.
                Effect::SeekWorkers => _ = self.actors.dispatcher.try_send(Poke),
            }
        }
        if self.next.has_ended() {
            inbox::empty(&self.actors, self.rounds.id()).await;
        }
        Ok(())
    }

    async fn write_down(&self, effects: &[Effect]) -> Result<(), DatabaseError> {
        let id = self.rounds.id();
        let (mut joined, mut changes) = (Vec::new(), Vec::new());
        for effect in effects {
            changes.push(match *effect {
                Effect::Join(worker, shard) => {
                    joined.push((worker, shard));
                    Noted::Joins(worker, shard)
                }
                Effect::Leave(worker) => Noted::Leaves(worker),
                Effect::NoteFailures(worker) => {
                    Noted::Failed(worker, self.next.failures().of(worker).cloned())
                }
                Effect::NoteTimes => Noted::Times(self.next.times().clone()),
                Effect::NoteRevealing => Noted::Revealing(self.next.round()),
                _ => continue,
            });
        }
        if changes.is_empty() {
            return Ok(());
        }
        self.actors
            .database
            .write::<_, DatabaseError, _>(move |c| {
                for change in changes {
                    match change {
                        Noted::Joins(worker, shard) => store::join(c, id, worker, shard, now())?,
                        Noted::Leaves(worker) => store::leave(c, id, worker)?,
                        Noted::Failed(worker, failed) => {
                            store::note_failures(c, id, worker, failed.as_ref())?;
                        }
                        Noted::Times(times) => store::note_times(c, id, &times)?,
                        Noted::Revealing(round) => store::note_revealing(c, id, round)?,
                    }
                }
                Ok(())
            })
            .await?;
        for (worker, shard) in joined {
            let name = store::participant(worker);
            self.rounds.participants.has_joined(&name, shard);
        }
        Ok(())
    }

    /// Tells dashboards why it waits, where that has changed; what became of rounds they are told by those.
    async fn show(&self) {
        let is_open = self.rounds.live().rounds.phase() == Phase::Open;
        if self.rounds.explain(self.next.waiting_because()) && is_open {
            rounds::news::publish(&self.actors, &self.rounds, false).await;
        }
    }

    async fn order(&self, worker: WorkerId, order: Order) {
        let id = self.rounds.id();
        let Some(member) = self.next.members().get(&worker) else {
            return;
        };
        let orders = Orders::new(&self.actors, &self.rounds, self.next.deadline());
        let texts = match order {
            Order::GoOn => orders.go_on(worker).to_vec(),
            Order::Start => match orders.start(&self.settings, worker, member.shard).await {
                Ok(text) => vec![text],
                Err(error) => {
                    tracing::error!(session.id = %id, %error, "start_federated_training could not be written");
                    return;
                }
            },
        };
        tracing::info!(session.id = %id, worker.id = %worker, round = self.next.round(), "worker is asked for a result");
        for text in texts {
            self.send(worker, text).await;
        }
    }

    /// Asks a worker for its part in the sum of the round's results.
    async fn ask(&self, worker: WorkerId, ask: Ask) {
        let attempt = self.next.masking().and_then(Masking::attempt);
        let Some(attempt) = attempt else { return };
        let orders = Orders::new(&self.actors, &self.rounds, None);
        match orders.ask(worker, ask, attempt) {
            Ok(text) => self.send(worker, text).await,
            Err(error) => {
                tracing::error!(session.id = %self.rounds.id(), ?ask, %error, "a worker cannot be asked");
            }
        }
    }

    /// Reads the sum beside the actor; what becomes of it comes back as news of the rounds, or as an event.
    fn sum(&self) {
        let attempt = self.next.masking().and_then(Masking::attempt);
        let Some(to_sum) = attempt.and_then(Attempt::to_sum) else {
            return;
        };
        let tells_loss = self.settings.tells_loss();
        let (actors, rounds) = (self.actors.clone(), self.rounds.clone());
        let reading = sum::read(actors, rounds, self.next.round(), to_sum, tells_loss);
        actix::spawn(reading);
    }

    /// A worker that is away is told when it comes back.
    async fn send(&self, worker: WorkerId, text: ByteString) {
        let link = None;
        let sent = self.actors.supervisor.send(SendOn { worker, link, text });
        if !sent.await.unwrap_or(false) {
            tracing::warn!(session.id = %self.rounds.id(), worker.id = %worker, "the worker is away");
        }
    }

    async fn release(&self, worker: WorkerId) {
        let vacate = Vacate {
            worker,
            of: Occupation::Session(self.rounds.id()),
            said_by_worker: false,
        };
        // Fails only when the platform stops.
        let _ = self.actors.supervisor.send(vacate).await;
    }
}

/// Workers that are to be given nothing new.
async fn draining(actors: &Actors) -> BTreeSet<WorkerId> {
    let seen = actors.supervisor.send(GetWorkers).await.unwrap_or_default();
    seen.into_iter()
        .filter(|(_, seen)| seen.view.draining)
        .map(|(worker, _)| worker)
        .collect()
}

/// What news of the rounds mean to the workers.
async fn event_of(actors: &Actors, news: RoundNews) -> Event {
    match news {
        RoundNews::Opened { round, .. } => Event::RoundOpened {
            round,
            draining: draining(actors).await,
        },
        RoundNews::Closing { .. } => Event::RoundClosing,
        RoundNews::Reopened { without, .. } => {
            let workers = without.iter().filter_map(|name| store::worker(name));
            Event::RoundReopened(workers.collect())
        }
        RoundNews::Ended => Event::Ended,
    }
}

impl Actor for FederatedSession {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        context.set_mailbox_capacity(MAILBOX);
        let event = match self.state.has_ended() {
            true => Event::Ended,
            false => Event::TimePassed,
        };
        context.notify(Happened(event));
        // A full mailbox means that the dispatcher is about to look anyway.
        let _ = self.actors.dispatcher.try_send(Poke);
    }
}

impl Handler<Happened> for FederatedSession {
    type Result = AtomicResponse<Self, ()>;

    fn handle(&mut self, Happened(event): Happened, _: &mut Context<Self>) -> Self::Result {
        AtomicResponse::new(self.happen_at_last(event))
    }
}

impl Handler<RoundNews> for FederatedSession {
    type Result = AtomicResponse<Self, ()>;

    fn handle(&mut self, news: RoundNews, _: &mut Context<Self>) -> Self::Result {
        let actors = self.actors.clone();
        let event = async move { event_of(&actors, news).await };
        AtomicResponse::new(Box::pin(event.into_actor(self).map(|event, _, context| {
            context.notify(Happened(event));
        })))
    }
}
