//! Owns how passwords are hashed and checked: argon2id, on threads of their own, a few at a time.

use argon2::Argon2;
use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use tokio::sync::Semaphore;

use crate::error::ApiError;
use trainyard_shared::Secret;

/// Fewest characters of a password.
const MIN_CHARACTERS: usize = 8;
/// Longest password in bytes; longer ones would only cost time.
const MAX_BYTES: usize = 1024;

/// Each hash takes 19 MiB: so many are computed at once, whatever number of logins arrive.
static HASHING: Semaphore = Semaphore::const_new(4);

/// Checked in place of a stored hash when there is no such user, so that both take the same time.
const NOBODY: &str = "$argon2id$v=19$m=19456,t=2,p=1$pCt1MCsYY+7/HavQYnx17Q$BJLFmF3nK0ojOECzAw93eklLCAJgCk9/7mJMa4uouSg";

/// Whether a new password may be used.
///
/// # Errors
/// Says what is wrong with it, without repeating it.
pub fn check_strength(password: &str) -> Result<(), String> {
    if password.chars().count() < MIN_CHARACTERS {
        return Err(format!("must have at least {MIN_CHARACTERS} characters"));
    }
    check_length(password)
}

/// Whether a password is short enough to be hashed at all.
///
/// # Errors
/// Says what is wrong with it, without repeating it.
pub fn check_length(password: &str) -> Result<(), String> {
    if password.len() > MAX_BYTES {
        return Err(format!("must not be longer than {MAX_BYTES} bytes"));
    }
    Ok(())
}

/// The argon2id string to store for a password.
///
/// # Errors
/// When it could not be computed.
pub async fn hash(password: Secret) -> Result<String, ApiError> {
    on_own_thread(move || hash_blocking(&password))
        .await?
        .map_err(ApiError::internal)
}

/// Whether the password fits the stored string; without one (there is no such user) the answer is no, after the
/// same work.
///
/// # Errors
/// When it could not be computed.
pub async fn verify(password: Secret, stored: Option<String>) -> Result<bool, ApiError> {
    if check_length(password.expose()).is_err() {
        return Ok(false);
    }
    on_own_thread(move || {
        let (text, exists) = match &stored {
            Some(text) => (text.as_str(), true),
            None => (NOBODY, false),
        };
        let fits = PasswordHash::new(text).is_ok_and(|parsed| {
            Argon2::default()
                .verify_password(password.expose().as_bytes(), &parsed)
                .is_ok()
        });
        fits && exists
    })
    .await
}

fn hash_blocking(password: &Secret) -> Result<String, argon2::password_hash::Error> {
    Ok(Argon2::default()
        .hash_password(password.expose().as_bytes())?
        .to_string())
}

async fn on_own_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    let _permit = HASHING.acquire().await.map_err(ApiError::internal)?;
    tokio::task::spawn_blocking(work)
        .await
        .map_err(ApiError::internal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_password_fits_its_own_hash_only() {
        let stored = hash(Secret::from("correct horse")).await.unwrap();
        assert!(stored.starts_with("$argon2id$"));
        assert!(
            verify(Secret::from("correct horse"), Some(stored.clone()))
                .await
                .unwrap()
        );
        assert!(
            !verify(Secret::from("wrong horse"), Some(stored.clone()))
                .await
                .unwrap()
        );
        assert!(
            !verify(Secret::from("the password of nobody"), None)
                .await
                .unwrap()
        );
        assert!(
            !verify(Secret::from("x".repeat(2000)), Some(stored))
                .await
                .unwrap()
        );
    }

    #[tokio::test]
    async fn a_user_that_does_not_exist_costs_as_much_as_one_that_does() {
        let cost = |stored: &str| {
            stored
                .split('$')
                .take(4)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let stored = hash(Secret::from("correct horse")).await.unwrap();
        assert_eq!(cost(NOBODY), cost(&stored));
        let parsed = PasswordHash::new(NOBODY).unwrap();
        assert!(
            Argon2::default()
                .verify_password(b"the password of nobody", &parsed)
                .is_ok()
        );
    }

    #[test]
    fn short_and_endless_passwords_are_refused() {
        assert!(check_strength("seven77").is_err());
        assert!(check_strength("eight888").is_ok());
        assert!(check_strength(&"x".repeat(1025)).is_err());
    }
}
