//! Enrolment keys: how a machine becomes a worker.

mod redeem;
pub mod routes;
mod store;

pub use redeem::{Enrolled, EnrollmentRefused, redeem};
