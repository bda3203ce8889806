//! The training engine: Llama-family models on a CPU, forward, backward and generation, without Python.
//!
//! A library without messages or network: the worker's tasks drive it and turn its events into messages.

pub mod adapter;
pub mod chat_template;
pub mod checkpoint;
pub mod data;
pub mod device;
mod error;
pub mod evaluate;
pub mod export;
pub mod files;
pub mod generate;
pub mod gguf;
#[cfg(test)]
pub(crate) mod golden;
pub mod model;
pub mod ops;
pub mod optimizer;
pub mod profile;
pub mod random;
pub mod schedule;
pub mod tokenizer;
pub mod trainer;
pub mod weights;

pub use error::EngineError;
