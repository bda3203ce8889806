//! Training in rounds: many train the same adapter, their results are merged, and the next round begins with what
//! came of it. What is here is the same for workers over WebSocket and for volunteers over HTTP.

pub mod actor;
pub mod beginning;
pub mod deleting;
pub mod keys;
pub mod leftovers;
mod merging;
pub mod news;
pub mod participants;
mod publish;
mod recording;
pub mod scratch;
pub mod session;
#[cfg(test)]
mod simulation;
pub mod state;
pub mod store;
pub mod tries;
mod words;

pub use words::{Kind, SessionStatus, UnknownWord};
