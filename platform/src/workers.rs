//! Workers: their connections, which of them live, and which gets which job.

pub mod event;
pub mod placement;
pub mod state;
