//! SQL of those who take part: their shards, and how they have behaved.

use chrono::NaiveDateTime;
use diesel::prelude::*;
use trainyard_shared::ids::FederatedSessionId;

use super::integer;
use crate::database::schema::federated_participants;
use crate::database::{DatabaseError, DbConnection};

/// A participant's row.
#[derive(Debug, Clone, PartialEq, Eq, Queryable, Selectable)]
#[diesel(table_name = federated_participants)]
#[allow(missing_docs)] // columns are described in migrations/
pub struct ParticipantRow {
    pub name: String,
    pub shard: i64,
    pub accepted: i64,
    pub refused: i64,
    pub eliminated: i64,
    pub late: i64,
    pub joined_at: NaiveDateTime,
}

/// What is counted against a participant, beside the results that were left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Uploads that were not valid.
    pub refused: u64,
    /// Results for a round that was closed.
    pub late: u64,
}

/// New participants with their shards. Those that are known keep what they have.
///
/// # Errors
/// Those of the database.
pub fn join(
    connection: &mut DbConnection,
    id: FederatedSessionId,
    joining: &[(String, u64)],
    now: NaiveDateTime,
) -> Result<(), DatabaseError> {
    for (name, shard) in joining {
        diesel::insert_into(federated_participants::table)
            .values((
                federated_participants::session_id.eq(id.get()),
                federated_participants::name.eq(name),
                federated_participants::shard.eq(integer(*shard)),
                federated_participants::joined_at.eq(now),
            ))
            .on_conflict_do_nothing()
            .execute(connection)?;
    }
    Ok(())
}

/// Forgets participants that have sent nothing.
///
/// # Errors
/// Those of the database.
pub fn leave(
    connection: &mut DbConnection,
    id: FederatedSessionId,
    names: &[String],
) -> Result<(), DatabaseError> {
    for name in names {
        let idle = federated_participants::table
            .find((id.get(), name.as_str()))
            .filter(federated_participants::accepted.eq(0))
            .filter(federated_participants::refused.eq(0));
        diesel::delete(idle).execute(connection)?;
    }
    Ok(())
}

/// Counts more against participants. Who never joined is not counted.
///
/// # Errors
/// Those of the database.
pub fn count(
    connection: &mut DbConnection,
    id: FederatedSessionId,
    more: &[(String, Tally)],
) -> Result<(), DatabaseError> {
    for (name, tally) in more {
        diesel::update(federated_participants::table.find((id.get(), name.as_str())))
            .set((
                federated_participants::refused
                    .eq(federated_participants::refused + integer(tally.refused)),
                federated_participants::late.eq(federated_participants::late + integer(tally.late)),
            ))
            .execute(connection)?;
    }
    Ok(())
}

/// Who takes part, by name.
///
/// # Errors
/// Those of the database.
pub fn participants(
    connection: &mut DbConnection,
    id: FederatedSessionId,
) -> Result<Vec<ParticipantRow>, DatabaseError> {
    Ok(federated_participants::table
        .filter(federated_participants::session_id.eq(id.get()))
        .order(federated_participants::name.asc())
        .select(ParticipantRow::as_select())
        .load(connection)?)
}

/// Up to so many of those who take part whose names come after `after`, by name.
///
/// # Errors
/// Those of the database.
pub fn participants_from(
    connection: &mut DbConnection,
    id: FederatedSessionId,
    after: &str,
    limit: i64,
) -> Result<Vec<ParticipantRow>, DatabaseError> {
    Ok(federated_participants::table
        .filter(federated_participants::session_id.eq(id.get()))
        .filter(federated_participants::name.gt(after))
        .order(federated_participants::name.asc())
        .limit(limit)
        .select(ParticipantRow::as_select())
        .load(connection)?)
}
