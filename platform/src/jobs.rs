//! Jobs: what becomes of them, who runs them, how they are stored and shown.

pub mod actor;
mod change;
pub mod commit;
pub mod directory;
pub mod event;
pub mod failure;
pub mod history;
pub mod history_routes;
pub mod log_budget;
pub mod news;
mod orders;
pub mod phase;
pub mod progress;
pub mod recovery;
pub mod routes;
pub mod state;
pub mod store;
#[cfg(test)]
mod tests;
mod view;
mod waiting;

pub use commit::add_artifact;
pub use view::result_folder;
