//! Token shards, as coordinators serve them to volunteers: `safetensors-ids-v1`.
//!
//! ```text
//! ids      I32 [n]   a sequence of tokens
//! etiket   I32 [n]   the same tokens, -100 where no loss is computed; left out where it falls on every token
//! ```
//! A token is a label of its own: `etiket[i]` says whether `ids[i]` is to be learned from what stands before it.

mod pack;
mod read;

pub use pack::{Packed, PackedShard, Packing};
pub use read::Shard;
pub(super) use read::Windows;

/// What the format is called.
pub const SHARD_FORMAT: &str = "safetensors-ids-v1";

/// Name of the tokens.
const IDS: &str = "ids";
/// Name of the labels.
const LABELS: &str = "etiket";
/// After so many tokens that were read, memory that a map takes up is given back.
const KEPT_TOKENS: usize = 16 * 1024 * 1024;

#[cfg(test)]
mod tests;
