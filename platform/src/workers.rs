//! Workers: their connections, which of them live, and which gets which job.

mod authentication;
pub mod dispatcher;
pub mod event;
pub mod job_messages;
pub mod lease;
pub mod placement;
pub mod returning;
pub mod routes;
pub mod session;
pub mod socket;
pub mod state;
pub mod store;
pub mod supervisor;
#[cfg(test)]
mod tests;
pub mod updates;

use std::time::Duration;

/// How long a connection may take to become a registered worker (PROTOCOL 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerLimits {
    /// Until `authenticate`.
    pub authentication: Duration,
    /// From there until `worker_register`.
    pub registration: Duration,
}

impl Default for WorkerLimits {
    fn default() -> Self {
        Self {
            authentication: Duration::from_secs(10),
            registration: Duration::from_secs(60),
        }
    }
}
