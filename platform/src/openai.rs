//! The part of OpenAI's API that chat programs use, over this platform's models (API.md: `/v1`).

pub mod chat;
mod error;
pub mod models;
mod request;
mod script;
#[cfg(test)]
mod tests;
