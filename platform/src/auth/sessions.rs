//! Owns signed-in sessions: made by a login, ended by a logout, a new password or their age.

use chrono::{NaiveDateTime, TimeDelta};
use diesel::prelude::*;

use super::{NewToken, Role, TokenHash, TokenKind};
use crate::database::schema::{sessions, users};
use crate::database::{DatabaseError, DbConnection};

/// How long a session lasts.
pub const LIFETIME: TimeDelta = TimeDelta::days(30);

/// A valid session and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionOwner {
    /// The session.
    pub session_id: i64,
    /// The user.
    pub user_id: i64,
    /// Its e-mail.
    pub email: String,
    /// Its role now.
    pub role: Role,
}

/// Makes a session, and removes those of the user that have ended by age.
///
/// # Errors
/// Those of the database.
pub fn insert(
    connection: &mut DbConnection,
    user_id: i64,
    now: NaiveDateTime,
) -> Result<NewToken, DatabaseError> {
    diesel::delete(
        sessions::table
            .filter(sessions::user_id.eq(user_id))
            .filter(sessions::expires_at.le(now)),
    )
    .execute(connection)?;
    let token = TokenKind::Session.issue();
    diesel::insert_into(sessions::table)
        .values((
            sessions::user_id.eq(user_id),
            sessions::token_hash.eq(token.hash.as_bytes()),
            sessions::created_at.eq(now),
            sessions::expires_at.eq(now + LIFETIME),
        ))
        .execute(connection)?;
    Ok(token)
}

/// Whose session a token belongs to, if it is valid.
///
/// # Errors
/// Those of the database.
pub fn find(
    connection: &mut DbConnection,
    token: &TokenHash,
    now: NaiveDateTime,
) -> Result<Option<SessionOwner>, DatabaseError> {
    let row: Option<(i64, Vec<u8>, i64, String, String)> = sessions::table
        .inner_join(users::table)
        .filter(sessions::token_hash.eq(token.as_bytes()))
        .filter(sessions::expires_at.gt(now))
        .filter(users::deleted_at.is_null())
        .select((
            sessions::id,
            sessions::token_hash,
            users::id,
            users::email,
            users::role,
        ))
        .first(connection)
        .optional()?;
    Ok(row.filter(|(_, stored, ..)| token.is(stored)).map(
        |(session_id, _, user_id, email, role)| SessionOwner {
            session_id,
            user_id,
            email,
            role: Role::from_stored(&role),
        },
    ))
}

/// Ends one session.
///
/// # Errors
/// Those of the database.
pub fn delete(connection: &mut DbConnection, session_id: i64) -> Result<(), DatabaseError> {
    diesel::delete(sessions::table.find(session_id)).execute(connection)?;
    Ok(())
}

/// Ends all sessions of a user but one; tells which were ended.
///
/// # Errors
/// Those of the database.
pub fn delete_others(
    connection: &mut DbConnection,
    user_id: i64,
    kept: Option<i64>,
) -> Result<Vec<i64>, DatabaseError> {
    let others = sessions::table
        .filter(sessions::user_id.eq(user_id))
        .filter(sessions::id.ne(kept.unwrap_or(0)));
    let ended = others.select(sessions::id).load(connection)?;
    diesel::delete(others).execute(connection)?;
    Ok(ended)
}
