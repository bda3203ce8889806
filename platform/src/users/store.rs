//! SQL of user accounts. Deleted ones keep their row, so that what they made stays attributed.

use chrono::NaiveDateTime;
use diesel::prelude::*;

use crate::auth::Role;
use crate::database::schema::{api_tokens, sessions, users, ws_tokens};
use crate::database::{DatabaseError, DbConnection, last_insert_id};

/// A stored user.
#[derive(Debug, Clone, Queryable, Selectable)]
#[diesel(table_name = users)]
pub struct User {
    /// Its number.
    pub id: i64,
    /// Its e-mail, in lower case.
    pub email: String,
    /// The argon2id string of its password.
    pub password_hash: String,
    /// Its role, as stored.
    pub role: String,
    /// Jobs that it may have running at once.
    pub max_concurrent_jobs: Option<i64>,
    /// Bytes of data sets that it may keep.
    pub max_storage_bytes: Option<i64>,
    /// When it was made.
    pub created_at: NaiveDateTime,
}

/// A user that is to be made.
#[derive(Debug, Clone)]
pub struct NewUser {
    /// Its e-mail, normalised.
    pub email: String,
    /// The argon2id string of its password.
    pub password_hash: String,
    /// Its role.
    pub role: Role,
    /// Jobs that it may have running at once.
    pub max_concurrent_jobs: Option<i64>,
    /// Bytes of data sets that it may keep.
    pub max_storage_bytes: Option<i64>,
}

/// What is to be changed about a user; `None` leaves a field as it is.
#[derive(Debug, Clone, Default, AsChangeset)]
#[diesel(table_name = users)]
pub struct UserChange {
    /// Its role, as stored.
    pub role: Option<String>,
    /// The argon2id string of its password.
    pub password_hash: Option<String>,
    /// Jobs that it may have running at once; `Some(None)`: no limit.
    pub max_concurrent_jobs: Option<Option<i64>>,
    /// Bytes of data sets that it may keep; `Some(None)`: no limit.
    pub max_storage_bytes: Option<Option<i64>>,
}

/// Makes a user.
///
/// # Errors
/// [`DatabaseError::Duplicate`] when the e-mail is taken.
pub fn insert(
    connection: &mut DbConnection,
    user: &NewUser,
    now: NaiveDateTime,
) -> Result<i64, DatabaseError> {
    diesel::insert_into(users::table)
        .values((
            users::email.eq(&user.email),
            users::password_hash.eq(&user.password_hash),
            users::role.eq(user.role.as_str()),
            users::max_concurrent_jobs.eq(user.max_concurrent_jobs),
            users::max_storage_bytes.eq(user.max_storage_bytes),
            users::created_at.eq(now),
        ))
        .execute(connection)?;
    last_insert_id(connection)
}

/// One user.
///
/// # Errors
/// [`DatabaseError::NotFound`] when there is none, or it was deleted.
pub fn get(connection: &mut DbConnection, id: i64) -> Result<User, DatabaseError> {
    Ok(users::table
        .find(id)
        .filter(users::deleted_at.is_null())
        .select(User::as_select())
        .first(connection)?)
}

/// The user with that normalised e-mail.
///
/// # Errors
/// Those of the database.
pub fn find_by_email(
    connection: &mut DbConnection,
    email: &str,
) -> Result<Option<User>, DatabaseError> {
    Ok(users::table
        .filter(users::email.eq(email))
        .filter(users::deleted_at.is_null())
        .select(User::as_select())
        .first(connection)
        .optional()?)
}

/// Users with an id below `before`, newest first.
///
/// # Errors
/// Those of the database.
pub fn list(
    connection: &mut DbConnection,
    before: i64,
    limit: i64,
) -> Result<Vec<User>, DatabaseError> {
    Ok(users::table
        .filter(users::id.lt(before))
        .filter(users::deleted_at.is_null())
        .order(users::id.desc())
        .limit(limit)
        .select(User::as_select())
        .load(connection)?)
}

/// Changes a user.
///
/// # Errors
/// [`DatabaseError::NotFound`] when there is none.
pub fn update(
    connection: &mut DbConnection,
    id: i64,
    change: &UserChange,
) -> Result<User, DatabaseError> {
    let is_empty = change.role.is_none()
        && change.password_hash.is_none()
        && change.max_concurrent_jobs.is_none()
        && change.max_storage_bytes.is_none();
    if !is_empty {
        diesel::update(users::table.find(id).filter(users::deleted_at.is_null()))
            .set(change)
            .execute(connection)?;
    }
    get(connection, id)
}

/// Sets a password.
///
/// # Errors
/// Those of the database.
pub fn set_password(
    connection: &mut DbConnection,
    id: i64,
    password_hash: &str,
) -> Result<(), DatabaseError> {
    diesel::update(users::table.find(id))
        .set(users::password_hash.eq(password_hash))
        .execute(connection)?;
    Ok(())
}

/// Deletes a user with all its credentials.
///
/// # Errors
/// [`DatabaseError::NotFound`] when there is none.
pub fn delete(
    connection: &mut DbConnection,
    id: i64,
    now: NaiveDateTime,
) -> Result<(), DatabaseError> {
    get(connection, id)?;
    diesel::delete(ws_tokens::table.filter(ws_tokens::user_id.eq(id))).execute(connection)?;
    diesel::delete(sessions::table.filter(sessions::user_id.eq(id))).execute(connection)?;
    diesel::delete(api_tokens::table.filter(api_tokens::user_id.eq(id))).execute(connection)?;
    diesel::update(users::table.find(id))
        .set(users::deleted_at.eq(now))
        .execute(connection)?;
    Ok(())
}

/// Whether an administrator would remain without that user.
///
/// # Errors
/// Those of the database.
pub fn has_other_admin(connection: &mut DbConnection, id: i64) -> Result<bool, DatabaseError> {
    let others = users::table
        .filter(users::role.eq(Role::Admin.as_str()))
        .filter(users::deleted_at.is_null())
        .filter(users::id.ne(id));
    Ok(diesel::select(diesel::dsl::exists(others)).get_result(connection)?)
}
