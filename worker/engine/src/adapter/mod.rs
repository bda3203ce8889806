//! LoRA adapters in PEFT's form: what its config means, fresh weights, and its files.

mod config;
mod files;
mod fresh;
mod targets;
mod whole;

pub use config::AdapterConfig;
pub use files::{
    ADAPTER_CONFIG, ADAPTER_WEIGHTS, NamedTensor, SavedAdapter, base_model_of, load, load_all,
    named_tensors, peft_name, replaces_weights, save, save_tensors,
};
pub(crate) use files::{read_tensor, write_tensors};
pub use fresh::fresh;
pub use whole::WholeWeights;

#[cfg(test)]
mod tests;
