//! What the connection asks of the tasks.

use actix::Message;
use trainyard_shared::ids::{FederatedSessionId, InferenceId, JobId, TaskId};
use trainyard_shared::message::{StartInference, StartTraining};

use super::{ModelTask, Order};

/// A command of the platform.
#[derive(Debug, Clone, PartialEq, Message)]
#[rtype(result = "()")]
pub enum TaskCommand {
    /// Train this; a repeat starts nothing twice.
    Start(Box<StartTraining>),
    /// Save a checkpoint of this job and stop it.
    Stop(JobId),
    /// Answer this chat; a repeat starts nothing twice.
    StartInference(Box<StartInference>),
    /// End this answer.
    StopInference(InferenceId),
    /// Measure this model, or write it in another form; a repeat starts nothing twice.
    StartTask(Box<ModelTask>),
    /// End this evaluation or export.
    StopTask(TaskId),
    /// Something of a federated session; repeats begin nothing twice.
    Federated(FederatedSessionId, Order),
    /// Leave this federated session.
    StopFederated(FederatedSessionId),
}
