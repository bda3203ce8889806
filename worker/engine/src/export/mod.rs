//! What leaves the engine: whole models in Hugging Face's form, and the card that goes with an adapter.
//!
//! Values are written tensor by tensor, so that memory holds a few tensors whatever the model's size. A value that
//! is not finite, or would not be in the type that is asked for, is never written.

mod card;
mod float_type;
mod model_folder;
mod safetensors;

pub use card::{ModelCard, write_card};
pub use float_type::FloatType;
pub use model_folder::{FolderOptions, MAX_SHARD_BYTES, write_model_folder};

#[cfg(test)]
mod tests;
