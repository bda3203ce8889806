//! Data sets: uploaded, checked row by row on the way, kept, shown, deleted.

mod cleanup;
mod intake;
mod preview;
pub mod routes;
pub mod store;
mod stored_file;
#[cfg(test)]
mod tests;

pub use cleanup::remove_unfinished;
