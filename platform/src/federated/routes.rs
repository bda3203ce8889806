//! REST routes of federated sessions: made, listed, shown, stopped; their rounds and what they made.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;
use trainyard_shared::ids::{FederatedSessionId, UserId};
use utoipa::ToSchema;

use super::making;
use super::request::SessionRequest;
use super::settings::Settings;
use super::view::{RoundView, SessionView, Standing};
use crate::artifacts::redirect_to;
use crate::auth::{CurrentUser, Role};
use crate::database::{DatabaseError, now};
use crate::error::{ApiError, ErrorCode};
use crate::http::{Page, PageQuery, PathId, StrictJson, StrictQuery};
use crate::rounds::state::{Answer, Event};
use crate::rounds::store::{self, SessionRow, natural};
use crate::rounds::{Kind, deleting, keys};
use crate::server::AppState;
use crate::workers::supervisor::GetFree;
use crate::{datasets, workers};

/// Makes a federated session. It begins once enough workers are free.
#[utoipa::path(post, path = "/api/federated", tag = "federated training", request_body = SessionRequest, responses(
    (status = 201, body = SessionView, description = "the session"),
    (status = 400, description = "refused; details name the fields"),
    (status = 404, description = "no such data set or worker"),
))]
pub async fn create(
    state: web::Data<AppState>,
    user: CurrentUser,
    StrictJson(request): StrictJson<SessionRequest>,
) -> Result<HttpResponse, ApiError> {
    user.require(Role::Member)?;
    let checked = request.check(UserId(user.id))?;
    let row = state
        .database
        .write::<_, ApiError, _>(move |connection| {
            for dataset in &checked.settings.dataset_ids {
                let dataset = found(datasets::store::get(connection, dataset.get()), "data set")?;
                user.require_sight(dataset.owner_id, "data set")?;
                let needed = rows_needed(&checked.settings);
                if natural(dataset.row_count) < needed {
                    let message = format!(
                        "data set {} has {} rows, and {needed} are needed: one for every shard",
                        dataset.id, dataset.row_count
                    );
                    return Err(ApiError::invalid_field("dataset_id", message));
                }
            }
            for worker in checked.settings.worker_ids.iter().flatten() {
                found(workers::store::get(connection, *worker), "worker")?;
            }
            Ok(store::insert(connection, &checked.new, now())?)
        })
        .await?;
    making::begin(&state.actors, row.clone());
    Ok(HttpResponse::Created().json(SessionView::of(row, None)?))
}

/// Every shard needs a row.
fn rows_needed(settings: &Settings) -> u64 {
    match settings.dataset_ids.len() {
        1 => settings.shards,
        _ => 1,
    }
}

/// The federated sessions that one may see, newest first.
#[utoipa::path(get, path = "/api/federated", tag = "federated training", params(PageQuery),
    responses((status = 200, body = Page<SessionView>, description = "the sessions")))]
pub async fn list(
    state: web::Data<AppState>,
    user: CurrentUser,
    StrictQuery(page): StrictQuery<PageQuery>,
) -> Result<web::Json<Page<SessionView>>, ApiError> {
    let (limit, before) = (page.limit()?, page.before()?);
    let owner = user.listed_owner();
    let rows = state
        .database
        .read::<_, DatabaseError, _>(move |c| {
            store::list(c, Kind::Workers, owner, before, limit + 1)
        })
        .await?;
    let Page { items, next_cursor } = Page::of(
        rows,
        limit,
        |row| row.id,
        |row| {
            let standing = standing(&state, row.id());
            SessionView::of(row, standing.as_ref())
        },
    );
    Ok(web::Json(Page {
        items: items.into_iter().collect::<Result<_, _>>()?,
        next_cursor,
    }))
}

/// One federated session, with its workers.
#[utoipa::path(get, path = "/api/federated/{id}", tag = "federated training", params(("id" = i64, Path)), responses(
    (status = 200, body = SessionView, description = "the session"),
    (status = 404, description = "no such session"),
))]
pub async fn get(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<FederatedSessionId>,
) -> Result<web::Json<SessionView>, ApiError> {
    visible(&state, &user, id).await?;
    Ok(web::Json(shown(&state, id).await?))
}

/// The rounds of a session that have begun, newest first.
#[utoipa::path(get, path = "/api/federated/{id}/rounds", tag = "federated training",
    params(("id" = i64, Path), PageQuery), responses(
    (status = 200, body = Page<RoundView>, description = "the rounds"),
    (status = 404, description = "no such session"),
))]
pub async fn rounds(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<FederatedSessionId>,
    StrictQuery(page): StrictQuery<PageQuery>,
) -> Result<web::Json<Page<RoundView>>, ApiError> {
    let row = visible(&state, &user, id).await?;
    let (limit, before) = (page.limit()?, page.before()?);
    // Behind the last round lies what came of it.
    let before = before.min(row.total_rounds);
    let is_merging = row.closing;
    let are_masked = Settings::of(&row)?.masking_rules().is_some();
    let shown = state
        .database
        .read::<_, DatabaseError, _>(move |c| {
            let rounds = store::rounds(c, id, before, limit + 1)?;
            let first = rounds.last().map_or(0, |round| round.round);
            let last = rounds.first().map_or(-1, |round| round.round);
            let mut results = store::results_of_session(c, id, first, last)?;
            let mut shown = Vec::with_capacity(rounds.len());
            for round in rounds {
                let (own, others) = results
                    .into_iter()
                    .partition(|result| result.round == round.round);
                results = others;
                shown.push((
                    round.round,
                    RoundView::of(round, own, is_merging, are_masked),
                ));
            }
            Ok(shown)
        })
        .await?;
    Ok(web::Json(Page::of(
        shown,
        limit,
        |(round, _)| *round,
        |(_, view)| view,
    )))
}

/// Ends a session at once. What its rounds have made so far is kept as its result.
#[utoipa::path(post, path = "/api/federated/{id}/stop", tag = "federated training", params(("id" = i64, Path)),
    responses(
    (status = 200, body = SessionView, description = "the session; it has stopped"),
    (status = 404, description = "no such session"),
    (status = 409, description = "it has ended"),
))]
pub async fn stop(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<FederatedSessionId>,
) -> Result<web::Json<SessionView>, ApiError> {
    let row = visible(&state, &user, id).await?;
    user.require_change(row.owner_id, "session")?;
    if !making::stop_preparing(&state.actors, id).await? {
        let Some(found) = state.actors.federated.find(id) else {
            return Err(ended(&visible(&state, &user, id).await?));
        };
        if let Answer::Refused(_) = found.rounds.apply(Event::StopAsked).await? {
            return Err(ended(&visible(&state, &user, id).await?));
        }
    }
    Ok(web::Json(shown(&state, id).await?))
}

/// Deletes a session that has ended, with what it has made and all other files.
#[utoipa::path(delete, path = "/api/federated/{id}", tag = "federated training", params(("id" = i64, Path)),
    responses(
    (status = 204, description = "deleted"),
    (status = 404, description = "no such session"),
    (status = 409, description = "it has not ended, or its model is being measured"),
))]
pub async fn delete(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<FederatedSessionId>,
) -> Result<HttpResponse, ApiError> {
    let row = visible(&state, &user, id).await?;
    user.require_change(row.owner_id, "session")?;
    deleting::delete(&state, id).await?;
    Ok(HttpResponse::NoContent().finish())
}

fn ended(row: &SessionRow) -> ApiError {
    let message = format!("the session has ended: it is {}", row.status);
    ApiError::new(ErrorCode::Conflict, message)
}

/// A file of what a session has made.
#[derive(Debug, Serialize, ToSchema)]
pub struct FileView {
    /// Its name.
    path: String,
    size_bytes: u64,
    sha256: String,
}

/// All files of what a session has made.
#[derive(Debug, Serialize, ToSchema)]
pub struct Files {
    items: Vec<FileView>,
}

/// The files of what a session has made; none before it has ended.
#[utoipa::path(get, path = "/api/federated/{id}/artifacts", tag = "federated training", params(("id" = i64, Path)),
    responses(
    (status = 200, body = Files, description = "the files"),
    (status = 404, description = "no such session"),
))]
pub async fn artifacts(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<FederatedSessionId>,
) -> Result<web::Json<Files>, ApiError> {
    visible(&state, &user, id).await?;
    let read = move |c: &mut _| store::files(c, id);
    let rows = state.database.read::<_, DatabaseError, _>(read).await?;
    let items = rows.into_iter().map(|row| FileView {
        path: row.name,
        size_bytes: natural(row.size_bytes),
        sha256: row.sha256,
    });
    Ok(web::Json(Files {
        items: items.collect(),
    }))
}

/// A file of what a session has made.
#[utoipa::path(get, path = "/api/federated/{id}/artifacts/{path}", tag = "federated training",
    params(("id" = i64, Path), ("path" = String, Path)), responses(
    (status = 302, description = "to a signed URL of the file"),
    (status = 404, description = "no such session or file"),
))]
pub async fn artifact(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<FederatedSessionId>,
    request: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    visible(&state, &user, id).await?;
    let path = request.match_info().get("path").unwrap_or_default();
    let read = move |c: &mut _| store::files(c, id);
    let files = state.database.read::<_, DatabaseError, _>(read).await?;
    // Only what is listed is given out: no path from outside ever becomes a key.
    let file = files
        .into_iter()
        .find(|file| file.name == path)
        .ok_or_else(|| ApiError::not_found("file of this session"))?;
    let key = keys::final_file(id, &file.name);
    Ok(redirect_to(state.storage.as_ref(), &key).await?)
}

async fn visible(
    state: &AppState,
    user: &CurrentUser,
    id: FederatedSessionId,
) -> Result<SessionRow, ApiError> {
    let read = move |c: &mut _| store::row(c, id);
    let row = found(state.database.read(read).await, "session")?;
    user.require_sight(row.owner_id, "session")?;
    if row.kind()? != Kind::Workers {
        let message = format!(
            "session {id} is one of volunteers: /api/coordinators/{id}, `trainyard coordinators`"
        );
        return Err(ApiError::new(ErrorCode::NotFound, message));
    }
    Ok(row)
}

async fn shown(state: &AppState, id: FederatedSessionId) -> Result<SessionView, ApiError> {
    let standing = standing(state, id);
    let read = move |c: &mut _| {
        let row = store::row(c, id)?;
        let last = store::results_of_session(c, id, row.round - 1, row.round)?;
        Ok((row, store::participants(c, id)?, last))
    };
    let (row, participants, last) = state.database.read::<_, DatabaseError, _>(read).await?;
    // The row may tell of the end a moment before the actor is gone.
    let standing = standing.filter(|_| row.ended_at.is_none());
    let view = SessionView::of(row, standing.as_ref())?;
    let view = view.with_workers(participants, &last, standing.as_ref());
    let Some((standing, seeking)) = standing.and_then(|standing| {
        let seeking = standing.seeking()?;
        Some((standing, seeking))
    }) else {
        return Ok(view);
    };
    // Fails only when the platform stops.
    Ok(match state.actors.supervisor.send(GetFree).await {
        Ok(free) => view.with_free_workers(seeking.suitable(&free).count(), &standing),
        Err(_) => view,
    })
}

fn standing(state: &AppState, id: FederatedSessionId) -> Option<Standing> {
    let found = state.actors.federated.find(id)?;
    Some(Standing::of(&found, state.actors.clock.now()))
}

fn found<T>(found: Result<T, DatabaseError>, what: &str) -> Result<T, ApiError> {
    found.map_err(|error| match error {
        DatabaseError::NotFound => ApiError::not_found(what),
        other => other.into(),
    })
}
