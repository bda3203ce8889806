//! Finds the actors of sessions that have not ended, and brings to them what workers say.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use actix::prelude::*;
use trainyard_shared::ids::{FederatedSessionId, WorkerId};
use trainyard_shared::message::{
    FederatedFailedData, FederatedUpdateData, RoundTrainedData, WeightsLoadedData,
};

use super::actor::{FederatedSession, Happened};
use super::inbox::{self, FetchError, Place};
use super::secure::reports::{self, OfSum};
use super::state::masking::Judgement;
use super::state::{Event, Seeking, Session};
use super::store;
use crate::actors::Actors;
use crate::database::DatabaseError;
use crate::error::{ApiError, ErrorCode};
use crate::rounds::session::{Offered, Session as Rounds, SubmitError};
use crate::rounds::state::{Answer as RoundAnswer, Standing};
use crate::storage::{StorageError, StoredObject};
use crate::workers::lease::Lease;

/// The sessions under way.
#[derive(Default)]
pub struct FederatedDirectory {
    under_way: Mutex<BTreeMap<FederatedSessionId, UnderWay>>,
}

/// A session under way, as everybody reaches it.
#[derive(Clone)]
pub struct UnderWay {
    /// Its actor.
    pub actor: Addr<FederatedSession>,
    /// Its rounds.
    pub rounds: Arc<Rounds>,
    /// Its workers.
    pub workers: SharedState,
    /// Rows of its shards.
    pub shard_rows: Arc<Vec<u64>>,
}

impl UnderWay {
    /// No worker has been trained on more rows than its shard has: more would give its result too much weight.
    ///
    /// # Errors
    /// What to tell the worker.
    pub(super) fn check_examples(&self, worker: WorkerId, claimed: u64) -> Result<(), String> {
        let workers = self.workers.get();
        let shard = workers.shard_of(worker);
        let rows = shard.and_then(|shard| self.shard_rows.get(usize::try_from(shard).ok()?));
        match rows {
            Some(rows) if claimed > *rows => Err(format!(
                "data.num_examples: this worker's shard has {rows} rows, not {claimed}"
            )),
            _ => Ok(()),
        }
    }
}

/// Where a session's workers stand. Only its actor changes it.
#[derive(Debug, Clone)]
pub struct SharedState(Arc<Mutex<Session>>);

impl SharedState {
    /// A new one.
    pub fn new(state: Session) -> Self {
        Self(Arc::new(Mutex::new(state)))
    }

    /// As it is now.
    pub fn get(&self) -> Session {
        lock(&self.0).clone()
    }

    /// Its actor has carried a change out.
    pub(super) fn set(&self, state: Session) {
        *lock(&self.0) = state;
    }
}

/// What a worker says of a session.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    /// A result is stored.
    Update(FederatedUpdateData),
    /// The weights are there.
    Loaded(WeightsLoadedData),
    /// There is no result.
    Failed(FederatedFailedData),
    /// There is one, which the worker keeps until it can be masked.
    Trained(RoundTrainedData),
    /// Its part in the sum of masked results.
    OfSum(OfSum),
}

/// What the worker is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It was taken in.
    Taken,
    /// It is of the past: confirmed, and without effect.
    Ignored,
    /// It is not that worker's to say.
    WrongWorker,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// What it says cannot be; the worker is not to say it again.
    #[error("{0}")]
    Invalid(String),
    /// A file is not stored as it was said to be.
    #[error("{0}")]
    NotStored(String),
    /// A fault of the platform's, to be tried again.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The same of the store.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The same of the check.
    #[error("{0}")]
    Failed(String),
}

impl FederatedDirectory {
    pub(super) fn add(&self, id: FederatedSessionId, under_way: UnderWay) {
        lock(&self.under_way).insert(id, under_way);
    }

    pub(super) fn retire(&self, id: FederatedSessionId) {
        lock(&self.under_way).remove(&id);
    }

    /// A session that has not ended.
    pub fn find(&self, id: FederatedSessionId) -> Option<UnderWay> {
        lock(&self.under_way).get(&id).cloned()
    }

    /// The sessions that look for workers, oldest first.
    pub fn seeking(&self) -> Vec<(FederatedSessionId, Seeking)> {
        let under_way = lock(&self.under_way);
        let seeking = under_way
            .iter()
            .filter_map(|(id, session)| Some((*id, lock(&session.workers.0).seeking()?)));
        seeking.collect()
    }

    /// Lets something happen to a session, once it has been carried out. One that has ended ignores it.
    pub async fn apply(&self, id: FederatedSessionId, event: Event) -> bool {
        match self.find(id) {
            // Fails when it has just ended.
            Some(found) => found.actor.send(Happened(event)).await.is_ok(),
            None => false,
        }
    }

    /// How large a worker's result may be.
    ///
    /// # Errors
    /// 404 for a worker that takes no part, 409 where the round takes no result (any more), or none of that kind.
    pub fn takes(&self, place: Place) -> Result<u64, ApiError> {
        let found = self.find(place.session).ok_or_else(over)?;
        let workers = found.workers.get();
        if !workers.knows(place.worker) {
            return Err(ApiError::not_found("session of this worker"));
        }
        let live = found.rounds.live();
        let standing = live
            .rounds
            .standing(&store::participant(place.worker), place.round);
        let takes_it = match (workers.masking(), place.attempt) {
            (None, None) => true,
            (Some(masking), Some(attempt)) => {
                masking.judge_upload(place.worker, attempt, "") == Judgement::Counts
            }
            _ => false,
        };
        match standing {
            Standing::Welcome if takes_it => Ok(place.most_bytes(live.weights.size_bytes)),
            Standing::Given(_) => Err(ApiError::new(
                ErrorCode::Conflict,
                "this worker's result for the round is there already",
            )),
            _ => Err(over()),
        }
    }

    /// Takes in what a worker says, as long as its connection counts; nothing is answered when it does not.
    ///
    /// # Errors
    /// [`ReportError`]: nothing has happened, or nothing but that it was counted.
    pub async fn report(
        &self,
        actors: &Actors,
        id: FederatedSessionId,
        lease: Lease,
        said: Said,
    ) -> Result<Option<Answer>, ReportError> {
        if !lease.is_current() {
            return Ok(None);
        }
        let worker = lease.worker();
        let Some(found) = self.find(id) else {
            let workers = actors.database.read(move |c| store::workers(c, id)).await?;
            return Ok(Some(match workers.shards.contains_key(&worker) {
                true => Answer::Ignored,
                false => Answer::WrongWorker,
            }));
        };
        if !lock(&found.workers.0).knows(worker) {
            return Ok(Some(Answer::WrongWorker));
        }
        match said {
            Said::Loaded(data) => {
                tracing::debug!(session.id = %id, worker.id = %worker, round = data.round, "weights are loaded");
                Ok(Some(Answer::Taken))
            }
            Said::Failed(data) => {
                tracing::warn!(session.id = %id, worker.id = %worker, error = data.error, "worker has no result");
                let event = Event::Failed {
                    worker,
                    round: data.round.map(|round| round.saturating_sub(1)),
                    error: data.error,
                };
                self.apply(id, event).await;
                Ok(Some(Answer::Taken))
            }
            Said::Trained(data) => reports::trained(actors, &found, worker, data)
                .await
                .map(Some),
            Said::OfSum(said) => reports::take(actors, &found, worker, said).await.map(Some),
            Said::Update(data) if found.workers.get().masking().is_some() => {
                let taken = reports::take_masked(actors, &found, worker, data);
                taken.await.map(Some)
            }
            Said::Update(data) => self.take(actors, &found, worker, data).await.map(Some),
        }
    }

    /// Takes a result in: its file is copied, hashed, checked, and only then counted.
    async fn take(
        &self,
        actors: &Actors,
        found: &UnderWay,
        worker: WorkerId,
        data: FederatedUpdateData,
    ) -> Result<Answer, ReportError> {
        let id = found.rounds.id();
        let participant = store::participant(worker);
        let round = data.round.checked_sub(1).ok_or_else(|| {
            ReportError::Invalid("data.round: rounds are counted from 1".to_owned())
        })?;
        let place = Place {
            session: id,
            round,
            attempt: None,
            worker,
        };
        let key = place.key();
        if data.key != key.as_str() {
            let message = format!("data.key: this worker's result for the round is {key}");
            return Err(ReportError::Invalid(message));
        }
        let standing = found.rounds.live().rounds.standing(&participant, round);
        match standing {
            Standing::Welcome => {}
            Standing::NotBegun => {
                let message = format!("data.round: round {} has not begun", data.round);
                return Err(ReportError::Invalid(message));
            }
            Standing::Late => {
                found.rounds.participants.count_late(&participant);
                return Ok(Answer::Ignored);
            }
            Standing::Given(_) | Standing::Ended => return Ok(Answer::Ignored),
        }
        if let Err(why) = found.check_examples(worker, data.num_examples) {
            self.refused(actors, found, worker, round, &why).await?;
            inbox::forget(actors, &key).await;
            return Err(ReportError::Invalid(why));
        }
        let content = StoredObject {
            size_bytes: data.size_bytes,
            sha256: data.sha256,
        };
        let file = inbox::fetch(actors, &key, &content).await?;
        let offered = Offered {
            participant: participant.clone(),
            round,
            file,
            content,
            weight: data.num_examples.max(1),
            loss: data.loss.filter(|loss| loss.is_finite()),
        };
        let submitted = found.rounds.submit(actors, offered).await;
        let answer = match submitted {
            Ok(RoundAnswer::Taken | RoundAnswer::Again) => {
                self.apply(id, Event::ResultTaken { worker, round }).await;
                Answer::Taken
            }
            Ok(RoundAnswer::Refused(standing)) => {
                if standing == Standing::Late {
                    found.rounds.participants.count_late(&participant);
                }
                Answer::Ignored
            }
            Err(SubmitError::Invalid(why)) => {
                self.refused(actors, found, worker, round, &why).await?;
                inbox::forget(actors, &key).await;
                return Err(ReportError::Invalid(why));
            }
            Err(error) => return Err(error.into()),
        };
        inbox::forget(actors, &key).await;
        Ok(answer)
    }

    /// A result that is not valid is counted against the worker, which has failed with it.
    async fn refused(
        &self,
        actors: &Actors,
        found: &UnderWay,
        worker: WorkerId,
        round: u64,
        why: &str,
    ) -> Result<(), DatabaseError> {
        let (id, participant) = (found.rounds.id(), store::participant(worker));
        tracing::warn!(session.id = %id, worker.id = %worker, why, "result refused");
        found
            .rounds
            .participants
            .count_refused(&participant)
            .await?;
        let event = Event::Failed {
            worker,
            round: Some(round),
            error: format!("its result is not valid: {why}"),
        };
        actors.federated.apply(id, event).await;
        Ok(())
    }
}

impl From<SubmitError> for ReportError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Invalid(why) => Self::Invalid(why),
            SubmitError::Storage(error) => Self::Storage(error),
            SubmitError::Database(error) => Self::Database(error),
            SubmitError::Failed(error) => Self::Failed(error),
        }
    }
}

impl From<FetchError> for ReportError {
    fn from(error: FetchError) -> Self {
        match error {
            FetchError::NotStored { .. } => Self::NotStored(error.to_string()),
            FetchError::Full { .. } => Self::Failed(error.to_string()),
            FetchError::Storage(error) => Self::Storage(error),
        }
    }
}

fn over() -> ApiError {
    ApiError::new(ErrorCode::Conflict, "the round takes no results (any more)")
}

/// A panic while a lock was held leaves what it guards whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}
