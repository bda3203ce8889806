//! Owns the tokens with which a dashboard opens its WebSocket: 60 seconds, one use, one user.

use chrono::{NaiveDateTime, TimeDelta};
use diesel::prelude::*;

use super::{Credential, NewToken, Role, TokenHash, TokenKind};
use crate::database::schema::{users, ws_tokens};
use crate::database::{DatabaseError, DbConnection};

/// How long a token is valid.
pub const LIFETIME: TimeDelta = TimeDelta::seconds(60);

/// Who opens a WebSocket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WsTokenOwner {
    /// The user.
    pub user_id: i64,
    /// The role that the credential had when the token was made, and the user's now: the lower one.
    pub role: Role,
    /// With what the token was asked for: when that is revoked, the socket is to be closed.
    pub credential: Credential,
}

/// Makes a token, and removes those that were never used.
///
/// # Errors
/// Those of the database.
pub fn insert(
    connection: &mut DbConnection,
    user_id: i64,
    credential: Credential,
    now: NaiveDateTime,
) -> Result<NewToken, DatabaseError> {
    diesel::delete(ws_tokens::table.filter(ws_tokens::expires_at.le(now))).execute(connection)?;
    let token = TokenKind::WebSocket.issue();
    let (session_id, api_token_id) = match credential {
        Credential::Session(id) => (Some(id), None),
        Credential::ApiToken(id) => (None, Some(id)),
    };
    diesel::insert_into(ws_tokens::table)
        .values((
            ws_tokens::token_hash.eq(token.hash.as_bytes()),
            ws_tokens::user_id.eq(user_id),
            ws_tokens::session_id.eq(session_id),
            ws_tokens::api_token_id.eq(api_token_id),
            ws_tokens::expires_at.eq(now + LIFETIME),
        ))
        .execute(connection)?;
    Ok(token)
}

/// Redeems a token for the WebSocket of `user_id`. Any try uses the token up, a wrong one too. To be run on the
/// writer: of two tries at once, one finds the token gone.
///
/// # Errors
/// Those of the database.
pub fn redeem(
    connection: &mut DbConnection,
    token: &str,
    user_id: i64,
    now: NaiveDateTime,
) -> Result<Option<WsTokenOwner>, DatabaseError> {
    let hash = TokenHash::of(token);
    let row = ws_tokens::table
        .find(hash.as_bytes().to_vec())
        .select(WsTokenRow::as_select())
        .first(connection)
        .optional()?;
    diesel::delete(ws_tokens::table.find(hash.as_bytes().to_vec())).execute(connection)?;
    let Some(row) = row
        .filter(|row| hash.is(&row.token_hash) && row.user_id == user_id && row.expires_at > now)
    else {
        return Ok(None);
    };
    let credential = match (row.session_id, row.api_token_id) {
        (Some(id), _) => Credential::Session(id),
        (None, Some(id)) => Credential::ApiToken(id),
        (None, None) => return Ok(None),
    };
    let own: Option<String> = users::table
        .find(user_id)
        .filter(users::deleted_at.is_null())
        .select(users::role)
        .first(connection)
        .optional()?;
    let Some(own) = own.map(|role| Role::from_stored(&role)) else {
        return Ok(None);
    };
    let role = match credential {
        Credential::Session(_) => own,
        Credential::ApiToken(id) => own.min(api_token_role(connection, id)?),
    };
    Ok(Some(WsTokenOwner {
        user_id,
        role,
        credential,
    }))
}

#[derive(Queryable, Selectable)]
#[diesel(table_name = ws_tokens)]
struct WsTokenRow {
    token_hash: Vec<u8>,
    user_id: i64,
    session_id: Option<i64>,
    api_token_id: Option<i64>,
    expires_at: NaiveDateTime,
}

fn api_token_role(connection: &mut DbConnection, id: i64) -> Result<Role, DatabaseError> {
    use crate::database::schema::api_tokens;
    let role: Option<String> = api_tokens::table
        .find(id)
        .select(api_tokens::role)
        .first(connection)
        .optional()?;
    Ok(role.map_or(Role::Viewer, |role| Role::from_stored(&role)))
}
