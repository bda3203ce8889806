//! Jobs: what becomes of them, who runs them, how they are stored and shown.

pub mod event;
pub mod failure;
pub mod progress;
pub mod state;
