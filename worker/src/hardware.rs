//! What this machine is, how loaded it is, and how fast it was measured to be.

pub mod benchmark;
mod gpu;
mod load;
mod probe;

pub(crate) use load::rounded;
pub use load::{Load, LoadWatch};
pub use probe::Machine;
pub(crate) use probe::free_memory_bytes;

/// Bytes in what the wire calls a GB: 2^30, so that an 80 GB card is 80.0.
pub(crate) const BYTES_PER_GB: f64 = (1_u64 << 30) as f64;
