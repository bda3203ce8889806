//! From a text frame to a message, or to an error that names the field and can be answered.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::error::{Error, ErrorCode};
use crate::ids::{EvaluationId, ExportId, FederatedSessionId, InferenceId, JobId, MessageId};
use crate::json;

/// Why a frame is no message of ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DecodeError {
    /// Whether the type or the content is at fault.
    pub kind: DecodeErrorKind,
    /// What is wrong, for a person; names the field.
    pub message: String,
    /// The field at fault as a path, as `data.step`. None when the frame is no JSON at all.
    pub field: Option<String>,
    /// The frame's `type`, where it could be read.
    pub in_reply_to: Option<String>,
    /// The frame's `message_id`, where it could be read.
    pub message_id: Option<MessageId>,
    /// What the frame was about, where that could be read.
    pub ids: Box<MessageIds>,
}

/// The two ways for a frame to be wrong (PROTOCOL 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodeErrorKind {
    /// The `type` is none of ours.
    UnknownType,
    /// Not JSON that we take, or a known type whose fields do not fit.
    InvalidMessage,
}

/// The ids that could be read from a frame that is wrong otherwise, so that a failed `start_*` can be
/// answered by the failure message that belongs to it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageIds {
    /// `job_id`
    pub job_id: Option<JobId>,
    /// `attempt`
    pub attempt: Option<u32>,
    /// `inference_id`
    pub inference_id: Option<InferenceId>,
    /// `evaluation_id`
    pub evaluation_id: Option<EvaluationId>,
    /// `export_id`
    pub export_id: Option<ExportId>,
    /// `session_id`
    pub session_id: Option<FederatedSessionId>,
}

impl DecodeError {
    /// The `error` message that answers the frame.
    pub fn to_error(&self) -> Error {
        Error {
            code: match self.kind {
                DecodeErrorKind::UnknownType => ErrorCode::UnknownType,
                DecodeErrorKind::InvalidMessage => ErrorCode::InvalidMessage,
            },
            message: self.message.clone(),
            in_reply_to: self.in_reply_to.clone(),
            message_id: self.message_id,
            job_id: self.ids.job_id,
        }
    }
}

/// A frame whose `type` is known to be a string.
pub(super) struct Envelope {
    object: Map<String, Value>,
    kind: String,
}

impl Envelope {
    pub(super) fn read(text: &str) -> Result<Self, DecodeError> {
        let value = json::parse(text).map_err(|error| invalid(None, error.to_string()))?;
        let Value::Object(object) = value else {
            return Err(invalid(
                None,
                format!("a message is a JSON object, not {}", json::kind(&value)),
            ));
        };
        match object.get("type") {
            Some(Value::String(kind)) => Ok(Self {
                kind: kind.clone(),
                object,
            }),
            Some(other) => {
                let message = format!("type: a string is expected, not {}", json::kind(other));
                Err(invalid(Some("type"), message).about(&object))
            }
            None => Err(invalid(Some("type"), "type: missing".to_owned()).about(&object)),
        }
    }

    pub(super) fn kind(&self) -> &str {
        &self.kind
    }

    pub(super) fn unknown_type(self) -> DecodeError {
        let message = format!("type: `{}` is not known", json::shortened(&self.kind));
        DecodeError {
            kind: DecodeErrorKind::UnknownType,
            ..invalid(Some("type"), message)
        }
        .about(&self.object)
    }
}

/// Reads the fields of a message whose type is known.
pub(super) fn body<M: DeserializeOwned>(envelope: Envelope) -> Result<M, DecodeError> {
    let value = Value::Object(envelope.object);
    serde_path_to_error::deserialize(json::Typed(&value)).map_err(|error| {
        let path = error.path().to_string();
        let message = error.into_inner().to_string();
        let error = match path.as_str() {
            "." => invalid(None, message),
            field => invalid(Some(field), format!("{field}: {message}")),
        };
        match &value {
            Value::Object(object) => error.about(object),
            _ => error,
        }
    })
}

fn invalid(field: Option<&str>, message: String) -> DecodeError {
    DecodeError {
        kind: DecodeErrorKind::InvalidMessage,
        message,
        field: field.map(str::to_owned),
        in_reply_to: None,
        message_id: None,
        ids: Box::default(),
    }
}

impl DecodeError {
    /// Adds what can be read of the frame's type and ids.
    fn about(mut self, object: &Map<String, Value>) -> Self {
        self.in_reply_to = readable::<String>(object, "type").map(|kind| json::shortened(&kind));
        self.message_id = readable(object, "message_id");
        *self.ids = MessageIds {
            job_id: readable(object, "job_id"),
            attempt: readable(object, "attempt"),
            inference_id: readable(object, "inference_id"),
            evaluation_id: readable(object, "evaluation_id"),
            export_id: readable(object, "export_id"),
            session_id: readable(object, "session_id"),
        };
        self
    }
}

fn readable<T: DeserializeOwned>(object: &Map<String, Value>, field: &str) -> Option<T> {
    object
        .get(field)
        .and_then(|value| T::deserialize(value).ok())
}
