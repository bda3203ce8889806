//! Exports: a job's result in another form, written by a worker and kept among the job's files.

mod kind;
pub mod routes;
pub mod store;
#[cfg(test)]
mod tests;
mod view;

pub use kind::Exports;
