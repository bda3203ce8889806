//! Owns the list of all routes, and how requests outside of it are answered.

mod access_log;
mod departure;
mod head_limit;
mod page;
mod path_id;
mod query;
mod security_headers;
mod strict_json;
#[cfg(test)]
mod tests;
mod unread_body;
mod upload_body;

use actix_web::guard::{Any, Get, Guard, Head};
use actix_web::http::{Method, header};
use actix_web::{FromRequest, Handler, HttpRequest, HttpResponse, Responder, ResponseError, web};
use std::collections::BTreeMap;

use crate::error::{ApiError, ErrorCode};
use crate::{
    artifacts, auth, coordinator, dashboards, datasets, enrollment_keys, evaluations, exports,
    federated, health, inference, jobs, models, openai, openapi, storage, users, workers,
};

pub use access_log::access_log;
pub use departure::{departed, watch, watch_only_chats};
pub use head_limit::head_limit;
pub use page::{NamePageQuery, Page, PageQuery};
pub use path_id::PathId;
pub use query::StrictQuery;
pub use security_headers::security_headers;
pub use strict_json::StrictJson;
pub use unread_body::close_where_unread;
pub use upload_body::{UploadBody, UploadBodyError};

/// Every route of the platform.
pub fn routes() -> Vec<Route> {
    let mut routes = platform_routes();
    // Volunteers
    routes.extend(coordinator::protocol_routes());
    routes
}

fn platform_routes() -> Vec<Route> {
    vec![
        // Health
        get("/healthz", health::alive),
        get("/readyz", health::ready),
        // Description
        get("/api/openapi.json", openapi::document),
        // Accounts
        post("/api/auth/login", auth::routes::login),
        post("/api/auth/logout", auth::routes::logout),
        get("/api/me", auth::routes::me),
        post("/api/me/password", auth::routes::change_password),
        get("/api/api-tokens", auth::routes::list_api_tokens),
        post("/api/api-tokens", auth::routes::create_api_token),
        delete("/api/api-tokens/{id}", auth::routes::delete_api_token),
        post("/api/ws-token", auth::routes::create_ws_token),
        get("/api/users", users::routes::list),
        post("/api/users", users::routes::create),
        get("/api/users/{id}", users::routes::get),
        patch("/api/users/{id}", users::routes::update),
        delete("/api/users/{id}", users::routes::delete),
        // Enrolment
        get("/api/enrollment-keys", enrollment_keys::routes::list),
        post("/api/enrollment-keys", enrollment_keys::routes::create),
        delete("/api/enrollment-keys/{id}", enrollment_keys::routes::revoke),
        // Data sets
        get("/api/datasets", datasets::routes::list),
        post("/api/datasets", datasets::routes::upload),
        get("/api/datasets/{id}", datasets::routes::get),
        get("/api/datasets/{id}/preview", datasets::routes::preview),
        delete("/api/datasets/{id}", datasets::routes::delete),
        // Files of workers
        post("/api/worker/uploads", artifacts::routes::grant_upload),
        get("/api/worker/downloads", artifacts::routes::grant_download),
        // Workers
        get("/api/workers", workers::routes::list),
        get("/api/workers/{id}", workers::routes::get),
        patch("/api/workers/{id}", workers::routes::rename),
        delete("/api/workers/{id}", workers::routes::delete),
        post("/api/workers/{id}/drain", workers::routes::drain),
        post("/api/workers/{id}/resume", workers::routes::resume),
        post("/api/workers/{id}/rotate-key", workers::routes::rotate_key),
        // Jobs
        get("/api/jobs", jobs::routes::list),
        post("/api/jobs", jobs::routes::create),
        get("/api/jobs/{id}", jobs::routes::get),
        delete("/api/jobs/{id}", jobs::routes::delete),
        post("/api/jobs/{id}/stop", jobs::routes::stop),
        post("/api/jobs/{id}/resume", jobs::routes::resume),
        get("/api/jobs/{id}/metrics", jobs::history_routes::metrics),
        get("/api/jobs/{id}/events", jobs::history_routes::events),
        get("/api/jobs/{id}/logs", jobs::history_routes::logs),
        get(
            "/api/jobs/{id}/checkpoints",
            jobs::history_routes::checkpoints,
        ),
        get("/api/jobs/{id}/artifacts", jobs::history_routes::artifacts),
        get(
            "/api/jobs/{id}/artifacts/{path:.*}",
            jobs::history_routes::artifact,
        ),
        // Exports
        post("/api/jobs/{id}/export", exports::routes::create),
        get("/api/jobs/{id}/exports", exports::routes::list),
        get("/api/jobs/{id}/exports/{export}", exports::routes::get),
        delete("/api/jobs/{id}/exports/{export}", exports::routes::delete),
        // Inference
        post("/api/inference", inference::routes::create),
        get("/api/inference/{id}", inference::routes::get),
        delete("/api/inference/{id}", inference::routes::cancel),
        // Evaluations
        get("/api/evaluations", evaluations::routes::list),
        post("/api/evaluations", evaluations::routes::create),
        get("/api/evaluations/{id}", evaluations::routes::get),
        delete("/api/evaluations/{id}", evaluations::routes::cancel),
        // Federated sessions
        get("/api/federated", federated::routes::list),
        post("/api/federated", federated::routes::create),
        get("/api/federated/{id}", federated::routes::get),
        delete("/api/federated/{id}", federated::routes::delete),
        post("/api/federated/{id}/stop", federated::routes::stop),
        get("/api/federated/{id}/rounds", federated::routes::rounds),
        get(
            "/api/federated/{id}/artifacts",
            federated::routes::artifacts,
        ),
        get(
            "/api/federated/{id}/artifacts/{path:.*}",
            federated::routes::artifact,
        ),
        // Volunteer sessions
        get("/api/coordinators", coordinator::routes::list),
        post("/api/coordinators", coordinator::routes::create),
        get("/api/coordinators/{id}", coordinator::routes::get),
        delete("/api/coordinators/{id}", coordinator::routes::delete),
        post("/api/coordinators/{id}/stop", coordinator::routes::stop),
        get("/api/coordinators/{id}/rounds", coordinator::routes::rounds),
        get(
            "/api/coordinators/{id}/participants",
            coordinator::routes::participants,
        ),
        get(
            "/api/coordinators/{id}/artifacts",
            coordinator::routes::artifacts,
        ),
        get(
            "/api/coordinators/{id}/artifacts/{path:.*}",
            coordinator::routes::artifact,
        ),
        // Models
        get("/api/models", models::list::list),
        // OpenAI-compatible
        post("/v1/chat/completions", openai::chat::create),
        get("/v1/models", openai::models::list),
        get("/v1/models/{id:.*}", openai::models::get),
        // Sockets
        get("/ws/worker", workers::socket::open),
        get("/ws/user/{id}", dashboards::socket::open),
        // Local storage
        get("/storage/{key:.*}", storage::routes::download),
        put("/storage/{key:.*}", storage::routes::upload),
    ]
}

/// One method of one path.
pub struct Route {
    method: Method,
    path: &'static str,
    handler: actix_web::Route,
}

impl Route {
    /// The method; a GET answers HEAD as well.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// The path, with actix's patterns.
    pub fn path(&self) -> &'static str {
        self.path
    }
}

/// Registers all routes, the page of the API's description, and the answers to everything else.
pub fn configure(app: &mut web::ServiceConfig) {
    let mut by_path: BTreeMap<&'static str, Vec<Route>> = BTreeMap::new();
    for route in routes() {
        by_path.entry(route.path).or_default().push(route);
    }
    for (path, routes) in by_path {
        let allowed = allowed_methods(&routes);
        let mut resource = web::resource(path);
        for route in routes {
            resource = resource.route(route.handler);
        }
        app.service(
            resource.default_service(web::to(move |request: HttpRequest| {
                method_not_allowed(request, allowed.clone())
            })),
        );
    }
    app.service(openapi::page());
    // Who opens the platform's bare address finds what can be done with it.
    app.service(web::redirect("/", "api/docs/"));
    app.service(web::redirect("/api/docs", "docs/"));
    app.service(web::redirect("/api/docs", "docs/"));
    app.default_service(web::to(no_such_path));
}

fn allowed_methods(routes: &[Route]) -> String {
    let mut methods: Vec<&str> = routes.iter().map(|route| route.method.as_str()).collect();
    if methods.contains(&"GET") {
        methods.push("HEAD");
    }
    methods.join(", ")
}

async fn method_not_allowed(request: HttpRequest, allowed: String) -> HttpResponse {
    if coordinator::is_ours(request.path()) {
        return coordinator::method_not_allowed(&allowed);
    }
    let error = ApiError::new(
        ErrorCode::MethodNotAllowed,
        format!("this path takes {allowed}"),
    );
    let mut response = error.error_response();
    if let Ok(value) = header::HeaderValue::from_str(&allowed) {
        response.headers_mut().insert(header::ALLOW, value);
    }
    response
}

async fn no_such_path(request: HttpRequest) -> Result<HttpResponse, ApiError> {
    if coordinator::is_ours(request.path()) {
        return Ok(coordinator::no_such_path());
    }
    Err(ApiError::new(
        ErrorCode::NotFound,
        "there is nothing at this path",
    ))
}

pub(crate) fn get<F, Args>(path: &'static str, handler: F) -> Route
where
    F: Handler<Args>,
    Args: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    route(Method::GET, path, Any(Get()).or(Head()), handler)
}

pub(crate) fn post<F, Args>(path: &'static str, handler: F) -> Route
where
    F: Handler<Args>,
    Args: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    route(Method::POST, path, actix_web::guard::Post(), handler)
}

fn put<F, Args>(path: &'static str, handler: F) -> Route
where
    F: Handler<Args>,
    Args: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    route(Method::PUT, path, actix_web::guard::Put(), handler)
}

fn patch<F, Args>(path: &'static str, handler: F) -> Route
where
    F: Handler<Args>,
    Args: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    route(Method::PATCH, path, actix_web::guard::Patch(), handler)
}

fn delete<F, Args>(path: &'static str, handler: F) -> Route
where
    F: Handler<Args>,
    Args: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    route(Method::DELETE, path, actix_web::guard::Delete(), handler)
}

fn route<G, F, Args>(method: Method, path: &'static str, guard: G, handler: F) -> Route
where
    G: Guard + 'static,
    F: Handler<Args>,
    Args: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    Route {
        method,
        path,
        handler: web::route().guard(guard).to(handler),
    }
}
