//! Bodies that are streamed: never held whole, and given up when nothing arrives for a while.

use actix_web::http::header;
use actix_web::{FromRequest, HttpRequest, dev::Payload};
use bytes::Bytes;
use futures_util::StreamExt;
use std::future::{Ready, ready};
use std::time::Duration;

use crate::error::{ApiError, ErrorCode};

/// How long a client may pause within a body.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// What is still read of a body that has been refused, so that the client sees the answer and not a reset.
const DRAINED_BYTES: u64 = 64 << 20;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The streamed body of a request.
pub struct UploadBody {
    payload: Payload,
    announced_bytes: Option<u64>,
}

/// Why a body did not arrive whole.
#[derive(Debug, thiserror::Error)]
pub enum UploadBodyError {
    /// The client stopped sending.
    #[error("the body took too long to arrive")]
    Idle,
    /// The connection broke off.
    #[error("the body broke off: {0}")]
    Broken(actix_web::error::PayloadError),
}

impl UploadBody {
    /// The size that the client has announced, if it has.
    pub fn announced_bytes(&self) -> Option<u64> {
        self.announced_bytes
    }

    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// When the client stops sending or the connection breaks off.
    pub async fn next_chunk(&mut self) -> Result<Option<Bytes>, UploadBodyError> {
        match tokio::time::timeout(IDLE_TIMEOUT, self.payload.next()).await {
            Err(_) => Err(UploadBodyError::Idle),
            Ok(None) => Ok(None),
            Ok(Some(Ok(chunk))) => Ok(Some(chunk)),
            Ok(Some(Err(error))) => Err(UploadBodyError::Broken(error)),
        }
    }

    /// Reads on for a bounded while without keeping anything, after the body has been refused.
    pub async fn drain(self) {
        self.drain_for(DRAIN_TIMEOUT).await;
    }

    /// As [`UploadBody::drain`], for so long at most.
    pub async fn drain_for(mut self, timeout: Duration) {
        let drained = async {
            let mut seen = 0;
            while let Some(Ok(chunk)) = self.payload.next().await {
                seen += chunk.len() as u64;
                if seen > DRAINED_BYTES {
                    break;
                }
            }
        };
        // Whether it was read to its end makes no difference to the answer.
        let _ = tokio::time::timeout(timeout, drained).await;
    }
}

impl From<UploadBodyError> for ApiError {
    fn from(error: UploadBodyError) -> Self {
        match error {
            UploadBodyError::Idle => Self::new(ErrorCode::RequestTimeout, error.to_string()),
            UploadBodyError::Broken(_) => Self::invalid_field("", error.to_string()),
        }
    }
}

impl FromRequest for UploadBody {
    type Error = ApiError;
    type Future = Ready<Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let announced = request.headers().get(header::CONTENT_LENGTH);
        let announced_bytes = announced
            .and_then(|value| value.to_str().ok())
            .and_then(|text| text.parse().ok());
        ready(Ok(Self {
            payload: payload.take(),
            announced_bytes,
        }))
    }
}
