//! Inference: chats that workers continue, from the request to the last token.

pub mod actor;
pub mod directory;
pub mod events;
mod orders;
pub mod placement;
pub mod record;
pub mod request;
pub mod router;
pub mod routes;
pub mod state;
#[cfg(test)]
mod tests;
mod view;
