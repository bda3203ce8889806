//! A session between the database and memory: loaded, loaded anew, and every change written down before it is made.

use trainyard_shared::ids::FederatedSessionId;

use super::actor::Trouble;
use super::publish;
use super::session::{Live, Session};
use super::state::Change;
use super::store::{self, Outcome, ParticipantRow, ResultRow, SessionRow, ShardRow};
use crate::actors::Actors;
use crate::clock::Moment;
use crate::database::{DatabaseError, DbConnection, now};
use crate::storage::{StorageError, StoredObject};

/// What the database knows of a session.
pub struct Loaded {
    /// Its row.
    pub row: SessionRow,
    /// The parts of the data that the platform hands out.
    pub shards: Vec<ShardRow>,
    /// Who takes part; nobody where the session has ended.
    pub participants: Vec<ParticipantRow>,
    /// Where it stands.
    pub live: Live,
}

/// What is written down of a change, beside the change itself.
pub enum Written {
    /// Nothing.
    Nothing,
    /// The result that counts from now on.
    Result(ResultRow),
    /// The results of which only the mean is known, and their mean loss.
    Mean(Vec<ResultRow>, Option<f64>),
    /// What came of the round.
    Merged(Box<Outcome>),
}

/// A session as it stands in the database.
///
/// # Errors
/// Those of the database.
pub async fn load(actors: &Actors, id: FederatedSessionId) -> Result<Loaded, DatabaseError> {
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
        ended_at: row.ended_at,
    })
}

/// The state as it is in the database; what was in memory may be wrong.
///
/// # Errors
/// Those of the database.
pub async fn reload(actors: &Actors, session: &Session) -> Result<(), Trouble> {
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
///
/// # Errors
/// [`Trouble`]; nothing has happened, or where the database does not say, it may have.
pub async fn write_down(
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
        (Change::MeanAccepted(_), Written::Mean(rows, loss)) => {
            let write = move |c: &mut _| store::accept_mean(c, id, round, &rows, loss);
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
        (Change::Stopped, _) => write_stop(actors, session, round).await?,
        (Change::Overdue | Change::Adjusted { .. }, _) => {}
        (Change::Accepted { .. } | Change::MeanAccepted(_) | Change::Advanced, _) => {
            unreachable!("a result comes with its row, a merge with its outcome")
        }
    }
    Ok(None)
}

/// The session can be stopped also where its global adapter is lost: it has made nothing then.
async fn write_stop(actors: &Actors, session: &Session, round: u64) -> Result<(), Trouble> {
    let id = session.id();
    let (files, lost) = match publish::final_adapter(actors, &session.row, round).await {
        Ok(files) => (files, None),
        Err(StorageError::NotFound) => {
            tracing::error!(session.id = %id, round, "the global adapter is lost");
            let why = format!("the global adapter of round {round} is lost: there is no final one");
            (Vec::new(), Some(why))
        }
        Err(error) => return Err(error.into()),
    };
    let write = move |c: &mut _| {
        store::stop(c, id, &files, now())?;
        match &lost {
            Some(why) => store::explain(c, id, why),
            None => Ok(()),
        }
    };
    Ok(actors.database.write::<_, DatabaseError, _>(write).await?)
}

/// Makes a change that was written down for all to see.
pub fn make(session: &Session, change: Change, weights: Option<StoredObject>, moment: Moment) {
    session.update(|live| {
        live.rounds.make(change, moment);
        live.trouble = None;
        if let Some(weights) = weights {
            live.weights = weights;
        }
        if live.rounds.phase().is_ended() && live.ended_at.is_none() {
            live.ended_at = Some(now());
        }
    });
}
