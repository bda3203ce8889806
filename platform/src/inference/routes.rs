//! REST routes of inference: asked, looked at, cancelled.

use std::sync::Arc;
use std::time::Duration;

use actix_web::http::header;
use actix_web::{HttpResponse, web};
use serde::{Deserialize, Serialize};
use trainyard_shared::FinishReason;
use trainyard_shared::ids::{InferenceId, JobId, UserId};
use trainyard_shared::message::{
    InferenceCompleted, InferenceCompletedData, InferenceFailed, InferenceFailedData,
    InferenceTokens, InferenceTokensData, ToDashboard,
};
use utoipa::ToSchema;

use super::directory::Refused;
use super::events::{self, Script, Wanted};
use super::orders;
use super::record::{self, Record};
use super::request::{Chat, Request, Sampling};
use super::state::{Blame, Failure, Phase};
use super::view::InferenceView;
use crate::auth::{CurrentUser, Role};
use crate::error::{ApiError, ErrorCode};
use crate::http::{PathId, StrictJson};
use crate::models::target;
use crate::server::AppState;

/// A stream that is refused at once is refused with its status: so long is waited for that.
const EARLY: Duration = Duration::from_millis(500);
/// How long a client should wait when there was no room.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// A request for an answer.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InferenceRequest {
    /// The job whose adapter answers; this or `model`.
    #[schema(value_type = Option<i64>)]
    job_id: Option<JobId>,
    /// `job-123`, or a base model's name at the hub.
    model: Option<String>,
    messages: Vec<MessageRequest>,
    /// Put before the chat as its system message, where it has none of its own.
    system_prompt: Option<String>,
    /// 0 is greedy.
    temperature: Option<f64>,
    /// Most tokens of the answer; 0 gives an empty one.
    max_tokens: Option<u64>,
    /// Above 0, up to 1.
    top_p: Option<f64>,
    /// 0: all tokens.
    top_k: Option<u64>,
    /// Above 0; 1 changes nothing.
    repetition_penalty: Option<f64>,
    seed: Option<u64>,
    /// Texts that end the answer: one, or a list of up to 16.
    #[schema(value_type = Option<Vec<String>>)]
    stop: Option<Stop>,
    /// Answer with server-sent events.
    #[serde(default)]
    stream: bool,
}

/// One turn of the chat.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MessageRequest {
    /// `system` (or `developer`, the same), `user`, `assistant` or `tool`.
    role: String,
    content: String,
}

/// One text or several.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "a text or a list of texts")]
pub enum Stop {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl Stop {
    /// The texts.
    pub fn texts(self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text],
            Self::Many(texts) => texts,
        }
    }
}

/// A request that was taken in.
#[derive(Serialize, ToSchema)]
pub struct Accepted {
    #[schema(value_type = String)]
    inference_id: InferenceId,
    status: &'static str,
}

/// Asks a model for an answer. Without `stream` the answer is fetched from GET /api/inference/{id} or comes to
/// the dashboards of who asked; with it this very response is a stream of the same messages as events.
#[utoipa::path(post, path = "/api/inference", tag = "inference", request_body = InferenceRequest, responses(
    (status = 200, content_type = "text/event-stream", description = "with `stream`: events `inference_tokens`, then one `inference_completed` or `inference_failed`; when the client goes away the request is cancelled"),
    (status = 202, body = Accepted, description = "taken in"),
    (status = 400, description = "refused; details name the fields"),
    (status = 404, description = "no such job"),
    (status = 409, description = "the job has no verified adapter"),
    (status = 503, description = "no worker can take it, or too many requests are under way"),
))]
pub async fn create(
    state: web::Data<AppState>,
    user: CurrentUser,
    StrictJson(body): StrictJson<InferenceRequest>,
) -> Result<HttpResponse, ApiError> {
    user.require(Role::Member)?;
    let messages = body.messages.into_iter();
    let messages = messages.map(|message| (message.role, message.content));
    let chat = Chat::new(messages, body.system_prompt);
    let sampling = Sampling {
        temperature: body.temperature,
        max_tokens: body.max_tokens,
        top_p: body.top_p,
        top_k: body.top_k,
        repetition_penalty: body.repetition_penalty,
        seed: body.seed,
        stop: body.stop.map(Stop::texts).unwrap_or_default(),
    };
    let mut problems = chat.problems();
    problems.extend(sampling.problems());
    if !problems.is_empty() {
        return Err(ApiError::invalid(problems));
    }
    let target = target::asked_for(&state, &user, body.job_id, body.model.as_deref()).await?;
    let stream = body.stream;
    let request = Request {
        target,
        chat,
        sampling,
        stream,
    };
    let record = start(&state, &user, request)?;
    if stream {
        let wanted = Wanted::new(state.actors.clone(), record);
        early_failure(&wanted).await?;
        return Ok(events::respond(wanted, Messages));
    }
    let path = format!("/api/inference/{}", record.id);
    let accepted = Accepted {
        inference_id: record.id.clone(),
        status: record.phase().as_str(),
    };
    Ok(HttpResponse::Accepted()
        .insert_header((header::LOCATION, path))
        .json(accepted))
}

/// One request, and its answer as far as it has come. Kept for ten minutes after its end.
#[utoipa::path(get, path = "/api/inference/{id}", tag = "inference", params(("id" = String, Path)), responses(
    (status = 200, body = InferenceView, description = "the request"),
    (status = 404, description = "no such request"),
))]
pub async fn get(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<InferenceId>,
) -> Result<web::Json<InferenceView>, ApiError> {
    let record = own(&state, &user, &id)?;
    Ok(web::Json(InferenceView::of(&record)))
}

/// Cancels a request: its worker stops within a second. Without effect once it has ended.
#[utoipa::path(delete, path = "/api/inference/{id}", tag = "inference", params(("id" = String, Path)), responses(
    (status = 204, description = "cancelled, or ended before"),
    (status = 404, description = "no such request"),
))]
pub async fn cancel(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<InferenceId>,
) -> Result<HttpResponse, ApiError> {
    let record = own(&state, &user, &id)?;
    state.actors.inferences.cancel(&record.id).await;
    Ok(HttpResponse::NoContent().finish())
}

/// Takes a request in.
///
/// # Errors
/// 400 for one that no frame can carry, 503 when too many are under way.
pub fn start(
    state: &AppState,
    user: &CurrentUser,
    request: Request,
) -> Result<Arc<Record>, ApiError> {
    let id = "infer-00000000-0000-0000-0000-000000000000.0"
        .parse()
        .expect("it is short and visible ASCII");
    let frame = orders::start_text(&id, 1, &request, state.storage.as_ref());
    let limit = state.config.max_frame_bytes;
    if frame.len() > limit {
        let message = format!(
            "the chat is too long: with it the message to the worker has {} bytes, and {limit} are allowed",
            frame.len()
        );
        return Err(ApiError::invalid_field("messages", message));
    }
    let owner = UserId(user.id);
    let (actors, credential) = (&state.actors, user.credential);
    let started = actors.inferences.start(actors, owner, credential, request);
    started.map_err(|refused| {
        let message = match refused {
            Refused::TooMany => "too many requests are under way; try again later",
            Refused::Stopping => "the platform is stopping",
        };
        ApiError::new(ErrorCode::Unavailable, message).with_retry_after(RETRY_AFTER)
    })
}

/// Waits a little for a request that fails before any worker has it.
///
/// # Errors
/// Its failure.
pub async fn early_failure(wanted: &Wanted) -> Result<(), Failure> {
    let record = wanted.record();
    // Whichever comes first.
    let _ = tokio::time::timeout(EARLY, record::left_queue(record)).await;
    match record.shown().failure {
        Some(failure) => Err(failure),
        None => Ok(()),
    }
}

/// Chats are private: they are shown to who asked, and to administrators.
fn own(state: &AppState, user: &CurrentUser, id: &InferenceId) -> Result<Arc<Record>, ApiError> {
    let found = state.actors.inferences.get(id);
    let may_see = |record: &Arc<Record>| user.role == Role::Admin || record.owner.get() == user.id;
    found
        .filter(may_see)
        .ok_or_else(|| ApiError::not_found("inference request"))
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        let code = match failure.blame {
            Blame::Request => return Self::invalid_field("", failure.error),
            Blame::NoWorker => ErrorCode::NoWorker,
            Blame::Worker => ErrorCode::InferenceFailed,
            Blame::Silence => ErrorCode::InferenceTimeout,
            Blame::Stop => ErrorCode::Unavailable,
        };
        let may_pass = failure.blame.may_pass();
        let error = Self::new(code, failure.error);
        if may_pass {
            error.with_retry_after(RETRY_AFTER)
        } else {
            error
        }
    }
}

/// The events of `POST /api/inference`: the same messages as dashboards get.
struct Messages;

impl Script for Messages {
    fn tokens(&mut self, record: &Record, tokens: Vec<String>) -> String {
        named(&ToDashboard::InferenceTokens(InferenceTokens {
            worker_id: None,
            inference_id: record.id.clone(),
            data: InferenceTokensData { tokens },
        }))
    }

    fn end(&mut self, record: &Record) -> String {
        let shown = record.shown();
        let inference_id = record.id.clone();
        let message = match (shown.phase, &shown.failure) {
            (Phase::Failed, failure) => ToDashboard::InferenceFailed(InferenceFailed {
                worker_id: None,
                inference_id,
                message_id: None,
                data: InferenceFailedData {
                    error: failure
                        .as_ref()
                        .map(|failure| failure.error.clone())
                        .unwrap_or_default(),
                    failure_kind: None,
                },
            }),
            _ => ToDashboard::InferenceCompleted(InferenceCompleted {
                worker_id: None,
                inference_id,
                message_id: None,
                data: InferenceCompletedData {
                    tokens_generated: Some(shown.tokens()),
                    prompt_tokens: shown.prompt_tokens,
                    finish_reason: shown.finish_reason.or(Some(FinishReason::Stop)),
                    metrics: shown.metrics.unwrap_or_default(),
                    text: Some(shown.text),
                },
            }),
        };
        named(&message)
    }
}

fn named(message: &ToDashboard) -> String {
    events::event(message.wire_type(), &message.encode())
}
