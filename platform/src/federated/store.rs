//! SQL of the workers that take part in sessions, beside that of sessions and rounds ([`crate::rounds::store`]).

use std::collections::{BTreeMap, BTreeSet};

use chrono::NaiveDateTime;
use diesel::prelude::*;
use trainyard_shared::ids::{DatasetId, FederatedSessionId, WorkerId};

use super::settings::Settings;
use crate::database::schema::{federated_participants, federated_sessions};
use crate::database::{DatabaseError, DbConnection};
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

/// Workers that take part now, and the shards of all that ever did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Workers {
    /// Those that take part now.
    pub members: BTreeSet<WorkerId>,
    /// The shards of all.
    pub shards: BTreeMap<WorkerId, u64>,
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
    let rows: Vec<(String, i64, bool)> = federated_participants::table
        .filter(federated_participants::session_id.eq(id.get()))
        .select((
            federated_participants::name,
            federated_participants::shard,
            federated_participants::takes_part,
        ))
        .load(connection)?;
    let mut workers = Workers::default();
    for (name, shard, takes_part) in rows {
        let Some(worker) = worker(&name) else {
            continue;
        };
        workers.shards.insert(worker, natural(shard));
        if takes_part {
            workers.members.insert(worker);
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
