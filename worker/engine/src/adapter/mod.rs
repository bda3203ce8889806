//! LoRA adapters in PEFT's form: what its config means, fresh weights, and its files.

mod config;
mod files;
mod fresh;
mod targets;

pub use config::AdapterConfig;
pub use files::{
    ADAPTER_CONFIG, ADAPTER_WEIGHTS, NamedTensor, base_model_of, load, named_tensors, peft_name,
    save, save_tensors,
};
pub(crate) use files::{read_tensor, write_tensors};
pub use fresh::fresh;

#[cfg(test)]
mod tests;
