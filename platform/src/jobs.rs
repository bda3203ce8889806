//! Jobs: what becomes of them, who runs them, how they are stored and shown.

pub mod commit;
pub mod event;
pub mod failure;
pub mod history;
pub mod progress;
pub mod state;
pub mod store;
