//! REST routes of what is known of a job beside itself: its curve, events, log, checkpoints and files.

use std::collections::BTreeSet;

use actix_web::{HttpRequest, HttpResponse, web};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use trainyard_shared::ids::JobId;
use trainyard_shared::message::TrainingProgressData;
use utoipa::{IntoParams, ToSchema};

use super::history;
use super::routes::visible;
use super::view::{ArtifactView, CheckpointView, artifact_views, checkpoint_views};
use crate::artifacts::{redirect_to, shown_path};
use crate::auth::CurrentUser;
use crate::database::{DatabaseError, shown_time};
use crate::error::ApiError;
use crate::http::{Page, PageQuery, PathId, StrictQuery};
use crate::metrics::downsample::largest_triangles;
use crate::metrics::store;
use crate::metrics::writer::Flush;
use crate::server::AppState;
use crate::storage::StorageKey;

const DEFAULT_POINTS: usize = 1_000;
const MAX_POINTS: usize = 20_000;

/// Which part of a curve, and how fine.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct MetricsQuery {
    /// Only steps beyond this one; all when absent.
    since_step: Option<u64>,
    /// Points wanted at most, 3 to 20,000; 1,000 when absent. More are thinned out without losing the shape
    /// of the loss.
    max_points: Option<usize>,
}

/// The curve of a job: each step once, as the newest attempt reported it.
#[derive(Serialize, ToSchema)]
pub struct Curve {
    /// By step; a metric that is not finite is null.
    #[schema(value_type = Vec<Object>)]
    points: Vec<Value>,
}

/// The curve of a job.
#[utoipa::path(get, path = "/api/jobs/{id}/metrics", tag = "jobs", params(("id" = i64, Path), MetricsQuery),
    responses(
        (status = 200, body = Curve, description = "the points"),
        (status = 404, description = "no such job"),
    ))]
pub async fn metrics(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<JobId>,
    StrictQuery(query): StrictQuery<MetricsQuery>,
) -> Result<web::Json<Curve>, ApiError> {
    let max_points = query.max_points.unwrap_or(DEFAULT_POINTS);
    if !(3..=MAX_POINTS).contains(&max_points) {
        let message = format!("must lie between 3 and {MAX_POINTS}");
        return Err(ApiError::invalid_field("max_points", message));
    }
    visible(&state, &user, id).await?;
    // What has come is to be seen; where it cannot be written, what was written before is.
    let _ = state.actors.metrics.send(Flush).await;
    let since = query.since_step.unwrap_or(0);
    let points = state
        .database
        .read::<_, DatabaseError, _>(move |c| store::points(c, id, since))
        .await?;
    let shape: Vec<(f64, f64)> = points
        .iter()
        .map(|(_, point)| (point.step as f64, point.loss.unwrap_or(f64::NAN)))
        .collect();
    let evaluated: BTreeSet<usize> = (0..points.len())
        .filter(|index| points[*index].1.eval_loss.is_some())
        .collect();
    let points = thinned_out(&shape, evaluated, max_points)
        .into_iter()
        .map(|index| shown_point(&points[index]))
        .collect();
    Ok(web::Json(Curve { points }))
}

/// The points that are shown, by their places: those with an evaluation among them, unless they alone are too many.
fn thinned_out(
    shape: &[(f64, f64)],
    evaluated: BTreeSet<usize>,
    max_points: usize,
) -> BTreeSet<usize> {
    let rest = max_points - evaluated.len().min(max_points);
    if shape.len() <= max_points || rest < 3 {
        return largest_triangles(shape, max_points).into_iter().collect();
    }
    let mut shown = evaluated;
    shown.extend(largest_triangles(shape, rest));
    shown
}

fn shown_point((attempt, point): &(u32, TrainingProgressData)) -> Value {
    let mut shown = json!(point);
    shown["attempt"] = json!(attempt);
    shown
}

/// A row of a job's history.
#[derive(Serialize, ToSchema)]
pub struct EventView {
    at: DateTime<Utc>,
    kind: String,
    from: String,
    to: String,
    detail: String,
    attempt: i32,
}

/// What happened to a job, oldest first.
#[utoipa::path(get, path = "/api/jobs/{id}/events", tag = "jobs", params(("id" = i64, Path), PageQuery),
    responses(
        (status = 200, body = Page<EventView>, description = "the events"),
        (status = 404, description = "no such job"),
    ))]
pub async fn events(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<JobId>,
    StrictQuery(page): StrictQuery<PageQuery>,
) -> Result<web::Json<Page<EventView>>, ApiError> {
    let (limit, after) = (page.limit()?, after(&page)?);
    visible(&state, &user, id).await?;
    let rows = state
        .database
        .read::<_, DatabaseError, _>(move |c| history::events(c, id, after, limit + 1))
        .await?;
    Ok(web::Json(Page::of(
        rows,
        limit,
        |row| row.id,
        |row| EventView {
            at: shown_time(row.at),
            kind: row.kind,
            from: row.from_status,
            to: row.to_status,
            detail: row.detail,
            attempt: row.attempt,
        },
    )))
}

/// A line of a job's log.
#[derive(Serialize, ToSchema)]
pub struct LineView {
    at: DateTime<Utc>,
    level: String,
    line: String,
    attempt: i32,
}

/// The last 1,000 lines of a job's log, oldest first.
#[utoipa::path(get, path = "/api/jobs/{id}/logs", tag = "jobs", params(("id" = i64, Path), PageQuery),
    responses(
        (status = 200, body = Page<LineView>, description = "the lines"),
        (status = 404, description = "no such job"),
    ))]
pub async fn logs(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<JobId>,
    StrictQuery(page): StrictQuery<PageQuery>,
) -> Result<web::Json<Page<LineView>>, ApiError> {
    let limit = page.limit.map_or(Ok(store::KEPT_LINES), |_| page.limit())?;
    let after = after(&page)?;
    visible(&state, &user, id).await?;
    let _ = state.actors.metrics.send(Flush).await;
    let rows = state
        .database
        .read::<_, DatabaseError, _>(move |c| history::lines(c, id, after, limit + 1))
        .await?;
    Ok(web::Json(Page::of(
        rows,
        limit,
        |row| row.id,
        |row| LineView {
            at: shown_time(row.at),
            level: row.level,
            line: row.line,
            attempt: row.attempt,
        },
    )))
}

/// The cursor of a list that goes from old to new.
fn after(page: &PageQuery) -> Result<i64, ApiError> {
    match page.cursor {
        None => Ok(0),
        Some(_) => page.before(),
    }
}

/// All checkpoints of a job.
#[derive(Serialize, ToSchema)]
pub struct Checkpoints {
    items: Vec<CheckpointView>,
}

/// The checkpoints of a job, by step.
#[utoipa::path(get, path = "/api/jobs/{id}/checkpoints", tag = "jobs", params(("id" = i64, Path)), responses(
    (status = 200, body = Checkpoints, description = "the checkpoints"),
    (status = 404, description = "no such job"),
))]
pub async fn checkpoints(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<JobId>,
) -> Result<web::Json<Checkpoints>, ApiError> {
    visible(&state, &user, id).await?;
    let (rows, files) = state
        .database
        .read::<_, DatabaseError, _>(move |c| {
            Ok((
                history::checkpoints(c, id)?,
                history::checkpoint_files(c, id)?,
            ))
        })
        .await?;
    let items = checkpoint_views(rows, &files)?;
    Ok(web::Json(Checkpoints { items }))
}

/// All files of a job's result and of its exports.
#[derive(Serialize, ToSchema)]
pub struct Artifacts {
    items: Vec<ArtifactView>,
}

/// The files of a job's result and of its exports.
#[utoipa::path(get, path = "/api/jobs/{id}/artifacts", tag = "jobs", params(("id" = i64, Path)), responses(
    (status = 200, body = Artifacts, description = "the files"),
    (status = 404, description = "no such job"),
))]
pub async fn artifacts(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<JobId>,
) -> Result<web::Json<Artifacts>, ApiError> {
    let row = visible(&state, &user, id).await?;
    let files = state
        .database
        .read::<_, DatabaseError, _>(move |c| history::result_files(c, id))
        .await?;
    let items = artifact_views(&row, files)?;
    Ok(web::Json(Artifacts { items }))
}

/// A file of a job's result or of one of its exports.
#[utoipa::path(get, path = "/api/jobs/{id}/artifacts/{path}", tag = "jobs",
    params(("id" = i64, Path), ("path" = String, Path)), responses(
    (status = 302, description = "to a signed URL of the file"),
    (status = 404, description = "no such job or file"),
))]
pub async fn artifact(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<JobId>,
    request: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    visible(&state, &user, id).await?;
    let path = request.match_info().get("path").unwrap_or_default();
    let files = state
        .database
        .read::<_, DatabaseError, _>(move |c| history::result_files(c, id))
        .await?;
    // Only what is listed is given out: no path from outside ever becomes a key.
    let file = files
        .into_iter()
        .find(|file| shown_path(id, &file.storage_key) == path)
        .ok_or_else(|| ApiError::not_found("file of this job"))?;
    let key = StorageKey::parse(&file.storage_key)?;
    Ok(redirect_to(state.storage.as_ref(), &key).await?)
}
