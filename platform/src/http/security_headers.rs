//! Headers that every answer carries.

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{self, HeaderName, HeaderValue};
use actix_web::middleware::Next;
use actix_web::{Error, web};

use crate::server::AppState;

const ALWAYS: [(HeaderName, &str); 4] = [
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'; base-uri 'self'",
    ),
];

/// Middleware that adds them, unless the handler has set them itself.
///
/// # Errors
/// Those of the wrapped service.
pub async fn security_headers<B: MessageBody + 'static>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<B>, Error> {
    let is_api = ["/api/", "/v1/"]
        .iter()
        .any(|start| request.path().starts_with(start));
    let is_https = request
        .app_data::<web::Data<AppState>>()
        .is_some_and(|state| state.public_url.scheme() == "https");
    let mut response = next.call(request).await?;
    let headers = response.headers_mut();
    for (name, value) in ALWAYS {
        if !headers.contains_key(&name) {
            headers.insert(name, HeaderValue::from_static(value));
        }
    }
    if is_api && !headers.contains_key(header::CACHE_CONTROL) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    if is_https {
        headers.insert(
            header::STRICT_TRANSPORT_SECURITY,
            HeaderValue::from_static("max-age=31536000"),
        );
    }
    Ok(response)
}
