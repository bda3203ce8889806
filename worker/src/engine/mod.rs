//! The training engine: Llama-family models on a CPU, forward, backward and generation, without Python.
//!
//! A library without messages or network: the worker's tasks drive it and turn its events into messages.

mod error;
pub mod model;

pub use error::EngineError;
