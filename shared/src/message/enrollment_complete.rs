//! A worker's own key, given once.

use serde::{Deserialize, Serialize};

use crate::Secret;
use crate::ids::WorkerId;

/// `enrollment_complete`: the key that the worker uses from now on.
///
/// Platform to worker: once, before `authenticated`, when it came with an enrolment key; again when
/// its key is replaced. A repeat holds the newest key: storing it again is harmless. Source:
/// "Enrollment flow".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EnrollmentComplete {
    /// What was made.
    pub data: EnrollmentCompleteData,
}

/// Content of [`EnrollmentComplete`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EnrollmentCompleteData {
    /// The worker's number; the only place on the socket where it is not named by its UUID.
    pub worker_id: WorkerId,
    /// The worker's name at the platform.
    pub worker_name: String,
    /// The worker's own key, `wkr_…`.
    pub api_key: Secret,
}
