//! How large the head of a request may be. What is beyond the HTTP library's own buffer does not come this far.

use actix_web::Error;
use actix_web::body::{EitherBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::middleware::Next;

use crate::coordinator;
use crate::error::{ApiError, ErrorCode};

/// Path with query and all headers together.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// Middleware that refuses what is larger.
///
/// # Errors
/// Those of the wrapped service.
pub async fn head_limit<B: MessageBody + 'static>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<EitherBody<B>>, Error> {
    let headers = request.headers().iter();
    let headers = headers.map(|(name, value)| name.as_str().len() + value.len());
    let target = request.uri().path_and_query();
    let target = target.map_or(0, |target| target.as_str().len());
    if target + headers.sum::<usize>() > MAX_HEAD_BYTES {
        let message = "the request's headers are too large";
        let error = ApiError::new(ErrorCode::HeadTooLarge, message);
        let refused: Error = match coordinator::is_ours(request.path()) {
            true => coordinator::Refused::from(error).into(),
            false => error.into(),
        };
        return Ok(request.error_response(refused).map_into_right_body());
    }
    Ok(next.call(request).await?.map_into_left_body())
}
