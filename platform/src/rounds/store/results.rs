//! SQL of the results that participants send.

use chrono::NaiveDateTime;
use diesel::prelude::*;
use trainyard_shared::ids::FederatedSessionId;

use super::{integer, set_closing};
use crate::database::schema::{federated_participants, federated_results, federated_rounds};
use crate::database::{DatabaseError, DbConnection};

/// A result's row.
#[derive(Debug, Clone, PartialEq, Queryable, Selectable, Insertable)]
#[diesel(table_name = federated_results)]
#[allow(missing_docs)] // columns are described in migrations/
pub struct ResultRow {
    pub session_id: i64,
    pub round: i64,
    pub participant: String,
    pub number: i64,
    pub sha256: String,
    pub size_bytes: i64,
    pub delta_norm: f64,
    pub weight: i64,
    pub loss: Option<f64>,
    pub eliminated_because: Option<String>,
    pub accepted_at: NaiveDateTime,
}

/// A result counts; with it the round closes, or does not. Its participant has joined before.
///
/// # Errors
/// [`DatabaseError::Duplicate`] where the participant has one in this round.
pub fn accept(
    connection: &mut DbConnection,
    result: &ResultRow,
    closes: bool,
) -> Result<(), DatabaseError> {
    insert(connection, result)?;
    if closes {
        set_closing(connection, FederatedSessionId(result.session_id), true)?;
    }
    Ok(())
}

/// These results count, as one file that is their mean; the round closes with it. Of single losses nothing is known.
///
/// # Errors
/// Those of the database.
pub fn accept_mean(
    connection: &mut DbConnection,
    id: FederatedSessionId,
    round: u64,
    results: &[ResultRow],
    loss: Option<f64>,
) -> Result<(), DatabaseError> {
    for result in results {
        insert(connection, result)?;
    }
    diesel::update(federated_rounds::table.find((id.get(), integer(round))))
        .set(federated_rounds::loss.eq(loss))
        .execute(connection)?;
    set_closing(connection, id, true)
}

fn insert(connection: &mut DbConnection, result: &ResultRow) -> Result<(), DatabaseError> {
    diesel::insert_into(federated_results::table)
        .values(result)
        .execute(connection)?;
    let participant =
        federated_participants::table.find((result.session_id, result.participant.as_str()));
    diesel::update(participant)
        .set(federated_participants::accepted.eq(federated_participants::accepted + 1))
        .execute(connection)?;
    Ok(())
}

/// These results were left out of the mean.
///
/// # Errors
/// Those of the database.
pub fn eliminate(
    connection: &mut DbConnection,
    id: FederatedSessionId,
    round: u64,
    eliminated: &[(String, String)],
) -> Result<(), DatabaseError> {
    for (participant, why) in eliminated {
        let result = (id.get(), integer(round), participant.as_str());
        diesel::update(federated_results::table.find(result))
            .set(federated_results::eliminated_because.eq(why))
            .execute(connection)?;
        count_eliminated(connection, id, participant)?;
    }
    Ok(())
}

/// The round is open again without these results: none of them could be merged.
///
/// # Errors
/// Those of the database.
pub fn reopen(
    connection: &mut DbConnection,
    id: FederatedSessionId,
    round: u64,
    without: &[String],
) -> Result<(), DatabaseError> {
    for participant in without {
        let result = (id.get(), integer(round), participant.as_str());
        diesel::delete(federated_results::table.find(result)).execute(connection)?;
        let known = federated_participants::table.find((id.get(), participant.as_str()));
        diesel::update(known)
            .set(federated_participants::accepted.eq(federated_participants::accepted - 1))
            .execute(connection)?;
        count_eliminated(connection, id, participant)?;
    }
    set_closing(connection, id, false)
}

fn count_eliminated(
    connection: &mut DbConnection,
    id: FederatedSessionId,
    participant: &str,
) -> Result<(), DatabaseError> {
    diesel::update(federated_participants::table.find((id.get(), participant)))
        .set(federated_participants::eliminated.eq(federated_participants::eliminated + 1))
        .execute(connection)?;
    Ok(())
}

/// The results of a round, by participant.
///
/// # Errors
/// Those of the database.
pub fn results(
    connection: &mut DbConnection,
    id: FederatedSessionId,
    round: u64,
) -> Result<Vec<ResultRow>, DatabaseError> {
    Ok(federated_results::table
        .filter(federated_results::session_id.eq(id.get()))
        .filter(federated_results::round.eq(integer(round)))
        .order(federated_results::participant.asc())
        .select(ResultRow::as_select())
        .load(connection)?)
}

/// The results of a session's rounds from `first` to `last`, by round and participant.
///
/// # Errors
/// Those of the database.
pub fn results_of_session(
    connection: &mut DbConnection,
    id: FederatedSessionId,
    first: i64,
    last: i64,
) -> Result<Vec<ResultRow>, DatabaseError> {
    Ok(federated_results::table
        .filter(federated_results::session_id.eq(id.get()))
        .filter(federated_results::round.between(first, last))
        .order((
            federated_results::round.asc(),
            federated_results::participant.asc(),
        ))
        .select(ResultRow::as_select())
        .load(connection)?)
}
