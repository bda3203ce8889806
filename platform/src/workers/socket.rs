//! `GET /ws/worker`: who may open a worker's connection, before anything is known of its key.

use std::sync::PoisonError;
use std::time::Instant;

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Deserialize;
use trainyard_shared::ids::WorkerUuid;

use super::session::WorkerSession;
use crate::auth::client_address;
use crate::error::{ApiError, ErrorCode};
use crate::http::StrictQuery;
use crate::server::AppState;
use crate::sockets;
use crate::sockets::outgoing::Outgoing;

/// Frames that may wait for one worker.
const MAX_WAITING_FRAMES: usize = 1_024;

/// The address of a worker's connection.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct WorkerAddress {
    /// The worker's UUID.
    worker_uuid: Option<String>,
}

/// A worker's connection.
#[utoipa::path(get, path = "/ws/worker", tag = "sockets", security(()), params(WorkerAddress), responses(
    (status = 101, description = "a WebSocket; the first message is `authenticate`"),
    (status = 400, description = "no WebSocket upgrade, or no worker_uuid"),
    (status = 429, description = "too many failed authentications, or too many connections from that address"),
    (status = 503, description = "many workers come back at once after the platform's start; Retry-After is this one's turn"),
))]
pub async fn open(
    state: web::Data<AppState>,
    request: HttpRequest,
    StrictQuery(address): StrictQuery<WorkerAddress>,
    payload: web::Payload,
) -> Result<HttpResponse, ApiError> {
    let uuid: WorkerUuid = address
        .worker_uuid
        .as_deref()
        .ok_or_else(|| ApiError::invalid_field("worker_uuid", "missing"))?
        .parse()
        .map_err(|_| ApiError::invalid_field("worker_uuid", "is not a UUID"))?;
    let from = client_address(&request, &state.config);
    state
        .worker_failures
        .check(from, &uuid.to_string(), Instant::now())
        .map_err(|wait| {
            ApiError::new(ErrorCode::RateLimited, "too many failed authentications")
                .with_retry_after(wait)
        })?;
    let place = state.connection_caps.worker(from)?;
    let now = state.actors.clock.now();
    let turn = state
        .returning
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .enter(now);
    if let Some(wait) = turn {
        let why = "many workers come back at once; this one's turn is later";
        return Err(ApiError::new(ErrorCode::Unavailable, why).with_retry_after(wait));
    }
    let max_frame_bytes = state.config.max_frame_bytes;
    let (outgoing, frames) = Outgoing::new(max_frame_bytes, MAX_WAITING_FRAMES);
    let session = WorkerSession::new(state, uuid, from, place, outgoing);
    sockets::start(session, frames, max_frame_bytes, &request, payload)
}
