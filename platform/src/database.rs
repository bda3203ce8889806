//! The database: connections, the threads that run queries, migrations and the tables' schema.

mod connection;
mod error;
mod executor;
mod json_text;
mod migrate;
pub mod schema;
#[cfg(test)]
mod tests;

use chrono::{DateTime, NaiveDateTime, SubsecRound, Utc};
use diesel::prelude::*;

pub use connection::{DbConnection, sqlite_path};
pub use error::DatabaseError;
pub use executor::Database;
pub use json_text::{from_json_text, to_json_text};

/// The current time as it is stored: UTC, to the microsecond.
pub fn now() -> NaiveDateTime {
    Utc::now().naive_utc().trunc_subsecs(6)
}

/// A stored time as it is shown.
pub fn shown_time(stored: NaiveDateTime) -> DateTime<Utc> {
    stored.and_utc()
}

/// A database in memory with all tables, for one test.
#[cfg(test)]
pub(crate) fn in_memory() -> DbConnection {
    let mut connection = DbConnection::establish(":memory:").expect("memory is always there");
    migrate::run(&mut connection).expect("migrations run");
    connection
}

/// The id that the last insert on this connection was given. To be asked within the same transaction.
///
/// # Errors
/// Those of the query.
pub fn last_insert_id(connection: &mut DbConnection) -> Result<i64, DatabaseError> {
    Ok(
        diesel::select(diesel::dsl::sql::<diesel::sql_types::BigInt>(
            "last_insert_rowid()",
        ))
        .get_result(connection)?,
    )
}
