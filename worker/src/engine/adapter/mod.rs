//! LoRA adapters in PEFT's form: what its config means, fresh weights, and its files.

mod config;
mod files;
mod fresh;
mod targets;

pub use config::AdapterConfig;
pub use files::{ADAPTER_CONFIG, ADAPTER_WEIGHTS, load, named_tensors, save};
pub use fresh::fresh;

#[cfg(test)]
mod tests;
