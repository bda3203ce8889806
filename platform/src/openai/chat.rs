//! `POST /v1/chat/completions`.

use actix_web::{FromRequest, HttpRequest, HttpResponse, web};

use super::error::{OpenAiError, OpenAiErrorBody};
use super::models;
use super::request::ChatRequest;
use super::script::{Chunks, completion};
use crate::auth::{CurrentUser, Role};
use crate::error::{ApiError, ErrorCode};
use crate::http::{StrictJson, departed};
use crate::inference::events::{self, Wanted};
use crate::inference::record;
use crate::inference::request::Request;
use crate::inference::routes::{early_failure, start};
use crate::inference::state::Phase;
use crate::models::target::{self, Target};
use crate::server::AppState;

/// Continues a chat. Any client of OpenAI's can be pointed at `/v1` with a personal token as its key.
#[utoipa::path(post, path = "/v1/chat/completions", tag = "OpenAI-compatible", request_body = ChatRequest, responses(
    (status = 200, description = "a `chat.completion`; with `stream` server-sent events of `chat.completion.chunk`, then `[DONE]`"),
    (status = 400, body = OpenAiErrorBody, description = "a parameter is not taken"),
    (status = 401, body = OpenAiErrorBody, description = "no valid token"),
    (status = 404, body = OpenAiErrorBody, description = "no such model"),
    (status = 502, body = OpenAiErrorBody, description = "the worker could not answer, or was lost"),
    (status = 503, body = OpenAiErrorBody, description = "no worker can take it"),
))]
pub async fn create(
    state: web::Data<AppState>,
    request: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, OpenAiError> {
    let user = user(&request).await?;
    user.require(Role::Member)?;
    let mut payload = payload.into_inner();
    let StrictJson(body) = StrictJson::<ChatRequest>::from_request(&request, &mut payload).await?;
    let (model, chat, sampling, telling) = body.checked()?;
    let wish = Request {
        target: target(&state, &user, &model).await?,
        chat,
        sampling,
        stream: telling.stream,
    };
    let record = start(&state, &user, wish)?;
    let wanted = Wanted::new(state.actors.clone(), record.clone());
    if telling.stream {
        early_failure(&wanted).await?;
        return Ok(events::respond(wanted, Chunks::new(telling)));
    }
    tokio::select! {
        () = record::ended(&record) => {}
        () = departed(&request) => {
            // Nobody reads this; that the answer is not wanted any more cancels the request.
            let error = ApiError::new(ErrorCode::Conflict, "the client has gone");
            return Err(error.into());
        }
    }
    if let Some(failure) = record.shown().failure {
        return Err(failure.into());
    }
    if record.phase() == Phase::Cancelled {
        let error = ApiError::new(ErrorCode::Conflict, "the request was cancelled");
        return Err(error.into());
    }
    Ok(HttpResponse::Ok().json(completion(&record)))
}

/// Who asks.
pub(super) async fn user(request: &HttpRequest) -> Result<CurrentUser, ApiError> {
    CurrentUser::extract(request).await
}

/// Only what is listed can be asked for: a name that is mistyped must not send a worker to the hub.
async fn target(state: &AppState, user: &CurrentUser, name: &str) -> Result<Target, OpenAiError> {
    let known = models::usable(state, user).await?;
    if !known.iter().any(|model| model.id() == name) {
        return Err(OpenAiError::no_such_model(name));
    }
    Ok(target::named(state, user, name).await?)
}
