//! Trainyard's worker: it connects to a platform, takes training jobs and runs them by its own engine, without Python.

pub mod cli;
pub mod config;
pub mod connection;
pub mod hardware;
mod http_proxy;
pub mod logging;
pub mod platform_files;
pub mod privacy;
mod run;
mod state_dir;
pub mod tasks;
mod tls;
pub mod volunteer;

pub use config::WorkerConfig;
pub use run::{WorkerError, run};
pub use tls::CaFileError;
pub use trainyard_engine as engine;
use trainyard_engine::files;
