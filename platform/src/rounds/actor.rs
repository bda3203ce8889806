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

use super::merging::{MergeFailure, Merging};
use super::participants::Participants;
use super::publish;
use super::session::{Live, Session};
use super::state::{Answer, Change, Decision, Event, Phase};
use super::store::{self, Outcome, ResultRow, SessionRow, ShardRow, integer};
use super::{keys, news};
use crate::actors::Actors;
use crate::clock::Moment;
use crate::database::{DatabaseError, DbConnection, now};
use crate::storage::{StorageError, StoredObject};

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

/// Let this happen.
#[derive(Message)]
#[rtype(result = "Result<Answer, Trouble>")]
pub(super) struct Apply(pub(super) Event);

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
            loaded.shard_count,
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

struct Loaded {
    row: SessionRow,
    shards: Vec<ShardRow>,
    shard_count: u64,
    participants: Vec<store::ParticipantRow>,
    live: Live,
}

/// Removes what a round that was merged leaves behind. What is not removed now is by the next start.
async fn remove_merged(actors: &Actors, session: &Session, closed: u64) {
    if session.live().rounds.round() <= closed {
        return;
    }
    let removed = keys::remove_merged(actors.storage.as_ref(), session.id(), closed).await;
    if let Err(error) = removed {
        tracing::warn!(session.id = %session.id(), %error, "files of a merged round were not removed");
    }
}

async fn load(actors: &Actors, id: FederatedSessionId) -> Result<Loaded, DatabaseError> {
    let now = actors.clock.now();
    actors
        .database
        .read(move |c| {
            let row = store::row(c, id)?;
            let live = load_live(c, &row, now)?;
            let shards = store::shards(c, id)?;
            // Whoever comes to a session that has ended is told so, and not counted.
            let participants = match row.status()?.is_ended() {
                true => Vec::new(),
                false => store::participants(c, id)?,
            };
            Ok(Loaded {
                shard_count: store::natural(row.shard_count),
                row,
                shards,
                participants,
                live,
            })
        })
        .await
}

fn load_live(
    connection: &mut DbConnection,
    row: &SessionRow,
    now: Moment,
) -> Result<Live, DatabaseError> {
    let rounds = store::load(connection, row, now)?;
    let round = store::round(connection, row.id(), rounds.round())?;
    Ok(Live {
        rounds,
        weights: StoredObject {
            size_bytes: store::natural(round.weights_bytes),
            sha256: round.weights_sha256,
        },
        trouble: None,
        reason: None,
    })
}

/// What is written down of a change, beside the change itself.
enum Written {
    Nothing,
    Result(ResultRow),
    Merged(Box<Outcome>),
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
            (Change::Accepted { .. } | Change::Closed, Phase::Merging) => {
                Some(RoundNews::Closing { round })
            }
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

    fn try_merge_again(&mut self, context: &mut Context<Self>) {
        context.run_later(RETRY_DELAY, |round_actor, context| {
            round_actor.look(context);
        });
    }
}

/// Removes the files of rounds to which nothing refers any more: those of uploads and merges that were broken off.
async fn sweep(actors: &Actors, id: FederatedSessionId, live: &Live) {
    let (round, is_ended) = (live.rounds.round(), live.rounds.phase().is_ended());
    let read = move |c: &mut _| store::results(c, id, round);
    let swept = match actors.database.read::<_, DatabaseError, _>(read).await {
        Ok(results) => {
            let needed = match is_ended {
                true => vec![keys::weights(id, round)],
                false => keys::needed(id, round, results.iter().map(|row| row.number)),
            };
            keys::sweep(actors.storage.as_ref(), id, &needed)
                .await
                .map_err(Trouble::from)
        }
        Err(error) => Err(error.into()),
    };
    if let Err(error) = swept {
        tracing::warn!(session.id = %id, %error, "files that nothing refers to were not removed");
    }
}

/// The state as it is in the database; what was in memory may be wrong.
async fn reload(actors: &Actors, session: &Session) -> Result<(), Trouble> {
    let (id, now) = (session.id(), actors.clock.now());
    let live = actors
        .database
        .read::<_, DatabaseError, _>(move |c| {
            let row = store::row(c, id)?;
            load_live(c, &row, now)
        })
        .await?;
    session.update(|known| {
        let rounds = live.rounds.clone().with_time_of(&known.rounds);
        *known = Live { rounds, ..live };
    });
    Ok(())
}

/// Writes a change down; gives the global adapter where there is a new one.
async fn write_down(
    actors: &Actors,
    session: &Session,
    change: &Change,
    written: Written,
) -> Result<Option<StoredObject>, Trouble> {
    let id = session.id();
    let round = session.live().rounds.round();
    match (change.clone(), written) {
        (Change::Accepted { closes, .. }, Written::Result(row)) => {
            let write = move |c: &mut _| store::accept(c, &row, closes);
            actors.database.write::<_, DatabaseError, _>(write).await?;
        }
        (Change::Closed, _) => {
            let write = move |c: &mut _| store::close(c, id);
            actors.database.write::<_, DatabaseError, _>(write).await?;
        }
        (Change::Advanced, Written::Merged(outcome)) => {
            let weights = outcome.weights.clone();
            let is_last = round + 1 >= session.live().rounds.rules().total_rounds;
            let files = match is_last {
                true => Some(publish::final_adapter(actors, &session.row, round + 1).await?),
                false => None,
            };
            let write =
                move |c: &mut _| store::advance(c, id, round, &outcome, files.as_deref(), now());
            actors.database.write::<_, DatabaseError, _>(write).await?;
            return Ok(Some(weights));
        }
        (Change::Reopened(without), _) => {
            let write = move |c: &mut _| store::reopen(c, id, round, &without);
            actors.database.write::<_, DatabaseError, _>(write).await?;
        }
        (Change::Stopped, _) => {
            let files = publish::final_adapter(actors, &session.row, round).await?;
            let write = move |c: &mut _| store::stop(c, id, &files, now());
            actors.database.write::<_, DatabaseError, _>(write).await?;
        }
        (Change::Overdue | Change::Adjusted { .. }, _) => {}
        (Change::Accepted { .. } | Change::Advanced, _) => {
            unreachable!("a result comes with its row, a merge with its outcome")
        }
    }
    Ok(None)
}

fn make(session: &Session, change: Change, weights: Option<StoredObject>, now: Moment) {
    session.update(|live| {
        live.rounds.make(change, now);
        live.trouble = None;
        if let Some(weights) = weights {
            live.weights = weights;
        }
    });
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
        AtomicResponse::new(Box::pin(happened.map(|answer, _, _| {
            answer.map_err(|trouble| match trouble {
                Trouble::Database(error) => error,
                Trouble::Storage(_) => DatabaseError::Stopped,
            })
        })))
    }
}

impl Handler<Apply> for RoundActor {
    type Result = AtomicResponse<Self, Result<Answer, Trouble>>;

    fn handle(&mut self, Apply(event): Apply, _: &mut Context<Self>) -> Self::Result {
        AtomicResponse::new(self.happen(event, Written::Nothing))
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
        let (event, written) = match ended.outcome {
            Ok(outcome) => (
                Event::Merged { round: ended.round },
                Written::Merged(Box::new(outcome)),
            ),
            Err(MergeFailure::Unusable(participants)) => (
                Event::Unusable {
                    round: ended.round,
                    participants,
                },
                Written::Nothing,
            ),
            Err(MergeFailure::Trouble(trouble)) => {
                tracing::error!(session.id = %self.id(), round = ended.round, error = trouble, "the round is merged later");
                self.session.update(|live| live.trouble = Some(trouble));
                self.publish(false, context);
                self.try_merge_again(context);
                return AtomicResponse::new(Box::pin(fut::ready(())));
            }
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
                act.session.update(|live| live.trouble = Some(error.to_string()));
                act.try_merge_again(context);
            }
        })))
    }
}
