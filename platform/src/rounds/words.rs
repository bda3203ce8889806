//! The words for who trains in a session and where it stands, as the database and the API have them.

use serde::Serialize;
use utoipa::ToSchema;

/// Who trains in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Workers of the platform, over WebSocket.
    Workers,
    /// Anyone, over Coordinator protocol v1.
    Volunteers,
}

/// Where a session stands, as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionStatus {
    /// Weights and shards are being made.
    Preparing,
    /// A round is open, or being merged.
    Open,
    /// All rounds are done.
    Finished,
    /// Ended by request.
    Stopped,
    /// It could not be prepared.
    Failed,
}

/// A word in the database that is none of those there may be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no word for this column")]
pub struct UnknownWord(String);

macro_rules! words {
    ($name:ident { $($variant:ident = $word:literal),* $(,)? }) => {
        impl $name {
            /// The word.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),*
                }
            }
        }

        impl std::str::FromStr for $name {
            type Err = UnknownWord;

            fn from_str(text: &str) -> Result<Self, UnknownWord> {
                match text {
                    $($word => Ok(Self::$variant),)*
                    other => Err(UnknownWord(other.to_owned())),
                }
            }
        }
    };
}

words!(Kind {
    Workers = "workers",
    Volunteers = "volunteers",
});
words!(SessionStatus {
    Preparing = "preparing",
    Open = "open",
    Finished = "finished",
    Stopped = "stopped",
    Failed = "failed",
});
impl SessionStatus {
    /// Whether nothing can change any more.
    pub const fn is_ended(self) -> bool {
        matches!(self, Self::Finished | Self::Stopped | Self::Failed)
    }
}
