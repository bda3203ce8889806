//! SQL of sessions and their rounds. Rows, results and participants are in the files beside it.
//!
//! A session's actor is the only one that writes its rounds; every function is called within one transaction.

mod participants;
mod results;
mod rows;

use std::collections::{HashSet, VecDeque};

use chrono::NaiveDateTime;
use diesel::prelude::*;
use trainyard_shared::ids::{DatasetId, FederatedSessionId, JobId};

use super::state::{Phase, REMEMBERED_ROUNDS, Results, Rounds};
use super::words::{Kind, SessionStatus};
use crate::clock::Moment;
use crate::database::schema::{
    federated_files, federated_rounds, federated_sessions, federated_shards,
};
use crate::database::{DatabaseError, DbConnection, last_insert_id};
use crate::storage::StoredObject;

pub use participants::{
    ParticipantRow, Tally, count, join, leave, participants, participants_from,
};
pub use results::{ResultRow, accept, accept_mean, eliminate, reopen, results, results_of_session};
pub use rows::{FileRow, NewSession, Outcome, RoundRow, SessionRow, ShardRow};
pub(crate) use rows::{integer, natural};

/// Makes a session, preparing.
///
/// # Errors
/// [`DatabaseError::Duplicate`] where volunteers have a session of that name.
pub fn insert(
    connection: &mut DbConnection,
    new: &NewSession,
    now: NaiveDateTime,
) -> Result<SessionRow, DatabaseError> {
    let timeout_ms = new
        .rules
        .timeout
        .map(|timeout| i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX));
    diesel::insert_into(federated_sessions::table)
        .values((
            (
                federated_sessions::owner_id.eq(new.owner.get()),
                federated_sessions::kind.eq(new.kind.as_str()),
                federated_sessions::name.eq(&new.name),
                federated_sessions::is_default.eq(new.is_default),
                federated_sessions::status.eq(SessionStatus::Preparing.as_str()),
                federated_sessions::base_model.eq(&new.base_model),
                federated_sessions::job_id.eq(new.job.map(JobId::get)),
                federated_sessions::dataset_id.eq(new.dataset.map(DatasetId::get)),
                federated_sessions::settings.eq(&new.settings),
            ),
            (
                federated_sessions::shard_count.eq(integer(new.shards)),
                federated_sessions::total_rounds.eq(integer(new.rules.total_rounds)),
                federated_sessions::enough.eq(integer(new.rules.enough as u64)),
                federated_sessions::at_least.eq(integer(new.rules.at_least as u64)),
                federated_sessions::round_timeout_ms.eq(timeout_ms),
                federated_sessions::aggregation.eq(new.rule.name()),
                federated_sessions::outer_lr.eq(new.outer_lr),
                federated_sessions::outer_momentum.eq(new.outer_momentum),
                federated_sessions::max_delta_norm.eq(new.max_delta_norm),
                federated_sessions::max_refused.eq(new.max_refused.map(i64::from)),
                federated_sessions::key_hash.eq(&new.key_hash),
                federated_sessions::created_at.eq(now),
            ),
        ))
        .execute(connection)?;
    let id = last_insert_id(connection)?;
    row(connection, FederatedSessionId(id))
}

/// A session's row.
///
/// # Errors
/// [`DatabaseError::NotFound`] when there is no such session.
pub fn row(
    connection: &mut DbConnection,
    id: FederatedSessionId,
) -> Result<SessionRow, DatabaseError> {
    Ok(federated_sessions::table
        .find(id.get())
        .select(SessionRow::as_select())
        .first(connection)?)
}

/// Sessions of a kind with an id below `before`, newest first; of one owner only, where given.
///
/// # Errors
/// Those of the database.
pub fn list(
    connection: &mut DbConnection,
    kind: Kind,
    owner: Option<i64>,
    before: i64,
    limit: i64,
) -> Result<Vec<SessionRow>, DatabaseError> {
    let mut query = federated_sessions::table
        .filter(federated_sessions::kind.eq(kind.as_str()))
        .filter(federated_sessions::id.lt(before))
        .order(federated_sessions::id.desc())
        .limit(limit)
        .select(SessionRow::as_select())
        .into_boxed();
    if let Some(owner) = owner {
        query = query.filter(federated_sessions::owner_id.eq(owner));
    }
    Ok(query.load(connection)?)
}

/// Sessions that have ended with a final adapter, newest first; of one owner only, where given.
///
/// # Errors
/// Those of the database.
pub fn with_files(
    connection: &mut DbConnection,
    owner: Option<i64>,
    limit: i64,
) -> Result<Vec<SessionRow>, DatabaseError> {
    let with_files: Vec<i64> = federated_files::table
        .select(federated_files::session_id)
        .distinct()
        .load(connection)?;
    let with_files: HashSet<i64> = with_files.into_iter().collect();
    let mut query = federated_sessions::table
        .filter(federated_sessions::ended_at.is_not_null())
        .order(federated_sessions::id.desc())
        .limit(limit)
        .select(SessionRow::as_select())
        .into_boxed();
    if let Some(owner) = owner {
        query = query.filter(federated_sessions::owner_id.eq(owner));
    }
    let mut rows: Vec<SessionRow> = query.load(connection)?;
    rows.retain(|row| with_files.contains(&row.id));
    Ok(rows)
}

/// Deletes a session that has ended, with all that is written down of it; false where it has not ended.
///
/// # Errors
/// Those of the database.
pub fn delete(
    connection: &mut DbConnection,
    id: FederatedSessionId,
) -> Result<bool, DatabaseError> {
    let ended = [
        SessionStatus::Finished,
        SessionStatus::Stopped,
        SessionStatus::Failed,
    ];
    let session = federated_sessions::table
        .find(id.get())
        .filter(federated_sessions::status.eq_any(ended.map(SessionStatus::as_str)));
    Ok(diesel::delete(session).execute(connection)? > 0)
}

/// Why what came of a session is not all that it should be.
///
/// # Errors
/// Those of the database.
pub fn explain(
    connection: &mut DbConnection,
    id: FederatedSessionId,
    why: &str,
) -> Result<(), DatabaseError> {
    diesel::update(federated_sessions::table.find(id.get()))
        .set(federated_sessions::error.eq(why))
        .execute(connection)?;
    Ok(())
}

/// All sessions of a kind, oldest first.
///
/// # Errors
/// Those of the database.
pub fn all(connection: &mut DbConnection, kind: Kind) -> Result<Vec<SessionRow>, DatabaseError> {
    Ok(federated_sessions::table
        .filter(federated_sessions::kind.eq(kind.as_str()))
        .order(federated_sessions::id.asc())
        .select(SessionRow::as_select())
        .load(connection)?)
}

/// Whether a session that has not ended uses the data set.
///
/// # Errors
/// Those of the database.
pub fn uses_dataset(
    connection: &mut DbConnection,
    dataset: DatasetId,
) -> Result<bool, DatabaseError> {
    let found: Option<i64> = federated_sessions::table
        .filter(federated_sessions::dataset_id.eq(dataset.get()))
        .filter(federated_sessions::ended_at.is_null())
        .select(federated_sessions::id)
        .first(connection)
        .optional()?;
    Ok(found.is_some())
}

/// The session is prepared: its first round is open. Where it is to be the default one, no other is any more.
///
/// # Errors
/// Those of the database.
pub fn open(
    connection: &mut DbConnection,
    id: FederatedSessionId,
    adapter_config: &str,
    weights: &StoredObject,
    shards: &[ShardRow],
    now: NaiveDateTime,
) -> Result<(), DatabaseError> {
    let preparing = federated_sessions::table
        .find(id.get())
        .filter(federated_sessions::status.eq(SessionStatus::Preparing.as_str()));
    let changed = diesel::update(preparing)
        .set((
            federated_sessions::status.eq(SessionStatus::Open.as_str()),
            federated_sessions::adapter_config.eq(adapter_config),
        ))
        .execute(connection)?;
    if changed == 0 {
        return Err(DatabaseError::NotFound);
    }
    if row(connection, id)?.is_default {
        let others = federated_sessions::table.filter(federated_sessions::id.ne(id.get()));
        diesel::update(others)
            .set(federated_sessions::is_default.eq(false))
            .execute(connection)?;
    }
    for shard in shards {
        diesel::insert_into(federated_shards::table)
            .values(shard)
            .execute(connection)?;
    }
    begin_round(connection, id, 0, weights, false, now)
}

/// The session could not be prepared. One that is open is left as it is; false for that.
///
/// # Errors
/// Those of the database.
pub fn fail(
    connection: &mut DbConnection,
    id: FederatedSessionId,
    error: &str,
    now: NaiveDateTime,
) -> Result<bool, DatabaseError> {
    let preparing = federated_sessions::table
        .find(id.get())
        .filter(federated_sessions::status.eq(SessionStatus::Preparing.as_str()));
    let changed = diesel::update(preparing)
        .set((
            federated_sessions::status.eq(SessionStatus::Failed.as_str()),
            federated_sessions::error.eq(error),
            federated_sessions::ended_at.eq(now),
        ))
        .execute(connection)?;
    Ok(changed > 0)
}

/// The round takes no result any more.
///
/// # Errors
/// Those of the database.
pub fn close(connection: &mut DbConnection, id: FederatedSessionId) -> Result<(), DatabaseError> {
    set_closing(connection, id, true)
}

/// The round was merged: the next one is open, or the session is finished with these files.
///
/// # Errors
/// Those of the database.
pub fn advance(
    connection: &mut DbConnection,
    id: FederatedSessionId,
    round: u64,
    outcome: &Outcome,
    finished: Option<&[FileRow]>,
    now: NaiveDateTime,
) -> Result<(), DatabaseError> {
    eliminate(connection, id, round, &outcome.eliminated)?;
    diesel::update(federated_rounds::table.find((id.get(), integer(round))))
        .set((
            federated_rounds::merged.eq(integer(outcome.merged as u64)),
            federated_rounds::update_norm.eq(outcome.update_norm),
            federated_rounds::closed_at.eq(now),
        ))
        .execute(connection)?;
    let next = round + 1;
    begin_round(
        connection,
        id,
        next,
        &outcome.weights,
        outcome.has_velocity,
        now,
    )?;
    diesel::update(federated_sessions::table.find(id.get()))
        .set((
            federated_sessions::round.eq(integer(next)),
            federated_sessions::closing.eq(false),
        ))
        .execute(connection)?;
    match finished {
        Some(files) => publish(connection, id, SessionStatus::Finished, files, now),
        None => Ok(()),
    }
}

/// The session was ended by request, with these files of what it has made so far.
///
/// # Errors
/// Those of the database.
pub fn stop(
    connection: &mut DbConnection,
    id: FederatedSessionId,
    files: &[FileRow],
    now: NaiveDateTime,
) -> Result<(), DatabaseError> {
    set_closing(connection, id, false)?;
    publish(connection, id, SessionStatus::Stopped, files, now)
}

fn publish(
    connection: &mut DbConnection,
    id: FederatedSessionId,
    status: SessionStatus,
    files: &[FileRow],
    now: NaiveDateTime,
) -> Result<(), DatabaseError> {
    for file in files {
        diesel::insert_into(federated_files::table)
            .values(file)
            .execute(connection)?;
    }
    end(connection, id, status, now)
}

fn end(
    connection: &mut DbConnection,
    id: FederatedSessionId,
    status: SessionStatus,
    now: NaiveDateTime,
) -> Result<(), DatabaseError> {
    diesel::update(federated_sessions::table.find(id.get()))
        .set((
            federated_sessions::status.eq(status.as_str()),
            federated_sessions::ended_at.eq(now),
        ))
        .execute(connection)?;
    Ok(())
}

pub(super) fn set_closing(
    connection: &mut DbConnection,
    id: FederatedSessionId,
    closing: bool,
) -> Result<(), DatabaseError> {
    diesel::update(federated_sessions::table.find(id.get()))
        .set(federated_sessions::closing.eq(closing))
        .execute(connection)?;
    Ok(())
}

fn begin_round(
    connection: &mut DbConnection,
    id: FederatedSessionId,
    round: u64,
    weights: &StoredObject,
    has_velocity: bool,
    now: NaiveDateTime,
) -> Result<(), DatabaseError> {
    diesel::insert_into(federated_rounds::table)
        .values((
            federated_rounds::session_id.eq(id.get()),
            federated_rounds::round.eq(integer(round)),
            federated_rounds::weights_sha256.eq(&weights.sha256),
            federated_rounds::weights_bytes.eq(integer(weights.size_bytes)),
            federated_rounds::has_velocity.eq(has_velocity),
            federated_rounds::opened_at.eq(now),
        ))
        .execute(connection)?;
    Ok(())
}

/// A session's rounds with a number below `before`, newest first.
///
/// # Errors
/// Those of the database.
pub fn rounds(
    connection: &mut DbConnection,
    id: FederatedSessionId,
    before: i64,
    limit: i64,
) -> Result<Vec<RoundRow>, DatabaseError> {
    Ok(federated_rounds::table
        .filter(federated_rounds::session_id.eq(id.get()))
        .filter(federated_rounds::round.lt(before))
        .order(federated_rounds::round.desc())
        .limit(limit)
        .select(RoundRow::as_select())
        .load(connection)?)
}

/// One round of a session.
///
/// # Errors
/// [`DatabaseError::NotFound`] when it has not begun.
pub fn round(
    connection: &mut DbConnection,
    id: FederatedSessionId,
    round: u64,
) -> Result<RoundRow, DatabaseError> {
    Ok(federated_rounds::table
        .find((id.get(), integer(round)))
        .select(RoundRow::as_select())
        .first(connection)?)
}

/// A session's shards, in order.
///
/// # Errors
/// Those of the database.
pub fn shards(
    connection: &mut DbConnection,
    id: FederatedSessionId,
) -> Result<Vec<ShardRow>, DatabaseError> {
    Ok(federated_shards::table
        .filter(federated_shards::session_id.eq(id.get()))
        .order(federated_shards::shard.asc())
        .select(ShardRow::as_select())
        .load(connection)?)
}

/// The files of a session's final adapter.
///
/// # Errors
/// Those of the database.
pub fn files(
    connection: &mut DbConnection,
    id: FederatedSessionId,
) -> Result<Vec<FileRow>, DatabaseError> {
    Ok(federated_files::table
        .filter(federated_files::session_id.eq(id.get()))
        .order(federated_files::name.asc())
        .select(FileRow::as_select())
        .load(connection)?)
}

/// The state machine of a session that has been prepared, as it stands in the database.
///
/// # Errors
/// Those of the database.
pub fn load(
    connection: &mut DbConnection,
    session: &SessionRow,
    now: Moment,
) -> Result<Rounds, DatabaseError> {
    let phase = match session.status()? {
        SessionStatus::Finished => Phase::Finished,
        SessionStatus::Stopped | SessionStatus::Failed => Phase::Stopped,
        SessionStatus::Preparing | SessionStatus::Open if session.closing => Phase::Merging,
        SessionStatus::Preparing | SessionStatus::Open => Phase::Open,
    };
    let round = natural(session.round);
    let mut of_round = |round: u64| -> Result<Results, DatabaseError> {
        let rows = results(connection, session.id(), round)?;
        Ok(rows
            .into_iter()
            .map(|row| (row.participant, row.sha256))
            .collect())
    };
    let given = of_round(round)?;
    let past: VecDeque<Results> = (1..=REMEMBERED_ROUNDS.min(round))
        .map(|back| of_round(round - back))
        .collect::<Result<_, _>>()?;
    Ok(Rounds::new(session.rules(), phase, round, given, past, now))
}
