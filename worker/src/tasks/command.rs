//! What the connection asks of the tasks.

use actix::Message;
use trainyard_shared::ids::{EvaluationId, FederatedSessionId, InferenceId, JobId};
use trainyard_shared::message::{StartEvaluation, StartInference, StartTraining};

use super::Order;

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
    /// Measure this model; a repeat starts nothing twice.
    StartEvaluation(Box<StartEvaluation>),
    /// End this evaluation.
    StopEvaluation(EvaluationId),
    /// Something of a federated session; repeats begin nothing twice.
    Federated(FederatedSessionId, Order),
    /// Leave this federated session.
    StopFederated(FederatedSessionId),
}
