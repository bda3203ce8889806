//! Volunteer sessions: Coordinator protocol v1 over HTTP, at the root for the default session and under `/c/{name}/`
//! for each, and the REST API by which they are made.
//!
//! Field names on the wire and in requests are the protocol's Turkish ones: `tur` round, `parca` shard, `isci`
//! worker, `en_az` at least, `ic_adim` inner steps, `bitti` finished, `hata` error.

pub mod directory;
pub mod downloads;
mod hosted;
mod http;
pub mod polling;
mod preparing;
mod query;
mod refusal;
mod request;
pub mod results;
pub mod routes;
mod settings;
mod slots;
#[cfg(test)]
pub(crate) mod tests;
mod view;

pub use http::{is_ours, method_not_allowed, no_such_path, routes as protocol_routes};
pub use preparing::take_up;
pub use refusal::Refused;
pub use settings::Settings;
pub use slots::UploadSlots;
