//! Evaluations: how well a model knows a data set, measured by a worker.

mod kind;
pub mod routes;
pub mod store;
#[cfg(test)]
mod tests;
mod view;

pub use kind::Evaluations;
