//! Enrolment keys: how a machine becomes a worker.

mod redeem;
pub mod routes;
mod store;
#[cfg(test)]
mod tests;

pub use redeem::{Enrolled, EnrollmentRefused, redeem};
