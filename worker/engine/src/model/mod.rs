//! Llama-family models: their configuration, weights, adapters, and the batches that run through them.

mod adapter;
#[cfg(test)]
mod architecture_tests;
mod backward;
mod batch;
mod config;
mod decode;
mod forward;
#[cfg(test)]
mod golden_tests;
mod holding;
#[cfg(test)]
mod holding_tests;
mod llama;
mod memory;
mod parameter;
mod pass_size;
mod train;
mod trainable;

pub use adapter::{Adapter, LoraModule};
pub use batch::{Batch, IGNORE, LossSum, TokenScore};
pub use config::{Architecture, MAX_HEAD_DIM, ModelConfig, Projection, RopeScaling, SlidingWindow};
pub use decode::{CacheRoom, Context, Decoder, LoadedAdapter, Prefill};
pub use forward::Masks;
pub use holding::{Held, Holding};
pub use llama::Llama;
pub(crate) use llama::Weight;
pub use parameter::{Parameter, Parameters};
pub use pass_size::PassSize;
pub use train::TrainModel;
