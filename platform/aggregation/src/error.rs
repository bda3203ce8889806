//! Why a merge could not be made; what is wrong with an upload is a [`Refusal`].

use std::io;
use std::path::{Path, PathBuf};

use trainyard_engine::EngineError;

use crate::Refusal;

/// What stands in the way of a check or a merge, through no fault of an upload.
#[derive(Debug, thiserror::Error)]
pub enum AggregationError {
    /// A file could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was being done, as a verb: "read", "write".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's own error.
        source: io::Error,
    },
    /// The global adapter or the velocity that goes with it cannot be used.
    #[error("{}: {message}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// An upload is not any more what was checked.
    #[error("the result of {name} has changed since it was checked: {refusal}")]
    Changed {
        /// The participant.
        name: String,
        /// What is wrong with it now.
        refusal: Refusal,
    },
    /// An upload cannot be read any more.
    #[error("the result of {name} cannot be read: {source}")]
    Unreadable {
        /// The participant.
        name: String,
        /// The system's own error.
        source: io::Error,
    },
    /// Whoever asked for the merge wants it no more.
    #[error("stopped")]
    Stopped,
    /// A mean that was summed elsewhere cannot be an adapter.
    #[error("the mean of the results would not be finite")]
    NotFinite,
    /// There is nothing to merge.
    #[error("a round without a result cannot be merged")]
    NoUpdates,
    /// A participant counts once.
    #[error("there are two results of {0}")]
    TwoUpdates(String),
    /// The system gave no threads.
    #[error("no threads to merge on: {0}")]
    Threads(#[from] rayon::ThreadPoolBuildError),
}

/// ENOMEM, ENFILE and EMFILE on every Unix: what is short is the machine's, whichever file was to be read.
const SHORTAGES: [i32; 3] = [12, 23, 24];

impl AggregationError {
    /// The same of a participant's file: says whose it is, where the fault is the file's.
    pub(crate) fn of_result(self, name: &str) -> Self {
        let is_shortage = |error: &io::Error| {
            error
                .raw_os_error()
                .is_some_and(|code| SHORTAGES.contains(&code))
        };
        match self {
            Self::Io { source, .. } if !is_shortage(&source) => Self::Unreadable {
                name: name.to_owned(),
                source,
            },
            other => other,
        }
    }

    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }

    pub(crate) fn unusable(path: &Path, message: impl Into<String>) -> Self {
        Self::Unusable {
            path: path.to_owned(),
            message: message.into(),
        }
    }
}

impl From<EngineError> for AggregationError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Io {
                action,
                path,
                source,
            } => Self::Io {
                action,
                path,
                source,
            },
            EngineError::InvalidModel { path, message } => Self::Unusable { path, message },
            other => Self::Unusable {
                path: PathBuf::new(),
                message: other.to_string(),
            },
        }
    }
}
