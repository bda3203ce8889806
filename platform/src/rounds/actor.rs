//! The rounds of one session, alive.
//!
//! 1. An event comes; the state machine decides.
//! 2. What changes is written down, then made for all to see, then told. Nothing else is taken in meanwhile; when
//!    it cannot be written, nothing has happened. Where the outcome of a write is not known, the state is loaded
//!    anew before the next event.
//! 3. A closed round is merged beside the actor; the outcome comes back as an event. Files are stored before the
//!    row that names them is committed.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use trainyard_shared::ids::FederatedSessionId;

use super::leftovers::{remove_merged, sweep};
use super::merging::{MergeFailure, Merging};
use super::news;
use super::participants::Participants;
use super::recording::{Written, load, make, reload, write_down};
use super::session::{Contribution, Session};
use super::state::{Answer, Change, Decision, Event, Phase};
use super::store::{Outcome, ResultRow, integer, natural};
use crate::actors::Actors;
use crate::clock::Moment;
use crate::database::{DatabaseError, now};
use crate::storage::{StorageError, StoredObject};

/// So often a result that cannot be read is tried before the round goes on without it.
const TRIES_TO_READ: u32 = 3;
/// Between two tries to do what could not be done.
const RETRY_DELAY: Duration = Duration::from_secs(2);
/// How often what was counted in memory is written down.
const FLUSH_INTERVAL: Duration = Duration::from_secs(5);
/// Timers may fire a little early.
const TIMER_GRAIN: Duration = Duration::from_millis(2);
/// Messages that may wait.
const MAILBOX: usize = 1_024;

/// The actor.
pub struct RoundActor {
    actors: Actors,
    session: Arc<Session>,
    listener: Option<Recipient<RoundNews>>,
    deadline: Option<(Moment, SpawnHandle)>,
    is_merging: bool,
    /// Merges of the round that have failed because a result could not be read.
    unreadable: u32,
    /// The outcome of a write is not known.
    is_doubtful: bool,
}

/// What whoever runs a session is told of it.
#[derive(Debug, Clone, PartialEq, Eq, Message)]
#[rtype(result = "()")]
pub enum RoundNews {
    /// A round is open, with this global adapter.
    Opened {
        /// The round, from 0.
        round: u64,
        /// The global adapter.
        weights: StoredObject,
    },
    /// The round takes no more results.
    Closing {
        /// The round, from 0.
        round: u64,
    },
    /// The round is open again: these results could not be merged.
    Reopened {
        /// The round, from 0.
        round: u64,
        /// Whose they were.
        without: Vec<String>,
    },
    /// The session has ended, finished or stopped.
    Ended,
}

/// Take this result, which was checked and is stored.
#[derive(Message)]
#[rtype(result = "Result<Answer, DatabaseError>")]
pub(super) struct Take {
    pub(super) participant: String,
    pub(super) round: u64,
    pub(super) number: i64,
    pub(super) content: StoredObject,
    pub(super) delta_norm: f64,
    pub(super) weight: u64,
    pub(super) loss: Option<f64>,
}

/// Take the mean of these results, which is stored.
#[derive(Message)]
#[rtype(result = "Result<Answer, DatabaseError>")]
pub(super) struct TakeMean {
    pub(super) round: u64,
    /// Number of the mean's file.
    pub(super) number: i64,
    pub(super) of: Vec<Contribution>,
    pub(super) loss: Option<f64>,
}

/// Let this happen.
#[derive(Message)]
#[rtype(result = "Result<Answer, Trouble>")]
pub(super) struct Apply(pub(super) Event);

/// The session is deleted.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Retire;

/// This has happened; it is tried again when it cannot be written down.
#[derive(Message, Clone)]
#[rtype(result = "()")]
struct Happened(Event);

/// The merge has ended.
#[derive(Message)]
#[rtype(result = "()")]
struct MergeEnded {
    round: u64,
    outcome: Result<Outcome, MergeFailure>,
}

/// Why nothing has happened.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// The database.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The object store, or the disk for files on their way.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl From<Trouble> for crate::error::ApiError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Database(error) => error.into(),
            Trouble::Storage(error) => error.into(),
        }
    }
}

/// Starts the actor of a session that was prepared, as it stands in the database.
///
/// # Errors
/// Those of the database.
pub async fn start(
    actors: &Actors,
    id: FederatedSessionId,
    listener: Option<Recipient<RoundNews>>,
) -> Result<Arc<Session>, DatabaseError> {
    let loaded = load(actors, id).await?;
    sweep(actors, id, &loaded.live).await;
    let (give, given) = tokio::sync::oneshot::channel();
    let of_actor = actors.clone();
    let spawned = actors.arbiter.spawn_fn(move || {
        let context = Context::<RoundActor>::new();
        let participants = Participants::new(
            id,
            of_actor.database.clone(),
            of_actor.clock,
            natural(loaded.row.shard_count),
            loaded.participants,
        );
        let session = Arc::new(Session::new(
            loaded.row,
            loaded.shards,
            participants,
            loaded.live,
            context.address(),
        ));
        context.run(RoundActor {
            actors: of_actor,
            session: session.clone(),
            listener,
            deadline: None,
            is_merging: false,
            unreadable: 0,
            is_doubtful: false,
        });
        // Only fails when whoever started it has given up.
        let _ = give.send(session);
    });
    if !spawned {
        return Err(DatabaseError::Stopped);
    }
    given.await.map_err(|_| DatabaseError::Stopped)
}

impl RoundActor {
    fn id(&self) -> FederatedSessionId {
        self.session.id()
    }

    /// Decides, writes down, makes and tells.
    fn happen(
        &mut self,
        event: Event,
        written: Written,
    ) -> ResponseActFuture<Self, Result<Answer, Trouble>> {
        let (actors, session) = (self.actors.clone(), self.session.clone());
        let is_doubtful = self.is_doubtful;
        Box::pin(
            async move {
                if is_doubtful {
                    reload(&actors, &session).await?;
                }
                let now = actors.clock.now();
                let Decision { answer, change } = session.live().rounds.decide(event, now);
                let Some(change) = change else {
                    return Ok((answer, None));
                };
                let outcome = write_down(&actors, &session, &change, written).await?;
                make(&session, change.clone(), outcome, now);
                Ok((answer, Some(change)))
            }
            .into_actor(self)
            .map(move |happened: Result<_, Trouble>, round_actor, context| {
                round_actor.is_doubtful = happened.is_err();
                let (answer, change) = happened?;
                match change {
                    Some(change) => round_actor.tell(&change, context),
                    // What was loaded anew may be another round, which is to be merged or has a deadline.
                    None if is_doubtful => {
                        round_actor.publish(false, context);
                        round_actor.look(context);
                    }
                    None => {}
                }
                Ok(answer)
            }),
        )
    }

    /// Tells of a change, and begins what is due now.
    fn tell(&mut self, change: &Change, context: &mut Context<Self>) {
        let (round, phase, weights) = {
            let live = self.session.live();
            (
                live.rounds.round(),
                live.rounds.phase(),
                live.weights.clone(),
            )
        };
        let id = self.id();
        match change {
            Change::Accepted { participant, .. } => {
                tracing::info!(session.id = %id, round, participant, "result taken");
            }
            Change::MeanAccepted(of) => {
                tracing::info!(session.id = %id, round, results = of.len(), "the sum of results taken");
            }
            Change::Closed | Change::Overdue | Change::Adjusted { .. } => {
                tracing::debug!(session.id = %id, round, ?change, "round goes on");
            }
            Change::Advanced => {
                tracing::info!(session.id = %id, round, weights.sha256 = %weights.sha256, "round merged");
            }
            Change::Reopened(without) => {
                tracing::warn!(session.id = %id, round, ?without, "results could not be merged");
            }
            Change::Stopped => tracing::info!(session.id = %id, round, "session stopped"),
        }
        let told = match (change, phase) {
            (Change::Reopened(without), _) => Some(RoundNews::Reopened {
                round,
                without: without.clone(),
            }),
            (Change::Advanced, Phase::Open) => Some(RoundNews::Opened { round, weights }),
            (
                Change::Accepted { .. } | Change::MeanAccepted(_) | Change::Closed,
                Phase::Merging,
            ) => Some(RoundNews::Closing { round }),
            (_, phase) if phase.is_ended() => Some(RoundNews::Ended),
            _ => None,
        };
        if let (Some(told), Some(listener)) = (told, self.listener.clone()) {
            let telling = async move {
                // Fails when whoever listened has ended.
                let _ = listener.send(told).await;
            };
            context.spawn(telling.into_actor(self));
        }
        if phase.is_ended() && !self.is_merging {
            self.sweep(context);
        }
        self.publish(matches!(change, Change::Advanced), context);
        self.look(context);
    }

    /// Does what is due as the session stands: closes the round, merges it, waits for its deadline.
    fn look(&mut self, context: &mut Context<Self>) {
        let (phase, deadline, closes) = {
            let live = self.session.live();
            (
                live.rounds.phase(),
                live.rounds.deadline(),
                live.rounds.closes_now(),
            )
        };
        if closes {
            context.notify(Happened(Event::Sufficient));
        }
        if phase == Phase::Merging {
            self.merge(context);
        }
        if self.deadline.as_ref().map(|(at, _)| *at) == deadline {
            return;
        }
        if let Some((_, handle)) = self.deadline.take() {
            context.cancel_future(handle);
        }
        if let Some(at) = deadline {
            let wait = at.since(self.actors.clock.now()) + TIMER_GRAIN;
            let handle = context.run_later(wait, |round_actor, context| {
                round_actor.deadline = None;
                context.notify(Happened(Event::DeadlinePassed));
            });
            self.deadline = Some((at, handle));
        }
    }

    /// Tells dashboards how the round stands; also how the one before has ended.
    fn publish(&self, has_closed_one: bool, context: &mut Context<Self>) {
        let (actors, session) = (self.actors.clone(), self.session.clone());
        let publishing = async move { news::publish(&actors, &session, has_closed_one).await };
        context.spawn(publishing.into_actor(self));
    }

    fn merge(&mut self, context: &mut Context<Self>) {
        if self.is_merging {
            return;
        }
        self.is_merging = true;
        let (actors, session) = (self.actors.clone(), self.session.clone());
        let merging = async move {
            let round = session.live().rounds.round();
            let merging = Merging {
                storage: actors.storage.clone(),
                scratch: actors.scratch.clone(),
                stopping: actors.stopping.clone(),
            };
            let outcome = merging.run(&actors.database, &session.row, round).await;
            MergeEnded { round, outcome }
        };
        context.spawn(
            merging
                .into_actor(self)
                .map(|ended, _, context| context.notify(ended)),
        );
    }

    /// Removes what an ended session has no use for.
    fn sweep(&self, context: &mut Context<Self>) {
        let (actors, session) = (self.actors.clone(), self.session.clone());
        let sweeping = async move {
            let live = session.live().clone();
            sweep(&actors, session.id(), &live).await;
        };
        context.spawn(sweeping.into_actor(self));
    }

    /// What the outcome of a merge means; none where it is to be tried again.
    fn event_of(
        &mut self,
        round: u64,
        outcome: Result<Outcome, MergeFailure>,
        context: &mut Context<Self>,
    ) -> Option<(Event, Written)> {
        let without = |participants| {
            let event = Event::Unusable {
                round,
                participants,
            };
            Some((event, Written::Nothing))
        };
        let tries = std::mem::take(&mut self.unreadable) + 1;
        let trouble = match outcome {
            Ok(outcome) => {
                return Some((Event::Merged { round }, Written::Merged(Box::new(outcome))));
            }
            Err(MergeFailure::Unusable(participants)) => return without(participants),
            // A mean is the only one of its round: it is waited for.
            Err(MergeFailure::Unreadable { participants, .. })
                if tries >= TRIES_TO_READ && participants.len() == 1 =>
            {
                return without(participants);
            }
            Err(MergeFailure::Unreadable { participants, why }) => {
                self.unreadable = tries;
                let whose = participants.join(", ");
                format!("the result of {whose} cannot be read: {why}")
            }
            // The next start merges it.
            Err(MergeFailure::Stopped) => return None,
            Err(MergeFailure::Trouble(trouble)) => trouble,
        };
        tracing::error!(session.id = %self.id(), round, error = trouble, "the round is merged later");
        self.session.hinder(trouble);
        self.publish(false, context);
        self.try_merge_again(context);
        None
    }

    fn try_merge_again(&mut self, context: &mut Context<Self>) {
        context.run_later(RETRY_DELAY, |round_actor, context| {
            round_actor.look(context);
        });
    }
}

impl Actor for RoundActor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        context.set_mailbox_capacity(MAILBOX);
        if self.session.live().rounds.phase().is_ended() {
            return;
        }
        self.look(context);
        context.run_interval(FLUSH_INTERVAL, |round_actor, context| {
            let session = round_actor.session.clone();
            let flushing = async move {
                if let Err(error) = session.participants.flush().await {
                    tracing::warn!(session.id = %session.id(), %error, "what was counted is written later");
                }
            };
            context.spawn(flushing.into_actor(round_actor));
        });
    }
}

/// To take results in needs the database alone.
fn of_database(trouble: Trouble) -> DatabaseError {
    match trouble {
        Trouble::Database(error) => error,
        Trouble::Storage(_) => DatabaseError::Stopped,
    }
}

impl Handler<Take> for RoundActor {
    type Result = AtomicResponse<Self, Result<Answer, DatabaseError>>;

    fn handle(&mut self, take: Take, _: &mut Context<Self>) -> Self::Result {
        let event = Event::ResultStored {
            participant: take.participant.clone(),
            round: take.round,
            sha256: take.content.sha256.clone(),
        };
        let row = ResultRow {
            session_id: self.id().get(),
            round: integer(take.round),
            participant: take.participant,
            number: take.number,
            sha256: take.content.sha256,
            size_bytes: integer(take.content.size_bytes),
            delta_norm: take.delta_norm,
            weight: integer(take.weight),
            loss: take.loss,
            eliminated_because: None,
            accepted_at: now(),
        };
        let happened = self.happen(event, Written::Result(row));
        AtomicResponse::new(Box::pin(
            happened.map(|answer, _, _| answer.map_err(of_database)),
        ))
    }
}

impl Handler<TakeMean> for RoundActor {
    type Result = AtomicResponse<Self, Result<Answer, DatabaseError>>;

    fn handle(&mut self, take: TakeMean, _: &mut Context<Self>) -> Self::Result {
        let of = take.of.iter();
        let event = Event::MeanStored {
            round: take.round,
            results: of
                .map(|one| (one.participant.clone(), one.content.sha256.clone()))
                .collect(),
        };
        let row = |one: Contribution| ResultRow {
            session_id: self.id().get(),
            round: integer(take.round),
            participant: one.participant,
            number: take.number,
            sha256: one.content.sha256,
            size_bytes: integer(one.content.size_bytes),
            // Of a single result nothing is known.
            delta_norm: 0.0,
            weight: integer(one.weight),
            loss: None,
            eliminated_because: None,
            accepted_at: now(),
        };
        let rows = take.of.into_iter().map(row).collect();
        let happened = self.happen(event, Written::Mean(rows, take.loss));
        AtomicResponse::new(Box::pin(
            happened.map(|answer, _, _| answer.map_err(of_database)),
        ))
    }
}

impl Handler<Apply> for RoundActor {
    type Result = AtomicResponse<Self, Result<Answer, Trouble>>;

    fn handle(&mut self, Apply(event): Apply, _: &mut Context<Self>) -> Self::Result {
        AtomicResponse::new(self.happen(event, Written::Nothing))
    }
}

impl Handler<Retire> for RoundActor {
    type Result = ();

    fn handle(&mut self, _: Retire, context: &mut Context<Self>) {
        context.stop();
    }
}

impl Handler<Happened> for RoundActor {
    type Result = AtomicResponse<Self, ()>;

    fn handle(&mut self, happened: Happened, _: &mut Context<Self>) -> Self::Result {
        let done = self.happen(happened.0.clone(), Written::Nothing);
        AtomicResponse::new(Box::pin(done.map(|answer, act, context| {
            if let Err(error) = answer {
                tracing::error!(session.id = %act.id(), %error, "what has happened is tried again");
                context.notify_later(happened, RETRY_DELAY);
            }
        })))
    }
}

impl Handler<MergeEnded> for RoundActor {
    type Result = AtomicResponse<Self, ()>;

    fn handle(&mut self, ended: MergeEnded, context: &mut Context<Self>) -> Self::Result {
        self.is_merging = false;
        let Some((event, written)) = self.event_of(ended.round, ended.outcome, context) else {
            return AtomicResponse::new(Box::pin(fut::ready(())));
        };
        let happened = self.happen(event, written);
        let closed = ended.round;
        if self.session.live().rounds.phase().is_ended() {
            self.sweep(context);
        }
        AtomicResponse::new(Box::pin(happened.map(move |answer, act, context| match answer {
            Ok(_) => {
                let (actors, session) = (act.actors.clone(), act.session.clone());
                let sweeping = async move { remove_merged(&actors, &session, closed).await };
                context.spawn(sweeping.into_actor(act));
            }
            Err(error) => {
                tracing::error!(session.id = %act.id(), round = closed, %error, "the round is merged again");
                act.session.hinder(error.to_string());
                act.try_merge_again(context);
            }
        })))
    }
}
