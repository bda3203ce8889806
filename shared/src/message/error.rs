//! The answer to a message that cannot be taken.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{JobId, MessageId};

/// `error`: a message was not taken, and nothing changed because of it.
///
/// Both ways, once for each such message. Twenty within a minute close the connection with 4400.
/// Ours: PROTOCOL 1 and 11.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Error {
    /// What kind of fault.
    pub code: ErrorCode,
    /// What is wrong, for a person.
    pub message: String,
    /// The `type` of the message that is answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_reply_to: Option<String>,
    /// The `message_id` of the message that is answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// The job that the message was about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<JobId>,
}

impl Error {
    /// An error that names the type that it answers.
    pub fn in_reply_to(wire_type: &str, code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            in_reply_to: Some(wire_type.to_owned()),
            message_id: None,
            job_id: None,
        }
    }
}

/// What kind of fault an [`Error`] reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The `type` is not known.
    UnknownType,
    /// Not JSON that is taken, or fields that do not fit.
    InvalidMessage,
    /// Only `authenticate` is taken before authentication.
    NotAuthenticated,
    /// Only `worker_register` is taken before registration.
    NotRegistered,
    /// The message names another worker, or a job, inference or evaluation of another worker.
    WrongWorker,
    /// What is asked for does not exist or may not be seen.
    NotFound,
    /// A file that the message names is not stored as described: store it, then send again.
    ArtifactMissing,
    /// The platform cannot take it now: send it again later.
    TryAgain,
    /// More subscriptions than one dashboard may have.
    TooManySubscriptions,
    /// A code that is not known here.
    #[serde(other)]
    Other,
}

impl ErrorCode {
    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::UnknownType => "unknown_type",
            Self::InvalidMessage => "invalid_message",
            Self::NotAuthenticated => "not_authenticated",
            Self::NotRegistered => "not_registered",
            Self::WrongWorker => "wrong_worker",
            Self::NotFound => "not_found",
            Self::ArtifactMissing => "artifact_missing",
            Self::TryAgain => "try_again",
            Self::TooManySubscriptions => "too_many_subscriptions",
            Self::Other => "other",
        }
    }

    /// Whether the message that is answered should be kept and sent again (PROTOCOL 11).
    pub const fn keeps_message(self) -> bool {
        matches!(self, Self::ArtifactMissing | Self::TryAgain)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
