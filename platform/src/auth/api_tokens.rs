//! Owns personal API tokens: shown once, with a role no higher than their owner's.

use chrono::NaiveDateTime;
use diesel::prelude::*;

use super::{NewToken, Role, TokenHash, TokenKind};
use crate::database::schema::{api_tokens, users};
use crate::database::{DatabaseError, DbConnection, last_insert_id};

/// A stored API token.
#[derive(Debug, Clone, PartialEq, Eq, Queryable, Selectable)]
#[diesel(table_name = api_tokens)]
pub struct ApiToken {
    /// Its id.
    pub id: i64,
    /// What its owner calls it.
    pub name: String,
    /// Its role, as stored.
    pub role: String,
    /// When it was made.
    pub created_at: NaiveDateTime,
    /// When it ends; `None`: never.
    pub expires_at: Option<NaiveDateTime>,
}

/// A valid API token and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiTokenOwner {
    /// The token.
    pub api_token_id: i64,
    /// The user.
    pub user_id: i64,
    /// Its e-mail.
    pub email: String,
    /// The lower of the token's role and the user's role now.
    pub role: Role,
}

/// Makes a token.
///
/// # Errors
/// Those of the database.
pub fn insert(
    connection: &mut DbConnection,
    user_id: i64,
    name: &str,
    role: Role,
    expires_at: Option<NaiveDateTime>,
    now: NaiveDateTime,
) -> Result<(i64, NewToken), DatabaseError> {
    let token = TokenKind::ApiToken.issue();
    diesel::insert_into(api_tokens::table)
        .values((
            api_tokens::user_id.eq(user_id),
            api_tokens::name.eq(name),
            api_tokens::role.eq(role.as_str()),
            api_tokens::token_hash.eq(token.hash.as_bytes()),
            api_tokens::created_at.eq(now),
            api_tokens::expires_at.eq(expires_at),
        ))
        .execute(connection)?;
    Ok((last_insert_id(connection)?, token))
}

/// Tokens of a user with an id below `before`, newest first.
///
/// # Errors
/// Those of the database.
pub fn list(
    connection: &mut DbConnection,
    user_id: i64,
    before: i64,
    limit: i64,
) -> Result<Vec<ApiToken>, DatabaseError> {
    Ok(api_tokens::table
        .filter(api_tokens::user_id.eq(user_id))
        .filter(api_tokens::id.lt(before))
        .order(api_tokens::id.desc())
        .limit(limit)
        .select(ApiToken::as_select())
        .load(connection)?)
}

/// Whose token it is, if it is valid.
///
/// # Errors
/// Those of the database.
pub fn find(
    connection: &mut DbConnection,
    token: &TokenHash,
    now: NaiveDateTime,
) -> Result<Option<ApiTokenOwner>, DatabaseError> {
    let row: Option<(i64, Vec<u8>, String, i64, String, String)> = api_tokens::table
        .inner_join(users::table)
        .filter(api_tokens::token_hash.eq(token.as_bytes()))
        .filter(
            api_tokens::expires_at
                .is_null()
                .or(api_tokens::expires_at.gt(now)),
        )
        .filter(users::deleted_at.is_null())
        .select((
            api_tokens::id,
            api_tokens::token_hash,
            api_tokens::role,
            users::id,
            users::email,
            users::role,
        ))
        .first(connection)
        .optional()?;
    Ok(row.filter(|(_, stored, ..)| token.is(stored)).map(
        |(api_token_id, _, own, user_id, email, users)| {
            let role = Role::from_stored(&own).min(Role::from_stored(&users));
            ApiTokenOwner {
                api_token_id,
                user_id,
                email,
                role,
            }
        },
    ))
}

/// Revokes a token of a user; tells whether there was one.
///
/// # Errors
/// Those of the database.
pub fn delete(connection: &mut DbConnection, user_id: i64, id: i64) -> Result<bool, DatabaseError> {
    let own = api_tokens::table
        .filter(api_tokens::user_id.eq(user_id))
        .filter(api_tokens::id.eq(id));
    Ok(diesel::delete(own).execute(connection)? > 0)
}
