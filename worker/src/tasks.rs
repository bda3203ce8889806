//! What the worker does for the platform: training jobs and the transfers that they need.

mod actor;
pub mod base_model;
mod command;
pub mod slot;
mod stop;
#[cfg(test)]
mod tests;
pub mod training;
pub mod transfers;

pub use actor::{FinishTasks, Tasks};
pub use command::TaskCommand;
pub use stop::{StopReason, StopSignal};
