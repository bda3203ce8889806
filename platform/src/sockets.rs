//! What the WebSockets of workers and dashboards have in common.

pub mod incoming;
pub mod outgoing;
pub mod queue;

use actix::{Actor, StreamHandler};
use actix_http::ws::{Codec, Message, ProtocolError};
use actix_web::{HttpRequest, HttpResponse, web};
use actix_web_actors::ws;
use futures_util::StreamExt;

use crate::error::{ApiError, ErrorCode};
use outgoing::Frames;

/// Answers the upgrade, and runs the session's actor in a task of its own until it stops.
///
/// # Errors
///
/// 400 for a request that is no WebSocket upgrade.
pub fn start<A>(
    session: A,
    frames: Frames,
    max_frame_bytes: usize,
    request: &HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, ApiError>
where
    A: Actor<Context = ws::WebsocketContext<A>> + StreamHandler<Result<Message, ProtocolError>>,
{
    let mut response = ws::handshake(request)
        .map_err(|error| ApiError::new(ErrorCode::InvalidRequest, error.to_string()))?;
    let codec = Codec::new().max_size(max_frame_bytes);
    let mut running = ws::WebsocketContext::with_codec(session, payload, codec);
    actix_web::rt::spawn(async move {
        // The actor writes into its `Outgoing` only; polling this is what runs it.
        while running.next().await.is_some() {}
    });
    Ok(response.streaming(frames))
}
