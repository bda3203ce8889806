//! What the worker does for the platform: training jobs and the transfers that they need.

pub mod base_model;
mod command;
mod slot;
mod stop;
pub mod transfers;

pub use command::TaskCommand;
pub use stop::{StopReason, StopSignal};
