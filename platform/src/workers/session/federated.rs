//! What a worker says of federated sessions, on its way to them.

use actix::prelude::*;
use trainyard_shared::ids::{FederatedSessionId, MessageId};
use trainyard_shared::message::{
    Error, ErrorCode, FromWorker, KeysAnnounced, MaskingFailed, SecretsShared, SharesRevealed,
};

use super::{Context, Lease, WorkerSession};
use crate::federated::directory::{Answer, ReportError, Said};
use crate::federated::secure::reports::OfSum;

/// One such message.
pub(super) struct FederatedMessage {
    id: FederatedSessionId,
    message_id: Option<MessageId>,
    wire_type: &'static str,
    said: Said,
}

impl FederatedMessage {
    /// Reads the message, or gives it back when it is about something else.
    pub(super) fn from_wire(message: FromWorker) -> Result<Self, Box<FromWorker>> {
        let (wire_type, message_id) = (message.wire_type(), message.message_id());
        let (id, said) = match message {
            FromWorker::FederatedUpdate(m) => (m.session_id, Said::Update(m.data)),
            FromWorker::WeightsLoaded(m) => (m.session_id, Said::Loaded(m.data)),
            FromWorker::FederatedFailed(m) => (m.session_id, Said::Failed(m.data)),
            FromWorker::RoundTrained(m) => (m.session_id, Said::Trained(m.data)),
            FromWorker::KeysAnnounced(KeysAnnounced { session_id, .. })
            | FromWorker::SecretsShared(SecretsShared { session_id, .. })
            | FromWorker::SharesRevealed(SharesRevealed { session_id, .. })
            | FromWorker::MaskingFailed(MaskingFailed { session_id, .. }) => {
                (session_id, Said::OfSum(OfSum::from_wire(message)?))
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
    pub(super) fn take_federated_message(
        &mut self,
        lease: Lease,
        message: FederatedMessage,
        context: &mut Context,
    ) {
        let FederatedMessage {
            id,
            message_id,
            wire_type,
            said,
        } = message;
        let actors = self.state.actors.clone();
        let told = async move { actors.federated.report(&actors, id, lease, said).await };
        context.wait(told.into_actor(self).map(move |answer, session, context| {
            let (code, why) = match answer {
                Ok(None) => return,
                Ok(Some(Answer::Taken | Answer::Ignored)) => {
                    return session.acknowledge(message_id, context);
                }
                Ok(Some(Answer::WrongWorker)) => {
                    tracing::warn!(worker.uuid = %session.uuid, session.id = %id, "{wire_type} of a session that is not this worker's");
                    let why = format!("session {id} is not this worker's");
                    (ErrorCode::WrongWorker, why)
                }
                Err(ReportError::Invalid(why)) => (ErrorCode::InvalidMessage, why),
                Err(ReportError::NotStored(why)) => (ErrorCode::ArtifactMissing, why),
                Err(error) => {
                    tracing::warn!(session.id = %id, %error, "{wire_type} could not be taken");
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
