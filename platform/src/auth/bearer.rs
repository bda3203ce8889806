//! Owns how a bearer token is taken from a request.

use actix_web::HttpRequest;
use actix_web::http::header;

/// The token of the `Authorization: Bearer` header, if there is exactly one.
pub fn bearer_token(request: &HttpRequest) -> Option<&str> {
    let mut values = request.headers().get_all(header::AUTHORIZATION);
    let value = values.next()?.to_str().ok()?;
    if values.next().is_some() {
        return None;
    }
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
