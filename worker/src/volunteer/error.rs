//! Why a volunteer ends before its coordinator says so.

use std::io;
use std::path::{Path, PathBuf};

use crate::engine::EngineError;
use crate::state_dir::StateDirError;
use crate::tasks::base_model::ModelUnavailable;
use crate::tasks::transfers::TransferError;

/// Why a volunteer ends before its coordinator says so.
#[derive(Debug, thiserror::Error)]
pub enum VolunteerError {
    /// Something that it was started with is not taken: another try would end the same way.
    #[error("{0}")]
    Arguments(String),
    /// The coordinator asks for something that this volunteer or machine cannot do.
    #[error("{0}")]
    NotPossible(String),
    /// The coordinator has refused result after result.
    #[error("the coordinator refused {times} results in a row: {last}")]
    Refused {
        /// How many.
        times: u32,
        /// What it said last.
        last: String,
    },
    /// The base model.
    #[error(transparent)]
    Model(#[from] ModelUnavailable),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The state folder belongs to another process, or cannot be used.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// A file of the state folder.
    #[error("cannot {action} {}: {source}", path.display())]
    State {
        /// What was being done, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The disk, in a transfer.
    #[error(transparent)]
    Disk(TransferError),
    /// The HTTP client.
    #[error("http client: {0}")]
    Http(#[from] reqwest::Error),
    /// It was asked to end.
    #[error("stopped{}", if *kept { "; the round's result is kept and delivered at the next start" } else { "" })]
    Stopped {
        /// Whether a result waits for its delivery.
        kept: bool,
    },
}

impl VolunteerError {
    pub(super) fn state(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::State {
            action,
            path: path.to_owned(),
            source,
        }
    }

    /// Whether it may pass by itself: a hub comes back, a disk is given room.
    pub(super) fn may_pass(&self) -> bool {
        let is_full = |error: &io::Error| {
            matches!(
                error.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            )
        };
        match self {
            Self::Model(error) => error.may_pass(),
            Self::Disk(error) => error.is_about_room(),
            Self::Engine(EngineError::Io { source, .. }) | Self::State { source, .. } => {
                is_full(source)
            }
            _ => false,
        }
    }

    /// Whether the command line is to blame.
    pub fn is_about_arguments(&self) -> bool {
        matches!(self, Self::Arguments(_))
    }
}
