//! Trainyard's platform: the server that workers and dashboards connect to.

pub mod actors;
pub mod artifacts;
pub mod auth;
pub mod clock;
pub mod config;
pub mod conformance;
pub mod coordinator;
pub mod dashboards;
pub mod database;
pub mod datasets;
pub mod enrollment_keys;
pub mod error;
pub mod evaluations;
pub mod exports;
pub mod federated;
mod health;
pub mod http;
pub mod inference;
pub mod jobs;
pub mod logging;
pub mod metrics;
pub mod models;
pub mod openai;
pub mod openapi;
pub mod rounds;
pub mod server;
pub mod sockets;
pub mod storage;
pub mod tasks;
pub mod tls;
pub mod users;
pub mod workers;

#[cfg(test)]
mod testing;
