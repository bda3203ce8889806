//! Trainyard's platform: the server that workers and dashboards connect to.

pub mod auth;
pub mod config;
pub mod database;
pub mod datasets;
pub mod enrollment_keys;
pub mod error;
mod health;
pub mod http;
pub mod logging;
pub mod openapi;
pub mod server;
pub mod storage;
pub mod users;

#[cfg(test)]
mod testing;
