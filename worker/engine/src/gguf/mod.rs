//! Base models in one GGUF file: structure, values, configuration, tokenizer and chat template.

mod blocks;
mod config;
mod describe;
mod encode;
mod model;
mod names;
mod quantise;
mod reader;
mod sentencepiece;
mod tokenizer;
mod vocabulary;
mod writer;

pub use blocks::BlockType;
pub(crate) use blocks::{fives, nibbles, six_bits};
pub(crate) use describe::{
    ROPE_DIVISORS, architecture, model_metadata, rope_divisors, rows_in_file_order,
    weight_in_file_order,
};
pub use encode::WrittenType;
pub use model::GgufModel;
pub(crate) use names::gguf_name;
pub use quantise::quantise;
pub use reader::{Structure, TensorInfo, Value, read_structure};
pub(crate) use vocabulary::tokenizer_metadata;
pub use writer::{WrittenTensor, write_file};

#[cfg(test)]
mod golden_tests;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
