//! The CPU beneath the operations: threads, memory, vector instructions, and the kernel of matrix products.
//!
//! Activations of `[tokens, width]` are stored by blocks of [`LANES`] tokens as `[block][feature][lane]`, so that
//! a vector register always holds one feature of neighbouring tokens: sums over features need no shuffles, weights
//! are broadcast as they lie, and the output of one operation is the input of the next without any reordering.

mod activations;
mod buffer;
mod cache;
mod mapped;
pub(crate) mod math;
pub(crate) mod outer;
mod panels;
pub(crate) mod product;
mod shared;
mod team;
mod threads;
pub(crate) mod tile;
pub(crate) mod weight;

pub use activations::{Activations, ActivationsMut, LANES, padded_tokens};
#[cfg(test)]
pub(crate) use buffer::LimitedAllocations;
pub use buffer::{Buffer, Carver};
pub use mapped::MappedFile;
pub(crate) use panels::PANEL;
pub use panels::Panels;
pub(crate) use shared::Shared;
pub(crate) use team::Team;
pub use threads::{run, set_threads, threads};
pub use weight::{StoredRows, WeightMatrix};
