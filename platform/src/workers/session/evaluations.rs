//! What a worker says of evaluations, on its way to them.

use actix::prelude::*;
use trainyard_shared::ids::{EvaluationId, MessageId};
use trainyard_shared::message::{Error, ErrorCode, FromWorker};

use super::{Context, Lease, WorkerSession};
use crate::evaluations::state::{Answer, Said};

/// One such message.
pub(super) struct EvaluationMessage {
    id: EvaluationId,
    message_id: Option<MessageId>,
    wire_type: &'static str,
    said: Said,
}

impl EvaluationMessage {
    /// Reads the message, or gives it back when it is about something else.
    pub(super) fn from_wire(message: FromWorker) -> Result<Self, Box<FromWorker>> {
        let (wire_type, message_id) = (message.wire_type(), message.message_id());
        let (id, said) = match message {
            FromWorker::EvaluationProgress(m) => {
                let (done, total) = (m.data.done, m.data.total);
                (m.evaluation_id, Said::Progress { done, total })
            }
            FromWorker::EvaluationCompleted(m) => {
                (m.evaluation_id, Said::Completed(m.data.metrics))
            }
            FromWorker::EvaluationFailed(m) => {
                let (error, kind) = (m.data.error, m.data.failure_kind);
                (m.evaluation_id, Said::Failed { error, kind })
            }
            other => return Err(Box::new(other)),
        };
        Ok(Self {
            id,
            message_id,
            wire_type,
            said,
        })
    }
}

impl WorkerSession {
    pub(super) fn take_evaluation_message(
        &mut self,
        lease: Lease,
        message: EvaluationMessage,
        context: &mut Context,
    ) {
        let EvaluationMessage {
            id,
            message_id,
            wire_type,
            said,
        } = message;
        let actors = self.state.actors.clone();
        let told = async move { actors.evaluations.report(&actors, id, lease, said).await };
        context.wait(told.into_actor(self).map(move |answer, session, context| {
            let (code, why) = match answer {
                Ok(None) => return,
                Ok(Some(Answer::Taken | Answer::Ignored)) => {
                    return session.acknowledge(message_id, context);
                }
                Ok(Some(Answer::WrongWorker)) => {
                    tracing::warn!(worker.uuid = %session.uuid, evaluation.id = %id, "{wire_type} of another's evaluation");
                    let why = format!("evaluation {id} is not this worker's");
                    (ErrorCode::WrongWorker, why)
                }
                Err(error) => {
                    tracing::warn!(evaluation.id = %id, %error, "{wire_type} could not be taken");
                    (ErrorCode::TryAgain, "try again later".to_owned())
                }
            };
            let error = Error {
                message_id,
                ..Error::in_reply_to(wire_type, code, why)
            };
            session.refuse(error, context);
        }));
    }
}
