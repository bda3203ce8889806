//! `/v1/models`: the models that one may chat with.

use actix_web::{HttpRequest, web};
use serde::Serialize;
use utoipa::ToSchema;

use super::error::{OpenAiError, OpenAiErrorBody};
use crate::auth::CurrentUser;
use crate::error::ApiError;
use crate::models::list::{self, ModelView};
use crate::server::AppState;

/// A model.
#[derive(Debug, Serialize, ToSchema)]
pub struct OpenAiModel {
    /// `job-123`, `federated-4`, or a base model's name.
    id: String,
    object: &'static str,
    /// Seconds since 1970; 0 where it is not known.
    created: i64,
    owned_by: &'static str,
}

/// All of them.
#[derive(Debug, Serialize, ToSchema)]
pub struct OpenAiModels {
    object: &'static str,
    data: Vec<OpenAiModel>,
}

/// Base models seen on workers, and finished jobs and federated sessions whose adapters one may use.
#[utoipa::path(get, path = "/v1/models", tag = "OpenAI-compatible", responses(
    (status = 200, body = OpenAiModels, description = "the models"),
    (status = 401, body = OpenAiErrorBody, description = "no valid token"),
))]
pub async fn list(
    state: web::Data<AppState>,
    request: HttpRequest,
) -> Result<web::Json<OpenAiModels>, OpenAiError> {
    let user = super::chat::user(&request).await?;
    let models = usable(&state, &user).await?;
    Ok(web::Json(OpenAiModels {
        object: "list",
        data: models.iter().map(shown).collect(),
    }))
}

/// One model.
#[utoipa::path(get, path = "/v1/models/{id}", tag = "OpenAI-compatible", params(("id" = String, Path)), responses(
    (status = 200, body = OpenAiModel, description = "the model"),
    (status = 404, body = OpenAiErrorBody, description = "no such model"),
))]
pub async fn get(
    state: web::Data<AppState>,
    request: HttpRequest,
    // With the slash that a model's name has, percent-encoded or not.
    name: web::Path<String>,
) -> Result<web::Json<OpenAiModel>, OpenAiError> {
    let user = super::chat::user(&request).await?;
    let name = name.as_str();
    let models = usable(&state, &user).await?;
    let found = models.iter().find(|model| model.id() == name);
    found
        .map(|model| web::Json(shown(model)))
        .ok_or_else(|| OpenAiError::no_such_model(name))
}

/// The models that can answer.
pub(super) async fn usable(
    state: &AppState,
    user: &CurrentUser,
) -> Result<Vec<ModelView>, ApiError> {
    let mut models = list::visible(state, user).await?;
    models.retain(ModelView::can_answer);
    Ok(models)
}

fn shown(model: &ModelView) -> OpenAiModel {
    OpenAiModel {
        id: model.id().to_owned(),
        object: "model",
        created: model.created_at().map_or(0, |at| at.timestamp()),
        owned_by: "trainyard",
    }
}
