//! A session as everybody reaches it: where it stands now, and the way by which results come in.
//!
//! What is asked often (a task, the state) is answered from here, without the actor and without the database.

use std::sync::{Arc, LazyLock, RwLock, RwLockReadGuard};

use actix::Addr;
use chrono::NaiveDateTime;
use tempfile::TempPath;
use tokio::sync::Semaphore;
use trainyard_aggregation::{CheckError, GlobalAdapter, check};
use trainyard_shared::ids::FederatedSessionId;

use super::actor::{Apply, Retire, RoundActor, Take, TakeMean, Trouble};
use super::keys;
use super::participants::Participants;
use super::scratch::LocalFile;
use super::state::{Answer, Event, Rounds, Standing};
use super::store::{SessionRow, ShardRow};
use crate::actors::Actors;
use crate::database::DatabaseError;
use crate::storage::{StorageError, StorageKey, StoredObject};

/// Results that are checked at once, of all sessions: more would only be slower.
static CHECKS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(2)));

/// One session that has been prepared.
pub struct Session {
    /// What never changes. Status, round and error in it are those of when it was loaded.
    pub row: SessionRow,
    /// The parts of the data that the platform hands out.
    pub shards: Vec<ShardRow>,
    /// Who takes part.
    pub participants: Participants,
    live: RwLock<Live>,
    actor: Addr<RoundActor>,
    global: tokio::sync::Mutex<Option<Arc<Global>>>,
}

/// Where a session stands.
#[derive(Debug, Clone)]
pub struct Live {
    /// The state machine.
    pub rounds: Rounds,
    /// The global adapter of the round.
    pub weights: StoredObject,
    /// What keeps the round from being merged, for people.
    pub trouble: Option<String>,
    /// Why its participants do not bring it on, where somebody knows that better than the rounds themselves.
    pub reason: Option<String>,
    /// When it ended, where it has.
    pub ended_at: Option<NaiveDateTime>,
}

impl Live {
    /// Why the session does not go on, for people.
    pub fn waits_because(&self) -> Option<String> {
        let by_rounds = self.rounds.waits_because()?;
        let better = self.trouble.clone().or_else(|| self.reason.clone());
        Some(better.unwrap_or(by_rounds))
    }
}

/// The global adapter of a round, open.
pub struct Global {
    /// The round.
    pub round: u64,
    /// The adapter.
    pub adapter: GlobalAdapter,
    /// Kept for as long as the adapter is read.
    _file: LocalFile,
}

/// A result as it came, not looked at yet.
pub struct Offered {
    /// Whose it is.
    pub participant: String,
    /// The round that it is for.
    pub round: u64,
    /// Its file.
    pub file: TempPath,
    /// The file's size and digest.
    pub content: StoredObject,
    /// Examples that it was trained on; 1 where that is not known.
    pub weight: u64,
    /// Mean loss, where it is known.
    pub loss: Option<f64>,
}

/// The mean of results that were summed under masks.
pub struct OfferedMean {
    round: u64,
    /// Number and key of its file in the store, which are its own.
    number: i64,
    key: StorageKey,
    file: TempPath,
    content: StoredObject,
    of: Vec<Contribution>,
    loss: Option<f64>,
}

impl OfferedMean {
    /// An adapter, the round's changed by the mean of these results' changes, with the file's size and digest, and the
    /// mean loss where it is known.
    pub fn new(
        session: &Session,
        round: u64,
        file: TempPath,
        content: StoredObject,
        of: Vec<Contribution>,
        loss: Option<f64>,
    ) -> Self {
        let (number, key) = session.new_update(round);
        Self {
            round,
            number,
            key,
            file,
            content,
            of,
            loss,
        }
    }
}

/// What a participant has sent for a sum.
#[derive(Debug, Clone, PartialEq)]
pub struct Contribution {
    /// Whose it is.
    pub participant: String,
    /// The masked file's size and digest.
    pub content: StoredObject,
    /// Examples that it was trained on.
    pub weight: u64,
}

/// Why a result has no answer.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// It is not valid; for whoever sent it.
    #[error("{0}")]
    Invalid(String),
    /// The disk is full.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// It could not be written down.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The platform could not check it.
    #[error("{0}")]
    Failed(String),
}

impl Session {
    /// A session with its actor, which is not running yet.
    pub(super) fn new(
        row: SessionRow,
        shards: Vec<ShardRow>,
        participants: Participants,
        live: Live,
        actor: Addr<RoundActor>,
    ) -> Self {
        Self {
            row,
            shards,
            participants,
            live: RwLock::new(live),
            actor,
            global: tokio::sync::Mutex::default(),
        }
    }

    /// Its number.
    pub fn id(&self) -> FederatedSessionId {
        self.row.id()
    }

    /// Where it stands: round, weights and results belong to each other for as long as this is held. Not to be
    /// held over a wait.
    pub fn live(&self) -> RwLockReadGuard<'_, Live> {
        self.live
            .read()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Says why its participants do not bring it on; gives whether that is news.
    pub fn explain(&self, reason: Option<String>) -> bool {
        let mut is_news = false;
        self.update(|live| {
            is_news = live.reason != reason;
            live.reason = reason;
        });
        is_news
    }

    /// Says what keeps the round from being merged; gives whether that is news.
    pub fn hinder(&self, trouble: String) -> bool {
        let mut is_news = false;
        self.update(|live| {
            is_news = live.trouble.as_ref() != Some(&trouble);
            live.trouble = Some(trouble);
        });
        is_news
    }

    /// Its actor has written down and made a change.
    pub(super) fn update(&self, change: impl FnOnce(&mut Live)) {
        let mut live = self
            .live
            .write()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        change(&mut live);
    }

    /// Lets an event of the session's own happen.
    ///
    /// # Errors
    /// Those of the store and the database: nothing has happened.
    pub async fn apply(&self, event: Event) -> Result<Answer, Trouble> {
        match self.actor.send(Apply(event)).await {
            Ok(answer) => answer,
            Err(_) => Err(DatabaseError::Stopped.into()),
        }
    }

    /// Ends its actor: the session is deleted.
    pub async fn retire(&self) {
        // Fails only where it has ended already.
        let _ = self.actor.send(Retire).await;
    }

    /// Takes a result in: it is checked whole against the global adapter, then stored, then counted. Whatever
    /// goes wrong changes nothing.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub async fn submit(&self, actors: &Actors, offered: Offered) -> Result<Answer, SubmitError> {
        let standing = self
            .live()
            .rounds
            .standing(&offered.participant, offered.round);
        if standing != Standing::Welcome {
            return Ok(answer_to(standing, &offered.content.sha256));
        }
        let global = self.global(actors).await?;
        if global.round != offered.round {
            return Ok(Answer::Refused(Standing::Late));
        }
        let (file, delta_norm) = self.check(global, offered.file).await?;
        let (number, key) = self.new_update(offered.round);
        actors
            .storage
            .put_file(&key, &file, &offered.content)
            .await?;
        let participant = offered.participant.clone();
        let take = Take {
            participant: offered.participant,
            round: offered.round,
            number,
            content: offered.content,
            delta_norm,
            weight: offered.weight,
            loss: offered.loss,
        };
        let taken = match self.actor.send(take).await {
            Ok(answer) => answer,
            Err(_) => Err(DatabaseError::Stopped),
        };
        if let Ok(Answer::Taken) = taken {
            self.participants.has_result(&participant);
        }
        self.tidy(actors, &key, &taken).await;
        Ok(taken?)
    }

    /// Stores the mean of results that nobody has seen one by one. It can be tried again.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn store_mean(
        &self,
        actors: &Actors,
        offered: &OfferedMean,
    ) -> Result<(), StorageError> {
        let OfferedMean {
            key, file, content, ..
        } = offered;
        actors.storage.put_file(key, file, content).await
    }

    /// Takes in a mean that is stored: the round closes with it. It can be tried again; a file that does not count in
    /// the end is removed with the session, or at the next start.
    ///
    /// # Errors
    /// Those of the database: it is not known whether it counts.
    pub async fn take_mean(&self, offered: &OfferedMean) -> Result<Answer, DatabaseError> {
        let taken = self
            .send_mean(TakeMean {
                round: offered.round,
                number: offered.number,
                of: offered.of.clone(),
                loss: offered.loss,
            })
            .await?;
        if taken == Answer::Taken {
            for one in &offered.of {
                self.participants.has_result(&one.participant);
            }
        }
        Ok(taken)
    }

    /// Closes a round without any result: the next one begins with the same adapter.
    ///
    /// # Errors
    /// As [`Session::take_mean`].
    pub async fn close_unchanged(&self, round: u64) -> Result<Answer, DatabaseError> {
        let take = TakeMean {
            round,
            number: 0,
            of: Vec::new(),
            loss: None,
        };
        self.send_mean(take).await
    }

    async fn send_mean(&self, take: TakeMean) -> Result<Answer, DatabaseError> {
        match self.actor.send(take).await {
            Ok(answer) => answer,
            Err(_) => Err(DatabaseError::Stopped),
        }
    }

    /// Number and key of a file that nobody else names.
    fn new_update(&self, round: u64) -> (i64, StorageKey) {
        let number =
            i64::from(rand::random::<u32>()) << 20 | i64::from(rand::random::<u32>() >> 12);
        (number, keys::update(self.id(), round, number))
    }

    /// Removes a file that does not count. Where it is not known whether it does, the next start removes what nothing
    /// refers to.
    async fn tidy(&self, actors: &Actors, key: &StorageKey, taken: &Result<Answer, DatabaseError>) {
        let is_superfluous = match taken {
            Ok(answer) => *answer != Answer::Taken,
            Err(error) => changed_nothing(error),
        };
        if is_superfluous && let Err(error) = actors.storage.delete(key).await {
            tracing::warn!(session.id = %self.id(), %error, "a result that does not count was not removed");
        }
    }

    async fn check(
        &self,
        global: Arc<Global>,
        file: TempPath,
    ) -> Result<(TempPath, f64), SubmitError> {
        let failed = |error: &dyn std::fmt::Display| SubmitError::Failed(error.to_string());
        let turn = CHECKS.clone().acquire_owned().await;
        let turn = turn.map_err(|error| failed(&error))?;
        let max_delta_norm = self.row.max_delta_norm;
        let checked = tokio::task::spawn_blocking(move || {
            // Held until the check has ended, also where nobody waits for it any more.
            let _turn = turn;
            let checked = check(&file, &global.adapter, max_delta_norm);
            (file, checked)
        })
        .await;
        match checked.map_err(|error| failed(&error))? {
            (file, Ok(checked)) => Ok((file, checked.delta_norm)),
            (_, Err(CheckError::Refused(refusal))) => {
                Err(SubmitError::Invalid(refusal.to_string()))
            }
            (_, Err(CheckError::Failed(error))) => Err(failed(&error)),
        }
    }

    /// The global adapter of the round that is open, or was a moment ago.
    ///
    /// # Errors
    /// [`SubmitError::Storage`], [`SubmitError::Failed`].
    pub async fn global(&self, actors: &Actors) -> Result<Arc<Global>, SubmitError> {
        let mut kept = self.global.lock().await;
        let round = self.live().rounds.round();
        if let Some(global) = kept.as_ref().filter(|global| global.round == round) {
            return Ok(global.clone());
        }
        let key = keys::weights(self.id(), round);
        let file = actors.scratch.local(actors.storage.as_ref(), &key).await?;
        let adapter = GlobalAdapter::open(file.path())
            .map_err(|error| SubmitError::Failed(error.to_string()))?;
        let global = Arc::new(Global {
            round,
            adapter,
            _file: file,
        });
        *kept = Some(global.clone());
        Ok(global)
    }
}

/// What somebody is told whose result cannot be taken any more, or is there already.
pub fn answer_to(standing: Standing, sha256: &str) -> Answer {
    match standing {
        Standing::Given(known) if known == sha256 => Answer::Again,
        other => Answer::Refused(other),
    }
}

/// Whether it is sure of a failed write that nothing was written.
fn changed_nothing(error: &DatabaseError) -> bool {
    matches!(
        error,
        DatabaseError::Full
            | DatabaseError::Busy
            | DatabaseError::Panicked
            | DatabaseError::Duplicate(_)
    )
}
