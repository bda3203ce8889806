//! REST routes of workers.

use std::collections::BTreeMap;

use actix_web::{HttpResponse, web};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use trainyard_shared::ids::WorkerId;
use trainyard_shared::message::{ToWorker, WorkerMetricsData};
use trainyard_shared::{WorkerStatus, WorkerType};
use utoipa::ToSchema;

use super::event::Occupation;
use super::session::enrollment_complete;
use super::store::{self, WorkerRow};
use super::supervisor::{GetWorkers, KeyReplaced, Removed, Renamed, Seen, SetDraining};
use crate::auth::{CurrentUser, Role};
use crate::database::{DatabaseError, from_json_text, now, shown_time};
use crate::error::{ApiError, ErrorCode};
use crate::http::{Page, PageQuery, PathId, StrictJson, StrictQuery};
use crate::server::AppState;

/// Longest name of a worker, in characters.
const MAX_NAME_CHARACTERS: usize = 100;

/// A worker.
#[derive(Debug, Serialize, ToSchema)]
pub struct WorkerView {
    id: i64,
    uuid: String,
    name: String,
    /// What it does; `online` for one that is connected and has not registered.
    status: WorkerStatus,
    /// Whether it counts as there: connected, or away for less than the heartbeat timeout.
    online: bool,
    /// Whether it has a connection at this moment.
    connected: bool,
    last_seen_at: Option<DateTime<Utc>>,
    /// Null until it first registered.
    worker_type: Option<WorkerType>,
    /// What it said when it last registered.
    #[schema(value_type = Option<Object>)]
    hardware: Option<Value>,
    #[schema(value_type = Option<Object>)]
    benchmark: Option<Value>,
    /// Load of its machine, as it last said on this connection.
    #[schema(value_type = Option<Object>)]
    metrics: Option<WorkerMetricsData>,
    current_job_id: Option<i64>,
    /// The federated session in which it takes part.
    current_session_id: Option<i64>,
    /// Whether it has anything to do: a job, an evaluation, an export, a session or chats. One that is draining and
    /// not busy can be switched off.
    busy: bool,
    /// Whether it is to be given nothing new because an administrator wants it so.
    draining: bool,
    created_at: DateTime<Utc>,
}

impl WorkerView {
    fn of(row: WorkerRow, seen: Option<&Seen>) -> Result<Self, ApiError> {
        let stored = |text: Option<String>| -> Result<Option<Value>, DatabaseError> {
            text.as_deref().map(from_json_text).transpose()
        };
        let view = seen.map(|seen| seen.view);
        let status = view.map_or(WorkerStatus::Offline, |view| view.status);
        Ok(Self {
            id: row.id,
            uuid: row.uuid,
            name: row.name,
            status,
            online: status != WorkerStatus::Offline,
            connected: view.is_some_and(|view| view.connected),
            last_seen_at: seen
                .and_then(|seen| seen.last_seen_at)
                .or(row.last_seen_at.map(shown_time)),
            worker_type: row.worker_type.as_deref().and_then(WorkerType::from_word),
            hardware: stored(row.hardware)?,
            benchmark: stored(row.benchmark)?,
            metrics: seen.and_then(|seen| seen.metrics.clone()),
            current_job_id: view.and_then(|view| view.holds).map(|job| job.get()),
            current_session_id: view.and_then(|view| match view.occupied? {
                Occupation::Session(session) => Some(session.get()),
                Occupation::Task(_) => None,
            }),
            busy: view.is_some_and(|view| view.busy),
            draining: row.draining,
            created_at: shown_time(row.created_at),
        })
    }
}

/// All workers, newest first.
#[utoipa::path(get, path = "/api/workers", tag = "workers", params(PageQuery),
    responses((status = 200, body = Page<WorkerView>, description = "the workers")))]
pub async fn list(
    state: web::Data<AppState>,
    _: CurrentUser,
    StrictQuery(page): StrictQuery<PageQuery>,
) -> Result<web::Json<Page<WorkerView>>, ApiError> {
    let (limit, before) = (page.limit()?, page.before()?);
    let seen = all_seen(&state).await?;
    let rows = state
        .database
        .read::<_, DatabaseError, _>(move |c| store::list(c, before, limit + 1))
        .await?;
    let Page { items, next_cursor } = Page::of(
        rows,
        limit,
        |row| row.id,
        |row| {
            let seen = seen.get(&WorkerId(row.id));
            WorkerView::of(row, seen)
        },
    );
    Ok(web::Json(Page {
        items: items.into_iter().collect::<Result<_, _>>()?,
        next_cursor,
    }))
}

/// One worker.
#[utoipa::path(get, path = "/api/workers/{id}", tag = "workers", params(("id" = i64, Path)), responses(
    (status = 200, body = WorkerView, description = "the worker"),
    (status = 404, description = "no such worker"),
))]
pub async fn get(
    state: web::Data<AppState>,
    _: CurrentUser,
    PathId(id): PathId<WorkerId>,
) -> Result<web::Json<WorkerView>, ApiError> {
    let row = found(state.database.read(move |c| store::get(c, id)).await)?;
    shown(&state, row).await
}

/// What is to be changed about a worker.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkerChange {
    /// Its new name.
    name: String,
}

/// Gives a worker another name.
#[utoipa::path(patch, path = "/api/workers/{id}", tag = "workers", params(("id" = i64, Path)),
    request_body = WorkerChange, responses(
    (status = 200, body = WorkerView, description = "the worker"),
    (status = 404, description = "no such worker"),
    (status = 409, description = "another worker has this name"),
))]
pub async fn rename(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<WorkerId>,
    StrictJson(change): StrictJson<WorkerChange>,
) -> Result<web::Json<WorkerView>, ApiError> {
    user.require(Role::Admin)?;
    let name = change.name.trim().to_owned();
    let length = name.chars().count();
    if !(1..=MAX_NAME_CHARACTERS).contains(&length) || name.chars().any(char::is_control) {
        let message = format!(
            "must have 1 to {MAX_NAME_CHARACTERS} characters, none of them a control character"
        );
        return Err(ApiError::invalid_field("name", message));
    }
    let new = name.clone();
    let row = found(
        state
            .database
            .write(move |c| store::rename(c, id, &new))
            .await,
    )?;
    tell(&state, Renamed { worker: id, name }).await?;
    shown(&state, row).await
}

/// Deletes a worker: its key is void, its connection closed, its job lost.
#[utoipa::path(delete, path = "/api/workers/{id}", tag = "workers", params(("id" = i64, Path)), responses(
    (status = 204, description = "deleted"),
    (status = 404, description = "no such worker"),
))]
pub async fn delete(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<WorkerId>,
) -> Result<HttpResponse, ApiError> {
    user.require(Role::Admin)?;
    found(
        state
            .database
            .write(move |c| store::delete(c, id, now()))
            .await,
    )?;
    tell(&state, Removed(id)).await?;
    Ok(HttpResponse::NoContent().finish())
}

/// Lets a worker end what it has and gives it nothing new.
#[utoipa::path(post, path = "/api/workers/{id}/drain", tag = "workers", params(("id" = i64, Path)), responses(
    (status = 200, body = WorkerView, description = "the worker"),
    (status = 404, description = "no such worker"),
))]
pub async fn drain(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<WorkerId>,
) -> Result<web::Json<WorkerView>, ApiError> {
    set_draining(&state, &user, id, true).await
}

/// Gives a worker work again.
#[utoipa::path(post, path = "/api/workers/{id}/resume", tag = "workers", params(("id" = i64, Path)), responses(
    (status = 200, body = WorkerView, description = "the worker"),
    (status = 404, description = "no such worker"),
))]
pub async fn resume(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<WorkerId>,
) -> Result<web::Json<WorkerView>, ApiError> {
    set_draining(&state, &user, id, false).await
}

async fn set_draining(
    state: &AppState,
    user: &CurrentUser,
    worker: WorkerId,
    draining: bool,
) -> Result<web::Json<WorkerView>, ApiError> {
    user.require(Role::Admin)?;
    let write = move |c: &mut _| store::set_draining(c, worker, draining);
    let row = found(state.database.write(write).await)?;
    tell(state, SetDraining { worker, draining }).await?;
    shown(state, row).await
}

/// How the worker is to learn its new key.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RotateRequest {
    /// Send it to the worker on its connection instead of showing it.
    #[serde(default)]
    deliver: bool,
}

/// A worker's new key.
#[derive(Serialize, ToSchema)]
pub struct RotatedKey {
    /// The key, shown this once; absent where it was sent to the worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

/// Gives a worker a new key. The old one is void and its connection closed.
#[utoipa::path(post, path = "/api/workers/{id}/rotate-key", tag = "workers", params(("id" = i64, Path)),
    request_body = RotateRequest, responses(
    (status = 200, body = RotatedKey, description = "the key"),
    (status = 404, description = "no such worker"),
    (status = 409, description = "it is to be sent to the worker, which is not connected"),
))]
pub async fn rotate_key(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<WorkerId>,
    StrictJson(request): StrictJson<RotateRequest>,
) -> Result<web::Json<RotatedKey>, ApiError> {
    user.require(Role::Admin)?;
    found(state.database.read(move |c| store::get(c, id)).await)?;
    let connected =
        |seen: &BTreeMap<WorkerId, Seen>| seen.get(&id).is_some_and(|seen| seen.view.connected);
    if request.deliver && !connected(&all_seen(&state).await?) {
        let message = "the worker is not connected: its key cannot be sent to it";
        return Err(ApiError::new(ErrorCode::Conflict, message));
    }
    let (key, worker) = found(
        state
            .database
            .write(move |c| store::replace_key(c, id))
            .await,
    )?;
    let deliver = request.deliver.then(|| {
        let complete = enrollment_complete(&worker, key.secret.clone());
        ToWorker::EnrollmentComplete(complete).encode().into()
    });
    let delivered = request.deliver;
    let worker = id;
    let was_connected = tell(&state, KeyReplaced { worker, deliver }).await?;
    let shown = !(delivered && was_connected);
    Ok(web::Json(RotatedKey {
        key: shown.then(|| key.secret.into_exposed()),
    }))
}

/// How all workers are.
pub async fn all_seen(state: &AppState) -> Result<BTreeMap<WorkerId, Seen>, ApiError> {
    tell(state, GetWorkers).await
}

async fn shown(state: &AppState, row: WorkerRow) -> Result<web::Json<WorkerView>, ApiError> {
    let seen = all_seen(state).await?;
    let seen = seen.get(&WorkerId(row.id));
    Ok(web::Json(WorkerView::of(row, seen)?))
}

async fn tell<M>(state: &AppState, message: M) -> Result<M::Result, ApiError>
where
    M: actix::Message + Send + 'static,
    M::Result: Send,
    super::supervisor::Supervisor: actix::Handler<M>,
{
    let answer = state.actors.supervisor.send(message).await;
    answer.map_err(|_| DatabaseError::Stopped.into())
}

fn found<T>(found: Result<T, DatabaseError>) -> Result<T, ApiError> {
    found.map_err(|error| match error {
        DatabaseError::NotFound => ApiError::not_found("worker"),
        other => other.into(),
    })
}
