//! What the worker does for the platform: training jobs, rounds of federated sessions, answers, evaluations, exports,
//! and the transfers that they need.

mod actor;
mod artifacts;
pub mod base_model;
mod command;
mod context;
mod dataset;
mod evaluation;
mod export;
mod failure;
mod federated;
mod fetched;
mod inference;
pub mod loaded;
pub mod locks;
mod model_task;
mod result_files;
mod running;
pub mod slot;
mod stop;
#[cfg(test)]
mod tests;
pub mod training;
pub mod transfers;

pub use actor::{FinishTasks, Tasks};
pub use command::TaskCommand;
pub use context::{TOKENS, TaskContext};
pub use export::engine_format;
pub(crate) use federated::failed_message as masking_failed;
pub use federated::{Order, SumOrder};
pub use model_task::{ModelTask, failed_message};
pub use stop::{StopReason, StopSignal};
