//! What the worker does for the platform: training jobs and the transfers that they need.

pub mod base_model;
mod command;
pub mod transfers;

pub use command::TaskCommand;
