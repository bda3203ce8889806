//! What a worker says of its tasks, on its way to them.

use actix::prelude::*;
use trainyard_shared::message::{Error, ErrorCode, FromWorker};

use super::{Context, Lease, WorkerSession, refusal_of_file};
use crate::tasks::state::Answer;
use crate::tasks::{Kind, TaskError};

impl WorkerSession {
    /// Takes a message about a task of that kind, or gives it back when it is about something else.
    pub(super) fn take_task_message<K: Kind>(
        &mut self,
        lease: &Lease,
        message: FromWorker,
        context: &mut Context,
    ) -> Result<(), Box<FromWorker>> {
        let (wire_type, message_id) = (message.wire_type(), message.message_id());
        let (id, said) = K::said(message)?;
        let (actors, lease) = (self.state.actors.clone(), lease.clone());
        let told = async move { K::directory(&actors).report(&actors, id, lease, said).await };
        context.wait(told.into_actor(self).map(move |answer, session, context| {
            let (noun, worker) = (K::NOUN, session.uuid);
            let (code, why) = match answer {
                Ok(None) => return,
                Ok(Some(Answer::Taken | Answer::Ignored)) => {
                    return session.acknowledge(message_id, context);
                }
                Ok(Some(Answer::WrongWorker)) => {
                    tracing::warn!(worker.uuid = %worker, "{wire_type} of another's {noun} {id}");
                    let why = format!("{noun} {id} is not this worker's");
                    (ErrorCode::WrongWorker, why)
                }
                Err(TaskError::Artifact(error)) => refusal_of_file(&error),
                Err(TaskError::Database(error)) => {
                    tracing::warn!(%error, "{wire_type} of {noun} {id} could not be taken");
                    (ErrorCode::TryAgain, "try again later".to_owned())
                }
            };
            let error = Error {
                message_id,
                ..Error::in_reply_to(wire_type, code, why)
            };
            session.refuse(error, context);
        }));
        Ok(())
    }
}
