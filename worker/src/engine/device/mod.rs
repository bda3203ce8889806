//! What the engine needs from the machine.

mod mapped_file;

pub use mapped_file::MappedFile;
