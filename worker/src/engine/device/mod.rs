//! What the engine needs from the machine.

mod mapped;

pub use mapped::MappedFile;
