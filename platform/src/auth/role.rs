//! Owns the roles and what they may do.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What a user may do. The order is that of their rights.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Sees all, changes nothing.
    Viewer,
    /// Sees and changes its own; uses all workers and models.
    Member,
    /// Everything.
    Admin,
}

impl Role {
    /// As stored and as written in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Member => "member",
            Self::Admin => "admin",
        }
    }

    /// From what is stored. What is not known has the fewest rights.
    pub fn from_stored(text: &str) -> Self {
        match text {
            "admin" => Self::Admin,
            "member" => Self::Member,
            _ => Self::Viewer,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
