//! Secure aggregation of a session's rounds: what workers say in an attempt comes in here ([`reports`]), and the sum that
//! is left once the masks are off is read and becomes the round's only result ([`sum`]). What follows from what is
//! decided in [`super::state::masking`].

pub mod reports;
pub mod sum;
