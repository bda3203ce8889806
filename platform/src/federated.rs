//! Federated training over WebSocket: sessions of this platform's workers, over the rounds that volunteers share
//! with them ([`crate::rounds`]).

pub mod actor;
pub mod directory;
mod inbox;
mod making;
mod orders;
mod privacy;
mod request;
pub mod routes;
pub mod secure;
mod settings;
pub mod state;
pub mod store;
#[cfg(test)]
mod tests;
mod view;

pub use inbox::{refuse_of_closed_round, result_key};
pub use making::{occupied, take_up};
pub use view::told_of_privacy;
