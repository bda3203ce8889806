//! What the WebSockets of workers and dashboards have in common.

pub mod caps;
mod frame_guard;
pub mod incoming;
pub mod outgoing;
pub mod queue;
pub mod rate;

use std::time::Duration;

use actix::prelude::*;
use actix_http::ws::{Codec, Message, ProtocolError};
use actix_web::{HttpRequest, HttpResponse, web};
use actix_web_actors::ws::{self, WebsocketContext};
use futures_util::StreamExt;
use tokio::time::Instant;

use crate::error::{ApiError, ErrorCode};
use frame_guard::GuardedPayload;
use outgoing::{Frames, Outgoing};

/// How long the other side may take to read what is sent before a close.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);
/// How often it is looked whether it has.
const CLOSE_LOOK: Duration = Duration::from_millis(50);

/// An actor that owns one WebSocket.
pub trait Session:
    Actor<Context = WebsocketContext<Self>> + StreamHandler<Result<Message, ProtocolError>>
{
    /// Its sending side.
    fn outgoing(&self) -> &Outgoing;

    /// Whether the end has begun.
    fn ending(&mut self) -> &mut bool;

    /// Sends what waits, closes with this code, and stops the actor once that is out. Only the first call
    /// counts.
    fn end(&mut self, code: u16, reason: &str, context: &mut Self::Context) {
        self.outgoing().close(code, reason);
        if std::mem::replace(self.ending(), true) {
            return;
        }
        let give_up_at = Instant::now() + CLOSE_PATIENCE;
        context.run_interval(CLOSE_LOOK, move |session, context| {
            if session.outgoing().has_ended() || Instant::now() >= give_up_at {
                context.stop();
            }
        });
    }
}

/// Answers the upgrade, and runs the session's actor in a task of its own until it stops.
///
/// # Errors
///
/// 400 for a request that is no WebSocket upgrade.
pub fn start<S: Session>(
    session: S,
    frames: Frames,
    max_frame_bytes: usize,
    request: &HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, ApiError> {
    let mut response = ws::handshake(request)
        .map_err(|error| ApiError::new(ErrorCode::InvalidRequest, error.to_string()))?;
    let codec = Codec::new().max_size(max_frame_bytes);
    let payload = GuardedPayload::new(payload, max_frame_bytes);
    let mut running = WebsocketContext::with_codec(session, payload, codec);
    actix_web::rt::spawn(async move {
        // The actor writes into its `Outgoing` only; polling this is what runs it.
        while running.next().await.is_some() {}
    });
    Ok(response.streaming(frames))
}

#[cfg(test)]
mod tests;
