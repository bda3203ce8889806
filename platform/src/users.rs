//! User accounts: who exists, with which role and quotas.

pub mod first_admin;
pub mod routes;
pub mod store;
#[cfg(test)]
mod tests;

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use crate::auth::Role;
use crate::database::shown_time;

/// Longest e-mail address, in bytes.
const MAX_EMAIL_BYTES: usize = 254;

/// A user as it is shown.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct UserView {
    /// Its number.
    pub id: i64,
    /// Its e-mail, in lower case.
    pub email: String,
    /// What it may do.
    pub role: Role,
    /// Jobs that it may have running at once; null: no limit.
    pub max_concurrent_jobs: Option<i64>,
    /// Bytes of data sets that it may keep; null: no limit.
    pub max_storage_bytes: Option<i64>,
    /// When it was made.
    pub created_at: DateTime<Utc>,
}

impl From<store::User> for UserView {
    fn from(user: store::User) -> Self {
        Self {
            id: user.id,
            email: user.email,
            role: Role::from_stored(&user.role),
            max_concurrent_jobs: user.max_concurrent_jobs,
            max_storage_bytes: user.max_storage_bytes,
            created_at: shown_time(user.created_at),
        }
    }
}

/// An e-mail address as it is stored and compared: trimmed, in lower case.
///
/// # Errors
/// Says what is wrong with it.
pub fn normalize_email(text: &str) -> Result<String, String> {
    let email = text.trim().to_lowercase();
    let has_form = email.split_once('@').is_some_and(|(local, domain)| {
        !local.is_empty() && !domain.is_empty() && !domain.contains('@')
    });
    if !has_form || email.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err("is not an e-mail address".to_owned());
    }
    if email.len() > MAX_EMAIL_BYTES {
        return Err(format!("must not be longer than {MAX_EMAIL_BYTES} bytes"));
    }
    Ok(email)
}
