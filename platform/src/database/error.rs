//! Owns what can go wrong with the database, told apart as far as callers act on it.

use diesel::result::{DatabaseErrorKind, Error as DieselError};
use std::path::PathBuf;

/// Why a query gave no result.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// The row that was asked for does not exist.
    #[error("no such row")]
    NotFound,
    /// A row with this unique value exists already.
    #[error("duplicate row: {0}")]
    Duplicate(String),
    /// The row is referred to by others, or refers to one that does not exist.
    #[error("reference between rows violated: {0}")]
    Referenced(String),
    /// The disk is full. Nothing was changed.
    #[error("the disk of the database is full")]
    Full,
    /// Another process held the lock for too long. Nothing was changed.
    #[error("the database is locked")]
    Busy,
    /// The platform is shutting down.
    #[error("the database has been closed")]
    Stopped,
    /// The query itself panicked. Nothing was changed.
    #[error("a query panicked")]
    Panicked,
    /// The database could not be opened.
    #[error("database {path}: {reason}", path = path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the driver said.
        reason: String,
    },
    /// The tables could not be brought up to date.
    #[error("migration failed: {0}")]
    Migration(String),
    /// Anything else that the database said.
    #[error("query failed: {0}")]
    Query(#[source] DieselError),
}

impl From<DieselError> for DatabaseError {
    fn from(error: DieselError) -> Self {
        match error {
            DieselError::NotFound => Self::NotFound,
            DieselError::DatabaseError(DatabaseErrorKind::UniqueViolation, info) => {
                Self::Duplicate(info.message().to_owned())
            }
            DieselError::DatabaseError(DatabaseErrorKind::ForeignKeyViolation, info) => {
                Self::Referenced(info.message().to_owned())
            }
            // SQLite's driver has no kind of its own for these two; the texts are those of sqlite3_errstr.
            DieselError::DatabaseError(_, ref info)
                if info.message() == "database or disk is full" =>
            {
                Self::Full
            }
            DieselError::DatabaseError(_, ref info)
                if info.message().starts_with("database is locked")
                    || info.message().starts_with("database table is locked") =>
            {
                Self::Busy
            }
            other => Self::Query(other),
        }
    }
}
