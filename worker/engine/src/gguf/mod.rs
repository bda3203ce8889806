//! Base models in one GGUF file: structure, values, configuration, tokenizer and chat template.

mod blocks;
mod config;
mod model;
mod reader;
mod tokenizer;

pub use blocks::BlockType;
pub(crate) use blocks::{fives, nibbles, six_bits};
pub use model::GgufModel;
pub use reader::{Structure, TensorInfo, Value, read_structure};

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
