//! Who is asking: passwords, sessions, API tokens, WebSocket tokens, workers' keys, roles and rate limits.

pub mod api_tokens;
mod bearer;
mod client_address;
mod current_user;
mod current_worker;
pub mod password;
pub mod rate_limit;
mod revocation;
mod role;
pub mod routes;
mod secret_key;
pub mod sessions;
#[cfg(test)]
mod tests;
mod token;
pub mod worker_keys;
pub mod ws_tokens;

pub use bearer::bearer_token;
pub use client_address::client_address;
pub use current_user::{CSRF_HEADER, Credential, CurrentUser, SESSION_COOKIE};
pub use current_worker::CurrentWorker;
pub use revocation::{Revocation, Revocations};
pub use role::Role;
pub use secret_key::SecretKey;
pub use token::{NewToken, TokenHash, TokenKind};
