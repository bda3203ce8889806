//! What the connection asks of the tasks.

use actix::Message;
use trainyard_shared::ids::JobId;
use trainyard_shared::message::StartTraining;

/// A command of the platform.
#[derive(Debug, Clone, PartialEq, Message)]
#[rtype(result = "()")]
pub enum TaskCommand {
    /// Train this; a repeat starts nothing twice.
    Start(Box<StartTraining>),
    /// Save a checkpoint of this job and stop it.
    Stop(JobId),
}
