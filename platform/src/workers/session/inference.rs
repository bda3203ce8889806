//! What a worker says of inferences, on its way to their requests.

use actix::prelude::*;
use trainyard_shared::ids::{InferenceId, MessageId};
use trainyard_shared::message::{Error, ErrorCode, FromWorker, StopInference};

use super::{Context, Lease, WorkerSession};
use crate::inference::state::{Answer, Said};

/// Of the ids that a worker names at once so many are looked at.
const MOST_NAMED: usize = 64;

/// One such message.
pub(super) struct InferenceMessage {
    id: InferenceId,
    message_id: Option<MessageId>,
    wire_type: &'static str,
    said: Said,
}

impl InferenceMessage {
    /// Reads the message, or gives it back when it is about something else.
    pub(super) fn from_wire(message: FromWorker) -> Result<Self, Box<FromWorker>> {
        let (wire_type, message_id) = (message.wire_type(), message.message_id());
        let (id, said) = match message {
            FromWorker::InferenceTokens(m) => (m.inference_id, Said::Tokens(m.data.tokens)),
            FromWorker::InferenceCompleted(m) => (m.inference_id, Said::Completed(m.data)),
            FromWorker::InferenceFailed(m) => {
                let (error, kind) = (m.data.error, m.data.failure_kind);
                (m.inference_id, Said::Failed { error, kind })
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
    pub(super) fn take_inference_message(
        &mut self,
        lease: Lease,
        message: InferenceMessage,
        context: &mut Context,
    ) {
        let InferenceMessage {
            id,
            message_id,
            wire_type,
            said,
        } = message;
        let (actors, of) = (self.state.actors.clone(), id.clone());
        let told = async move { actors.inferences.report(&of, lease, said).await };
        context.wait(told.into_actor(self).map(move |answer, session, context| {
            match answer {
                None => {}
                Some(Answer::Taken) => session.acknowledge(message_id, context),
                Some(Answer::Ignored) => {
                    tracing::debug!(worker.uuid = %session.uuid, inference.id = %id, "{wire_type} is ignored");
                    session.acknowledge(message_id, context);
                    if wire_type == "inference_tokens" {
                        session.say(StopInference { inference_id: id }, context);
                    }
                }
                Some(Answer::WrongWorker) => {
                    session.refuse_inference(id, message_id, wire_type, context);
                }
            }
        }));
    }

    /// Tells the worker to stop what it says that it has and nobody wants: it may have missed being told.
    pub(super) fn stop_unwanted(
        &mut self,
        lease: &Lease,
        named: Option<Vec<InferenceId>>,
        context: &mut Context,
    ) {
        let (worker, actors) = (lease.worker(), self.state.actors.clone());
        let is_unwanted = |id: &InferenceId| !actors.inferences.is_wanted(id, worker);
        let unwanted = named
            .into_iter()
            .flatten()
            .take(MOST_NAMED)
            .filter(is_unwanted);
        for inference_id in unwanted.collect::<Vec<_>>() {
            self.say(StopInference { inference_id }, context);
        }
    }

    /// A worker that goes on with what nobody knows any more, after a restart of the platform perhaps, is told
    /// once that it is not its own, and to stop; what comes before it has stopped is passed over.
    fn refuse_inference(
        &mut self,
        id: InferenceId,
        message_id: Option<MessageId>,
        wire_type: &'static str,
        context: &mut Context,
    ) {
        if self.refused_inference.as_ref() == Some(&id) && message_id.is_none() {
            return;
        }
        tracing::warn!(worker.uuid = %self.uuid, inference.id = %id, "{wire_type} of another's inference");
        let why = format!("inference {id} is not this worker's");
        let error = Error {
            message_id,
            ..Error::in_reply_to(wire_type, ErrorCode::WrongWorker, why)
        };
        self.refuse(error, context);
        if wire_type == "inference_tokens" {
            let stop = StopInference {
                inference_id: id.clone(),
            };
            self.say(stop, context);
        }
        self.refused_inference = Some(id);
    }
}
