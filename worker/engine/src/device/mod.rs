//! The CPU beneath the operations: threads, memory, vector instructions, and the kernel of matrix products.
//!
//! Activations of `[tokens, width]` are stored by blocks of [`LANES`] tokens as `[block][feature][lane]`, so that
//! a vector register always holds one feature of neighbouring tokens: sums over features need no shuffles, weights
//! are broadcast as they lie, and the output of one operation is the input of the next without any reordering.

mod activations;
mod buffer;
mod cache;
mod cores;
mod instructions;
mod mapped;
pub(crate) mod math;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod matrix_unit;
pub(crate) mod outer;
mod own_memory;
mod panels;
mod parts;
pub(crate) mod product;
mod shared;
mod team;
mod threads;
pub(crate) mod tile;
mod transpose;
pub(crate) mod weight;

pub use activations::{Activations, ActivationsMut, LANES, padded_tokens};
#[cfg(test)]
pub(crate) use buffer::LimitedAllocations;
pub use buffer::{Buffer, Carver};
pub use instructions::INSTRUCTIONS;
pub(crate) use instructions::instructions;
pub use mapped::MappedFile;
pub(crate) use own_memory::with_own_memory;
pub(crate) use panels::PANEL;
pub use panels::Panels;
pub(crate) use parts::{Count, Parts, rows_mut};
pub(crate) use shared::Shared;
pub(crate) use team::Team;
pub use threads::{run, set_threads, threads};
pub(crate) use transpose::transpose_block;
pub use weight::{StoredRows, WeightMatrix};
