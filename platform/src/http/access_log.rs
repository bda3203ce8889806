//! One log line per request. Queries are never logged: those of `/ws/` and `/storage/` hold secrets, and no
//! other is worth the risk of one that does.

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::middleware::Next;
use actix_web::{Error, web};
use std::time::Instant;

use crate::auth::client_address;
use crate::server::AppState;

/// Middleware that logs method, path, status, time and address.
///
/// # Errors
/// Those of the wrapped service.
pub async fn access_log<B: MessageBody + 'static>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<B>, Error> {
    let started = Instant::now();
    let method = request.method().clone();
    let path = request.path().to_owned();
    let address = request
        .app_data::<web::Data<AppState>>()
        .map(|state| client_address(request.request(), &state.config));
    let result = next.call(request).await;
    let status = match &result {
        Ok(response) => response.status(),
        Err(error) => error.as_response_error().status_code(),
    };
    tracing::info!(
        target: "trainyard::access",
        method = %method,
        path = %path,
        status = status.as_u16(),
        client_address = address.map(tracing::field::display),
        duration_ms = started.elapsed().as_millis() as u64,
        "request"
    );
    result
}
