//! Dashboards: who watches what, and what each is sent.

pub mod hub;
pub mod session;
pub mod socket;
#[cfg(test)]
mod tests;
