//! How a worker says who it is, and what it hears.

use serde::{Deserialize, Serialize};

use crate::Secret;

/// `authenticate`: the first message on a worker's connection.
///
/// Worker to platform, once for each connection, within ten seconds. A repeat is out of state and is
/// answered with `error`. Source: "Worker connection".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Authenticate {
    /// The worker's own key (`wkr_…`), or an enrolment key (`enroll_…`) the first time.
    pub api_key: Secret,
    /// The worker's UUID, the same as in the URL. Checked by the platform, not here: a wrong one is
    /// an `auth_failed`, not an `error`.
    pub worker_uuid: String,
}

/// `authenticated`: the worker may register now.
///
/// Platform to worker, once for each connection. Source: "Authentication success".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Authenticated {
    /// Always `ok`.
    pub status: String,
    /// The worker's UUID.
    pub worker_id: String,
}

/// `auth_failed`: the key is not taken; the platform closes with 4401 after it.
///
/// Platform to worker, once for each connection. Source: "Authentication failure".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuthFailed {
    /// Why, for a person. Never says whether a key exists.
    pub reason: String,
}
