//! The connection to the platform: who the worker is, what it still has to deliver, when it tries again.

mod actor;
mod answers;
pub mod backoff;
mod delivery;
#[cfg(test)]
pub(crate) mod fake_platform;
pub mod identity;
mod incoming;
mod link;
pub mod outbox;
mod reports;
#[cfg(test)]
mod tests;
mod tokens;
pub mod waiting;

pub use actor::{Connection, Leave, Parts};
pub use reports::{Activity, Deliver, Reports, SendReport, SharedActivity, TellActivity};
pub use tokens::WaitingTokens;
