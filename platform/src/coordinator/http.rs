//! Where volunteers find what: the protocol's five paths at the root and below `/c/{name}`, and how everything
//! else there is refused.

use std::sync::Arc;

use actix_web::http::{StatusCode, header};
use actix_web::{HttpRequest, HttpResponse, ResponseError};

use super::hosted::Hosted;
use super::{Refused, downloads, polling, results};
use crate::database::now;
use crate::http::{Route, get, post};
use crate::server::AppState;

/// What the paths of sessions begin with.
const BELOW: &str = "/c/";
/// The protocol's paths.
const PATHS: [&str; 5] = ["/gorev", "/bilgi", "/agirlik", "/veri", "/sonuc"];

/// The routes of the protocol.
pub fn routes() -> Vec<Route> {
    vec![
        get("/gorev", polling::task),
        get("/bilgi", polling::info),
        get("/agirlik", downloads::weights),
        get("/veri", downloads::data),
        post("/sonuc", results::take),
        get("/c/{name}/gorev", polling::task),
        get("/c/{name}/bilgi", polling::info),
        get("/c/{name}/agirlik", downloads::weights),
        get("/c/{name}/veri", downloads::data),
        post("/c/{name}/sonuc", results::take),
    ]
}

/// Whether errors at this path have the protocol's form.
pub fn is_ours(path: &str) -> bool {
    path.starts_with(BELOW)
        || PATHS.iter().any(|ours| {
            path.strip_prefix(ours)
                .is_some_and(|rest| rest.is_empty() || rest == "/")
        })
}

/// The session that a request means.
///
/// # Errors
/// 404.
pub fn session_of(state: &AppState, request: &HttpRequest) -> Result<Arc<Hosted>, Refused> {
    let sessions = &state.actors.coordinators;
    let found = match request.match_info().get("name") {
        Some(name) => sessions.named(name),
        None => sessions.at_the_root(now()),
    };
    found.ok_or_else(|| {
        let message = match request.match_info().get("name") {
            Some(_) => "there is no session of this name",
            None => "there is no session here; sessions by name are at /c/NAME/",
        };
        Refused::new(StatusCode::NOT_FOUND, message)
    })
}

/// The answer at a path below `/c/` that there is not.
pub fn no_such_path() -> HttpResponse {
    Refused::new(StatusCode::NOT_FOUND, "there is nothing at this path").error_response()
}

/// The answer to a method that a path does not take.
pub fn method_not_allowed(allowed: &str) -> HttpResponse {
    let message = format!("this path takes {allowed}");
    let mut response = Refused::new(StatusCode::METHOD_NOT_ALLOWED, message).error_response();
    if let Ok(value) = header::HeaderValue::from_str(allowed) {
        response.headers_mut().insert(header::ALLOW, value);
    }
    response
}
