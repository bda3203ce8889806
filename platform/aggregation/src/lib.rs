//! What becomes of the adapters that the participants of a round upload: each is checked as it comes, and at the round's
//! end they are merged into the next global adapter. A library without messages and network.
//!
//! 1. [`check()`] compares an upload with the global adapter (keys, shapes, types, finite values) and measures how far it
//!    went. Nothing of an upload that is refused has any effect.
//! 2. [`merge()`] leaves out what went much too far, combines the rest by a [`Rule`] and writes the next adapter.
//!
//! Where single results may not be seen, [`write_mean()`] makes one of their sum.
//!
//! The result depends on what was uploaded and by whom, never on the order of arrival or the number of threads: sums are
//! taken in f64 in the order of the participants' names, over pieces whose bounds are fixed. Files are read in such
//! pieces, so memory stays at a few of them however many uploads there are.

mod check;
mod combination;
mod error;
mod krum;
mod layout;
mod mean;
mod merge;
mod outer_step;
mod outliers;
mod pieces;
mod refusal;
mod rows;
mod rule;
mod sweep;
#[cfg(test)]
mod tests;

pub use check::{CheckError, Checked, check};
pub use error::AggregationError;
pub use layout::{GlobalAdapter, Layout, TensorLayout};
pub use mean::{WrittenMean, write_mean};
pub use merge::{Eliminated, Elimination, IsStopped, Merge, Merged, Update, merge};
pub use refusal::Refusal;
pub use rule::{Rule, UnknownRule};

#[cfg(target_endian = "big")]
compile_error!("safetensors files are little-endian, and are read here as they lie");
