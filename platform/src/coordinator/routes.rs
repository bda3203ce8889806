//! REST routes of volunteer sessions: made, listed, shown, stopped, and what came of them.

use std::collections::HashMap;
use std::sync::Arc;

use actix_web::{HttpResponse, web};
use serde::Serialize;
use serde_json::{Map, Value};
use trainyard_shared::ids::{FederatedSessionId, UserId};
use utoipa::ToSchema;

use super::hosted::Hosted;
use super::preparing;
use super::request::CoordinatorRequest;
use super::view::{CoordinatorView, FileView, ParticipantView, RoundView};
use crate::auth::{CurrentUser, Role};
use crate::database::{DatabaseError, now};
use crate::error::{ApiError, ErrorCode};
use crate::http::{NamePageQuery, Page, PageQuery, PathId, StrictJson, StrictQuery};
use crate::models::target;
use crate::rounds::state::{Answer, Event};
use crate::rounds::store::{self, NewSession, ResultRow, SessionRow, natural};
use crate::rounds::{Kind, SessionStatus, deleting, keys};
use crate::server::AppState;
use crate::{artifacts, datasets};

/// Results that one page of rounds holds at most.
const MAX_RESULTS: u64 = 10_000;

/// Makes a volunteer session. Weights and shards are made in the background; until then its status is `preparing`.
#[utoipa::path(post, path = "/api/coordinators", tag = "volunteers", request_body = CoordinatorRequest, responses(
    (status = 201, body = CoordinatorView, description = "the session, preparing"),
    (status = 400, description = "refused; details name the fields"),
    (status = 403, description = "the open default session is another user's"),
    (status = 404, description = "no such job or data set"),
    (status = 409, description = "the name is taken, or the job has no verified adapter"),
))]
pub async fn create(
    state: web::Data<AppState>,
    user: CurrentUser,
    StrictJson(body): StrictJson<Map<String, Value>>,
) -> Result<HttpResponse, ApiError> {
    user.require(Role::Member)?;
    let request = CoordinatorRequest::read(&body)?;
    let base_model = match request.job() {
        Some(job) => Some(target::of_job(&state, &user, job).await?.base_model),
        None => None,
    };
    let new = request.checked(UserId(user.id), base_model)?;
    if new.is_default
        && let Some(default) = state.actors.coordinators.default_session()
        && default.is_open()
        && default.row.owner_id != user.id
    {
        // Its volunteers would train something else from one moment to the next.
        user.require(Role::Admin)?;
    }
    // Goes on when the client is gone: what is in the database must be prepared.
    let making = actix_web::rt::spawn(make(state.clone(), user, new));
    let row = making.await.map_err(ApiError::internal)??;
    Ok(HttpResponse::Created().json(view(&state, row)?))
}

async fn make(
    state: web::Data<AppState>,
    user: CurrentUser,
    new: NewSession,
) -> Result<SessionRow, ApiError> {
    let row = state
        .database
        .write::<_, ApiError, _>(move |connection| {
            if let Some(dataset) = new.dataset {
                let dataset = found(datasets::store::get(connection, dataset.get()), "data set")?;
                user.require_sight(dataset.owner_id, "data set")?;
                if dataset.row_count == 0 {
                    let message = "the data set has no row to train on";
                    return Err(ApiError::invalid_field("dataset_id", message));
                }
            }
            match store::insert(connection, &new, now()) {
                Err(DatabaseError::Duplicate(_)) => {
                    let message = format!("there is a session named {:?} already", new.name);
                    Err(ApiError::new(ErrorCode::AlreadyExists, message))
                }
                inserted => Ok(inserted?),
            }
        })
        .await?;
    let hosted = Arc::new(Hosted::preparing(row.clone())?);
    state.actors.coordinators.add(hosted.clone());
    preparing::begin(&state.actors, hosted);
    Ok(row)
}

/// The volunteer sessions that one may see, newest first.
#[utoipa::path(get, path = "/api/coordinators", tag = "volunteers", params(PageQuery),
    responses((status = 200, body = Page<CoordinatorView>, description = "the sessions")))]
pub async fn list(
    state: web::Data<AppState>,
    user: CurrentUser,
    StrictQuery(page): StrictQuery<PageQuery>,
) -> Result<web::Json<Page<CoordinatorView>>, ApiError> {
    let (limit, before) = (page.limit()?, page.before()?);
    let owner = user.listed_owner();
    let read = move |c: &mut _| store::list(c, Kind::Volunteers, owner, before, limit + 1);
    let rows = state.database.read::<_, DatabaseError, _>(read).await?;
    let Page { items, next_cursor } = Page::of(rows, limit, |row| row.id, |row| view(&state, row));
    Ok(web::Json(Page {
        items: items.into_iter().collect::<Result<_, _>>()?,
        next_cursor,
    }))
}

/// One volunteer session.
#[utoipa::path(get, path = "/api/coordinators/{id}", tag = "volunteers", params(("id" = i64, Path)), responses(
    (status = 200, body = CoordinatorView, description = "the session"),
    (status = 404, description = "no such session"),
))]
pub async fn get(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<FederatedSessionId>,
) -> Result<web::Json<CoordinatorView>, ApiError> {
    let row = visible(&state, &user, id).await?;
    Ok(web::Json(view(&state, row)?))
}

/// Ends a volunteer session. What has been merged so far is its final adapter; results of the open round are not
/// used any more. One that is being prepared fails as soon as that can be broken off.
#[utoipa::path(post, path = "/api/coordinators/{id}/stop", tag = "volunteers", params(("id" = i64, Path)), responses(
    (status = 200, body = CoordinatorView, description = "stopped, or stopped before"),
    (status = 404, description = "no such session"),
    (status = 409, description = "it has ended otherwise"),
))]
pub async fn stop(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<FederatedSessionId>,
) -> Result<web::Json<CoordinatorView>, ApiError> {
    let row = visible(&state, &user, id).await?;
    user.require_change(row.owner_id, "session")?;
    let hosted = state.actors.coordinators.get(id);
    let answer = match hosted.as_ref().and_then(|hosted| hosted.session()) {
        Some(session) => session.apply(Event::StopAsked).await?,
        None if row.status()? == SessionStatus::Preparing => {
            if let Some(hosted) = hosted {
                hosted.give_up();
            }
            return Ok(web::Json(view(&state, row)?));
        }
        None => {
            let message = format!("the session has ended: it is {}", row.status);
            return Err(ApiError::new(ErrorCode::Conflict, message));
        }
    };
    let row = visible(&state, &user, id).await?;
    if answer != Answer::Taken && row.status()? != SessionStatus::Stopped {
        let message = format!("the session has ended: it is {}", row.status);
        return Err(ApiError::new(ErrorCode::Conflict, message));
    }
    Ok(web::Json(view(&state, row)?))
}

/// Deletes a session that has ended, with its final adapter and all other files.
#[utoipa::path(delete, path = "/api/coordinators/{id}", tag = "volunteers", params(("id" = i64, Path)), responses(
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
    if let Some(session) = state
        .actors
        .coordinators
        .get(id)
        .and_then(|one| one.session())
    {
        session.retire().await;
    }
    state.actors.coordinators.remove(id);
    Ok(HttpResponse::NoContent().finish())
}

/// The rounds of a session with their results, newest first; the cursor is a round's number.
#[utoipa::path(get, path = "/api/coordinators/{id}/rounds", tag = "volunteers", params(("id" = i64, Path), PageQuery),
    responses(
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
    let most = (MAX_RESULTS / natural(row.enough).max(1)).max(1);
    let limit = page.limit()?.min(store::integer(most));
    let before = page.before()?;
    let (rows, results) = state
        .database
        .read::<_, DatabaseError, _>(move |c| {
            let rows = store::rounds(c, id, before, limit + 1)?;
            let (first, last) = (
                rows.last().map_or(0, |row| row.round),
                rows.first().map_or(0, |row| row.round),
            );
            let results = store::results_of_session(c, id, first, last)?;
            Ok((rows, results))
        })
        .await?;
    let mut by_round: HashMap<i64, Vec<ResultRow>> = HashMap::new();
    for result in results {
        by_round.entry(result.round).or_default().push(result);
    }
    let page = Page::of(
        rows,
        limit,
        |row| row.round,
        |row| {
            let results = by_round.remove(&row.round).unwrap_or_default();
            RoundView::of(row, results)
        },
    );
    Ok(web::Json(page))
}

/// All items of a short list.
#[derive(Serialize, ToSchema)]
pub struct Items<T> {
    items: Vec<T>,
}

/// Who takes part in a session, and how they behave, by name; the cursor is a name.
#[utoipa::path(get, path = "/api/coordinators/{id}/participants", tag = "volunteers",
    params(("id" = i64, Path), NamePageQuery), responses(
        (status = 200, body = Page<ParticipantView>, description = "the volunteers"),
        (status = 404, description = "no such session"),
    ))]
pub async fn participants(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<FederatedSessionId>,
    StrictQuery(page): StrictQuery<NamePageQuery>,
) -> Result<web::Json<Page<ParticipantView>>, ApiError> {
    let session_row = visible(&state, &user, id).await?;
    let (limit, after) = (page.limit()?, page.after().to_owned());
    let read = move |c: &mut _| store::participants_from(c, id, &after, limit + 1);
    let rows = state.database.read::<_, DatabaseError, _>(read).await?;
    let hosted = state.actors.coordinators.get(id);
    let session = hosted.and_then(|hosted| hosted.session());
    Ok(web::Json(Page::of(
        rows,
        limit,
        |row| row.name.clone(),
        |row| ParticipantView::of(row, session.as_deref(), session_row.max_refused),
    )))
}

/// The files of the final adapter.
#[utoipa::path(get, path = "/api/coordinators/{id}/artifacts", tag = "volunteers", params(("id" = i64, Path)),
    responses(
        (status = 200, body = Items<FileView>, description = "the files; none before the session has ended"),
        (status = 404, description = "no such session"),
    ))]
pub async fn artifacts(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<FederatedSessionId>,
) -> Result<web::Json<Items<FileView>>, ApiError> {
    visible(&state, &user, id).await?;
    let read = move |c: &mut _| store::files(c, id);
    let rows = state.database.read::<_, DatabaseError, _>(read).await?;
    let items = rows.into_iter().map(FileView::of).collect();
    Ok(web::Json(Items { items }))
}

/// One file of the final adapter.
#[utoipa::path(get, path = "/api/coordinators/{id}/artifacts/{path}", tag = "volunteers",
    params(("id" = i64, Path), ("path" = String, Path)),
    responses(
        (status = 302, description = "to the signed URL of the file"),
        (status = 404, description = "no such session, or it has no such file"),
    ))]
pub async fn artifact(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<FederatedSessionId>,
    path: web::Path<(String, String)>,
) -> Result<HttpResponse, ApiError> {
    visible(&state, &user, id).await?;
    let (_, name) = path.into_inner();
    let read = move |c: &mut _| store::files(c, id);
    let rows = state.database.read::<_, DatabaseError, _>(read).await?;
    let known = rows.into_iter().find(|row| row.name == name);
    let known = known.ok_or_else(|| ApiError::not_found("file"))?;
    let key = keys::final_file(id, &known.name);
    Ok(artifacts::redirect_to(state.storage.as_ref(), &key).await?)
}

async fn visible(
    state: &AppState,
    user: &CurrentUser,
    id: FederatedSessionId,
) -> Result<SessionRow, ApiError> {
    let read = move |c: &mut _| store::row(c, id);
    let row = found(state.database.read(read).await, "session")?;
    user.require_sight(row.owner_id, "session")?;
    if row.kind()? != Kind::Volunteers {
        let message =
            format!("session {id} is one of workers: /api/federated/{id}, `trainyard federated`");
        return Err(ApiError::new(ErrorCode::NotFound, message));
    }
    Ok(row)
}

fn view(state: &AppState, row: SessionRow) -> Result<CoordinatorView, ApiError> {
    let sessions = &state.actors.coordinators;
    let hosted = sessions.get(row.id());
    let is_default = sessions.is_default(row.id());
    Ok(CoordinatorView::of(row, hosted.as_deref(), is_default)?)
}

fn found<T>(found: Result<T, DatabaseError>, what: &str) -> Result<T, ApiError> {
    found.map_err(|error| match error {
        DatabaseError::NotFound => ApiError::not_found(what),
        other => other.into(),
    })
}
