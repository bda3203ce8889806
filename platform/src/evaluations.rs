//! Evaluations: how well a model knows a data set, measured by a worker.

pub mod actor;
pub mod directory;
mod orders;
pub mod routes;
pub mod state;
pub mod store;
#[cfg(test)]
mod tests;
mod view;
