//! The machine-readable description of all routes, and a page that shows it.

use actix_web::HttpResponse;
use utoipa::OpenApi;
use utoipa::openapi::path::{ParameterBuilder, ParameterIn};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{RefOr, Required};
use utoipa_swagger_ui::SwaggerUi;

/// Where the description lies, as seen from the page: a proxy may serve both below a path of its own.
const DOCUMENT_FROM_PAGE: &str = "../openapi.json";

#[derive(OpenApi)]
#[openapi(
    info(title = "Trainyard", description = "Fine-tuning of language models on workers that connect from anywhere."),
    paths(
        crate::health::alive,
        crate::health::ready,
        document,
        crate::auth::routes::login,
        crate::auth::routes::logout,
        crate::auth::routes::me,
        crate::auth::routes::change_password,
        crate::auth::routes::list_api_tokens,
        crate::auth::routes::create_api_token,
        crate::auth::routes::delete_api_token,
        crate::auth::routes::create_ws_token,
        crate::users::routes::list,
        crate::users::routes::create,
        crate::users::routes::get,
        crate::users::routes::update,
        crate::users::routes::delete,
        crate::enrollment_keys::routes::list,
        crate::enrollment_keys::routes::create,
        crate::enrollment_keys::routes::revoke,
        crate::datasets::routes::list,
        crate::datasets::routes::upload,
        crate::datasets::routes::get,
        crate::datasets::routes::preview,
        crate::datasets::routes::delete,
        crate::artifacts::routes::grant_upload,
        crate::artifacts::routes::grant_download,
        crate::workers::routes::list,
        crate::workers::routes::get,
        crate::workers::routes::rename,
        crate::workers::routes::delete,
        crate::workers::routes::drain,
        crate::workers::routes::resume,
        crate::workers::routes::rotate_key,
        crate::jobs::routes::list,
        crate::jobs::routes::create,
        crate::jobs::routes::get,
        crate::jobs::routes::delete,
        crate::jobs::routes::stop,
        crate::jobs::routes::resume,
        crate::jobs::history_routes::metrics,
        crate::jobs::history_routes::events,
        crate::jobs::history_routes::logs,
        crate::jobs::history_routes::checkpoints,
        crate::jobs::history_routes::artifacts,
        crate::jobs::history_routes::artifact,
        crate::exports::routes::create,
        crate::exports::routes::list,
        crate::exports::routes::get,
        crate::exports::routes::delete,
        crate::inference::routes::create,
        crate::inference::routes::get,
        crate::inference::routes::cancel,
        crate::evaluations::routes::list,
        crate::evaluations::routes::create,
        crate::evaluations::routes::get,
        crate::evaluations::routes::cancel,
        crate::federated::routes::list,
        crate::federated::routes::create,
        crate::federated::routes::get,
        crate::federated::routes::delete,
        crate::federated::routes::stop,
        crate::federated::routes::rounds,
        crate::federated::routes::artifacts,
        crate::federated::routes::artifact,
        crate::coordinator::routes::list,
        crate::coordinator::routes::create,
        crate::coordinator::routes::get,
        crate::coordinator::routes::delete,
        crate::coordinator::routes::stop,
        crate::coordinator::routes::rounds,
        crate::coordinator::routes::participants,
        crate::coordinator::routes::artifacts,
        crate::coordinator::routes::artifact,
        crate::coordinator::polling::task,
        crate::coordinator::polling::info,
        crate::coordinator::downloads::weights,
        crate::coordinator::downloads::data,
        crate::coordinator::results::take,
        crate::models::list::list,
        crate::openai::chat::create,
        crate::openai::models::list,
        crate::openai::models::get,
        crate::workers::socket::open,
        crate::dashboards::socket::open,
        crate::storage::routes::download,
        crate::storage::routes::upload,
    ),
    modifiers(&Credentials, &NamedSessions),
    security(("bearer" = []), ("cookie" = [])),
)]
struct Document;

struct Credentials;

impl utoipa::Modify for Credentials {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        let cookie = ApiKey::Cookie(ApiKeyValue::new(crate::auth::SESSION_COOKIE));
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
        components.add_security_scheme("cookie", SecurityScheme::ApiKey(cookie));
    }
}

/// What volunteers find at the root is also at `/c/{name}/`, for each session.
struct NamedSessions;

impl utoipa::Modify for NamedSessions {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let name = ParameterBuilder::new()
            .name("name")
            .parameter_in(ParameterIn::Path)
            .required(Required::True)
            .description(Some("the session's name"))
            .build();
        let paths = &mut document.paths.paths;
        let at_root: Vec<_> = paths
            .iter()
            .filter(|(path, _)| crate::coordinator::is_ours(path))
            .map(|(path, item)| (format!("/c/{{name}}{path}"), item.clone()))
            .collect();
        for (path, mut item) in at_root {
            item.parameters
                .get_or_insert_default()
                .push(RefOr::T(name.clone()));
            for operation in [&mut item.get, &mut item.post].into_iter().flatten() {
                let id = operation.operation_id.get_or_insert_default();
                id.push_str("_of_session");
            }
            paths.insert(path, item);
        }
    }
}

/// This description.
#[utoipa::path(get, path = "/api/openapi.json", tag = "description", security(()),
    responses((status = 200, description = "the OpenAPI document")))]
pub async fn document() -> HttpResponse {
    HttpResponse::Ok().json(Document::openapi())
}

/// The page at `/api/docs/`.
pub fn page() -> SwaggerUi {
    SwaggerUi::new("/api/docs/{_:.*}").config(utoipa_swagger_ui::Config::from(DOCUMENT_FROM_PAGE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::routes;

    #[test]
    fn every_route_is_described_and_nothing_else() {
        let document = serde_json::to_value(Document::openapi()).unwrap();
        let paths = document["paths"].as_object().unwrap();
        let mut described: Vec<String> = paths
            .iter()
            .flat_map(|(path, methods)| {
                methods
                    .as_object()
                    .unwrap()
                    .keys()
                    .filter(|key| *key != "parameters")
                    .map(move |method| format!("{method} {path}"))
            })
            .collect();
        let mut served: Vec<String> = routes()
            .iter()
            .map(|route| {
                format!(
                    "{} {}",
                    route.method().as_str().to_lowercase(),
                    route.path().replace(":.*}", "}")
                )
            })
            .collect();
        described.sort();
        served.sort();
        assert_eq!(described, served);
    }
}
