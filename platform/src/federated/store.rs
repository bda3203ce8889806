//! SQL of the workers that take part in sessions, beside that of sessions and rounds ([`crate::rounds::store`]).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::NaiveDateTime;
use diesel::prelude::*;
use trainyard_shared::ids::{DatasetId, FederatedSessionId, WorkerId};

use super::settings::Settings;
use super::state::{Failed, Times};
use crate::database::schema::{federated_participants, federated_sessions};
use crate::database::{DatabaseError, DbConnection, from_json_text, to_json_text};
use crate::rounds::Kind;
use crate::rounds::store::{SessionRow, integer, natural};

/// The name under which a worker takes part.
pub fn participant(worker: WorkerId) -> String {
    worker.to_string()
}

/// The worker of that name.
pub fn worker(participant: &str) -> Option<WorkerId> {
    participant.parse().ok()
}

/// Workers that take part now, and what is known of all that ever did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Workers {
    /// Those that take part now.
    pub members: BTreeSet<WorkerId>,
    /// The shards of all.
    pub shards: BTreeMap<WorkerId, u64>,
    /// How often some failed in a row.
    pub failures: BTreeMap<WorkerId, Failed>,
}

/// The sessions of workers that have not ended, oldest first.
///
/// # Errors
/// Those of the database.
pub fn under_way(connection: &mut DbConnection) -> Result<Vec<SessionRow>, DatabaseError> {
    Ok(federated_sessions::table
        .filter(federated_sessions::kind.eq(Kind::Workers.as_str()))
        .filter(federated_sessions::ended_at.is_null())
        .order(federated_sessions::id.asc())
        .select(SessionRow::as_select())
        .load(connection)?)
}

/// The workers of a session.
///
/// # Errors
/// Those of the database.
pub fn workers(
    connection: &mut DbConnection,
    id: FederatedSessionId,
) -> Result<Workers, DatabaseError> {
    type Row = (String, i64, bool, i64, Option<String>);
    let rows: Vec<Row> = federated_participants::table
        .filter(federated_participants::session_id.eq(id.get()))
        .select((
            federated_participants::name,
            federated_participants::shard,
            federated_participants::takes_part,
            federated_participants::failures,
            federated_participants::last_error,
        ))
        .load(connection)?;
    let mut workers = Workers::default();
    for (name, shard, takes_part, failures, error) in rows {
        let Some(worker) = worker(&name) else {
            continue;
        };
        workers.shards.insert(worker, natural(shard));
        if takes_part {
            workers.members.insert(worker);
        }
        if failures > 0 {
            let failed = Failed {
                count: u32::try_from(failures).unwrap_or(u32::MAX),
                error: error.unwrap_or_default(),
            };
            workers.failures.insert(worker, failed);
        }
    }
    Ok(workers)
}

/// A worker takes part from now on, with that shard.
///
/// # Errors
/// Those of the database.
pub fn join(
    connection: &mut DbConnection,
    id: FederatedSessionId,
    worker: WorkerId,
    shard: u64,
    now: NaiveDateTime,
) -> Result<(), DatabaseError> {
    let name = participant(worker);
    diesel::insert_into(federated_participants::table)
        .values((
            federated_participants::session_id.eq(id.get()),
            federated_participants::name.eq(&name),
            federated_participants::shard.eq(integer(shard)),
            federated_participants::joined_at.eq(now),
        ))
        .on_conflict_do_nothing()
        .execute(connection)?;
    set_takes_part(connection, id, worker, true)
}

/// A worker does not take part any more.
///
/// # Errors
/// Those of the database.
pub fn leave(
    connection: &mut DbConnection,
    id: FederatedSessionId,
    worker: WorkerId,
) -> Result<(), DatabaseError> {
    set_takes_part(connection, id, worker, false)
}

/// How often a worker has failed in a row, and why the last time.
///
/// # Errors
/// Those of the database.
pub fn note_failures(
    connection: &mut DbConnection,
    id: FederatedSessionId,
    worker: WorkerId,
    failed: Option<&Failed>,
) -> Result<(), DatabaseError> {
    diesel::update(federated_participants::table.find((id.get(), participant(worker))))
        .set((
            federated_participants::failures.eq(failed.map_or(0, |failed| i64::from(failed.count))),
            federated_participants::last_error.eq(failed.map(|failed| failed.error.as_str())),
        ))
        .execute(connection)?;
    Ok(())
}

/// How long workers of a session took for rounds.
///
/// # Errors
/// Those of the database; times that cannot be read.
pub fn times(
    connection: &mut DbConnection,
    id: FederatedSessionId,
) -> Result<Times, DatabaseError> {
    let stored: Option<String> = federated_sessions::table
        .find(id.get())
        .select(federated_sessions::worker_times)
        .first(connection)?;
    let millis: Vec<u64> = stored.map_or(Ok(Vec::new()), |text| from_json_text(&text))?;
    Ok(Times::new(
        millis.into_iter().map(Duration::from_millis).collect(),
    ))
}

/// The same, written down.
///
/// # Errors
/// Those of the database.
pub fn note_times(
    connection: &mut DbConnection,
    id: FederatedSessionId,
    times: &Times,
) -> Result<(), DatabaseError> {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let millis: Vec<u64> = times.all().map(millis).collect();
    diesel::update(federated_sessions::table.find(id.get()))
        .set(federated_sessions::worker_times.eq(to_json_text(&millis)?))
        .execute(connection)?;
    Ok(())
}

/// The round, from 0, in which shares were asked for last.
///
/// # Errors
/// Those of the database.
pub fn revealed_round(
    connection: &mut DbConnection,
    id: FederatedSessionId,
) -> Result<Option<u64>, DatabaseError> {
    let round: Option<i64> = federated_sessions::table
        .find(id.get())
        .select(federated_sessions::revealed_round)
        .first(connection)?;
    Ok(round.map(natural))
}

/// The same, written down.
///
/// # Errors
/// Those of the database.
pub fn note_revealing(
    connection: &mut DbConnection,
    id: FederatedSessionId,
    round: u64,
) -> Result<(), DatabaseError> {
    diesel::update(federated_sessions::table.find(id.get()))
        .set(federated_sessions::revealed_round.eq(integer(round)))
        .execute(connection)?;
    Ok(())
}

fn set_takes_part(
    connection: &mut DbConnection,
    id: FederatedSessionId,
    worker: WorkerId,
    takes_part: bool,
) -> Result<(), DatabaseError> {
    diesel::update(federated_participants::table.find((id.get(), participant(worker))))
        .set(federated_participants::takes_part.eq(takes_part))
        .execute(connection)?;
    Ok(())
}

/// Whether a session of workers that has not ended uses the data set.
///
/// # Errors
/// Those of the database; settings that cannot be read.
pub fn uses_dataset(
    connection: &mut DbConnection,
    dataset: DatasetId,
) -> Result<bool, DatabaseError> {
    for row in under_way(connection)? {
        if Settings::of(&row)?.dataset_ids.contains(&dataset) {
            return Ok(true);
        }
    }
    Ok(false)
}
