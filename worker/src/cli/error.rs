//! Why a command failed, as it is told to the person at the terminal.

use std::io;
use std::process::ExitCode;

use crate::WorkerError;
use crate::config::ConfigError;
use crate::engine::EngineError;
use crate::tasks::base_model::ModelUnavailable;
use crate::volunteer::VolunteerError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// A setting.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The worker cannot run.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The base model.
    #[error(transparent)]
    Model(#[from] ModelUnavailable),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A volunteer's.
    #[error(transparent)]
    Volunteer(#[from] VolunteerError),
    /// The HTTP client.
    #[error("http client: {0}")]
    Http(#[from] reqwest::Error),
    /// A file or stream could not be read or written.
    #[error("{what}: {source}")]
    Io {
        /// What was tried, with the path.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// The input does not make sense.
    #[error("{0}")]
    Input(String),
    /// Ended by a signal before it was done.
    #[error("{0}")]
    Stopped(String),
}

impl CliError {
    /// An error of the system, with what was tried.
    pub fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io {
            what: what.into(),
            source,
        }
    }

    /// What the process ends with.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Volunteer(error) if error.is_about_arguments() => ExitCode::from(2),
            _ => ExitCode::FAILURE,
        }
    }

    /// Whether the reader of our output has gone away: nobody is left to tell.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
    }
}
