//! SQL of enrolment keys.

use chrono::NaiveDateTime;
use diesel::prelude::*;

use crate::auth::{NewToken, TokenKind};
use crate::database::schema::enrollment_keys;
use crate::database::{DatabaseError, DbConnection, last_insert_id};

/// A stored key, without its text.
#[derive(Debug, Clone, Queryable, Selectable)]
#[diesel(table_name = enrollment_keys)]
pub(super) struct EnrollmentKey {
    pub(super) id: i64,
    pub(super) key_hash: Vec<u8>,
    pub(super) name_prefix: Option<String>,
    pub(super) max_uses: Option<i64>,
    pub(super) uses: i64,
    pub(super) created_at: NaiveDateTime,
    pub(super) expires_at: NaiveDateTime,
    pub(super) revoked_at: Option<NaiveDateTime>,
}

/// A key that is to be made.
pub(super) struct NewEnrollmentKey {
    pub(super) name_prefix: Option<String>,
    pub(super) max_uses: Option<i64>,
    pub(super) created_by: i64,
    pub(super) expires_at: NaiveDateTime,
}

pub(super) fn insert(
    connection: &mut DbConnection,
    new: &NewEnrollmentKey,
    now: NaiveDateTime,
) -> Result<(i64, NewToken), DatabaseError> {
    let key = TokenKind::Enrollment.issue();
    diesel::insert_into(enrollment_keys::table)
        .values((
            enrollment_keys::key_hash.eq(key.hash.as_bytes()),
            enrollment_keys::name_prefix.eq(&new.name_prefix),
            enrollment_keys::max_uses.eq(new.max_uses),
            enrollment_keys::created_by.eq(new.created_by),
            enrollment_keys::created_at.eq(now),
            enrollment_keys::expires_at.eq(new.expires_at),
        ))
        .execute(connection)?;
    Ok((last_insert_id(connection)?, key))
}

pub(super) fn list(
    connection: &mut DbConnection,
    before: i64,
    limit: i64,
) -> Result<Vec<EnrollmentKey>, DatabaseError> {
    Ok(enrollment_keys::table
        .filter(enrollment_keys::id.lt(before))
        .order(enrollment_keys::id.desc())
        .limit(limit)
        .select(EnrollmentKey::as_select())
        .load(connection)?)
}

/// Revokes a key; tells whether there is such a key. Revoking twice is the same as once.
pub(super) fn revoke(
    connection: &mut DbConnection,
    id: i64,
    now: NaiveDateTime,
) -> Result<bool, DatabaseError> {
    diesel::update(
        enrollment_keys::table
            .find(id)
            .filter(enrollment_keys::revoked_at.is_null()),
    )
    .set(enrollment_keys::revoked_at.eq(now))
    .execute(connection)?;
    Ok(
        diesel::select(diesel::dsl::exists(enrollment_keys::table.find(id)))
            .get_result(connection)?,
    )
}

pub(super) fn find_by_hash(
    connection: &mut DbConnection,
    hash: &[u8],
) -> Result<Option<EnrollmentKey>, DatabaseError> {
    Ok(enrollment_keys::table
        .filter(enrollment_keys::key_hash.eq(hash))
        .select(EnrollmentKey::as_select())
        .first(connection)
        .optional()?)
}

/// Counts one use, unless all are used up; tells whether it was counted.
pub(super) fn count_use(connection: &mut DbConnection, id: i64) -> Result<bool, DatabaseError> {
    let usable = enrollment_keys::table.find(id).filter(
        enrollment_keys::max_uses
            .is_null()
            .or(enrollment_keys::max_uses.gt(enrollment_keys::uses.nullable())),
    );
    let counted = diesel::update(usable)
        .set(enrollment_keys::uses.eq(enrollment_keys::uses + 1))
        .execute(connection)?;
    Ok(counted == 1)
}
