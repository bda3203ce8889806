//! Llama-family models: their configuration, weights, adapters, and the batches that run through them.

mod adapter;
mod batch;
mod config;
mod parameter;

pub use adapter::{Adapter, LoraModule};
pub use batch::{Batch, IGNORE, LossSum};
pub use config::{ModelConfig, Projection, RopeScaling};
pub use parameter::Parameter;
