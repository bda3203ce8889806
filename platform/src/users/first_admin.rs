//! Owns the administrator that is made at the first start, when there is none.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use trainyard_shared::Secret;

use super::store::{self, NewUser};
use crate::auth::{Role, password};
use crate::config::Config;
use crate::database::{Database, DatabaseError, now};
use crate::error::ApiError;

/// The administrator that was just made.
#[derive(Debug, Clone)]
pub struct FirstAdmin {
    /// Its e-mail.
    pub email: String,
    /// Its password where it was made up; `None` where the settings gave one.
    pub generated_password: Option<Secret>,
}

/// Makes the administrator of the settings when there is no administrator.
///
/// # Errors
/// When the e-mail belongs to a user without that role, or the database fails.
pub async fn make_if_none(
    database: &Database,
    config: &Config,
) -> Result<Option<FirstAdmin>, ApiError> {
    let exists = database
        .read::<_, DatabaseError, _>(|c| store::has_other_admin(c, 0))
        .await?;
    if exists {
        return Ok(None);
    }
    let generated_password = match config.admin_password {
        Some(_) => None,
        None => Some(Secret::from(
            URL_SAFE_NO_PAD.encode(rand::random::<[u8; 18]>()),
        )),
    };
    let Some(secret) = config
        .admin_password
        .clone()
        .or_else(|| generated_password.clone())
    else {
        return Err(ApiError::internal(
            "the first administrator has no password",
        ));
    };
    if let Err(problem) = password::check_strength(secret.expose()) {
        tracing::warn!(problem, "ADMIN_PASSWORD is weak; change it");
    }
    let admin = NewUser {
        email: config.admin_email.clone(),
        password_hash: password::hash(secret).await?,
        role: Role::Admin,
        max_concurrent_jobs: None,
        max_storage_bytes: None,
    };
    database
        .write::<_, DatabaseError, _>(move |c| store::insert(c, &admin, now()))
        .await?;
    tracing::info!(email = %config.admin_email, "first administrator made");
    Ok(Some(FirstAdmin {
        email: config.admin_email.clone(),
        generated_password,
    }))
}
