//! What the worker does for the platform: training jobs and the transfers that they need.

mod command;
pub mod transfers;

pub use command::TaskCommand;
