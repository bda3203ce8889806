//! Trainyard's worker: it connects to a platform, takes training jobs and runs them by its own engine, without Python.

pub mod config;
pub mod connection;
pub mod engine;
mod files;
pub mod hardware;
pub mod platform_files;
pub mod tasks;
mod tls;

pub use config::WorkerConfig;
