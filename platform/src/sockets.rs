//! What the WebSockets of workers and dashboards have in common.

pub mod queue;
