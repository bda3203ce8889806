//! REST routes of exports, under the job whose result they are: made, listed, shown, cancelled or removed.

use std::str::FromStr;

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Deserialize;
use trainyard_shared::ids::{ExportId, JobId, UserId};
use trainyard_shared::{ExportFormat, WeightType};
use utoipa::ToSchema;

use super::kind::Exports;
use super::store::{self, ExportRow, NewExport};
use super::view::ExportView;
use crate::artifacts;
use crate::auth::{CurrentUser, Role};
use crate::database::{DatabaseError, now};
use crate::error::{ApiError, ErrorCode};
use crate::http::{Page, PageQuery, PathId, StrictJson, StrictQuery};
use crate::models::target;
use crate::server::AppState;
use crate::tasks::{self, Kind};

/// An export that is to be made.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportRequest {
    /// `merged_safetensors`, `gguf_merged` or `gguf_lora`.
    #[schema(value_type = ExportFormat)]
    format: String,
    /// Type of the weights: `f32`, `f16`, `bf16` or, for `gguf_merged`, `q8_0`. When absent the base model's for
    /// `merged_safetensors`, `f16` for `gguf_merged`, `f32` for `gguf_lora`.
    #[serde(rename = "type", alias = "dtype")]
    #[schema(value_type = Option<WeightType>)]
    weights: Option<String>,
}

/// Has a job's result written in another form. It waits until a worker is free.
#[utoipa::path(post, path = "/api/jobs/{id}/export", tag = "exports", params(("id" = i64, Path)),
    request_body = ExportRequest, responses(
    (status = 202, body = ExportView, description = "the export, queued"),
    (status = 400, description = "refused; details name the fields"),
    (status = 404, description = "no such job"),
    (status = 409, description = "the job has no verified result, or none of that kind"),
))]
pub async fn create(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(job): PathId<JobId>,
    StrictJson(body): StrictJson<ExportRequest>,
) -> Result<HttpResponse, ApiError> {
    user.require(Role::Member)?;
    let (format, weights) = body.read()?;
    let target = target::of_job(&state, &user, job).await?;
    if format == ExportFormat::GgufLora && target.has_all_weights() {
        let message = format!("job {job} trained all weights: it has no adapter");
        return Err(ApiError::new(ErrorCode::Conflict, message));
    }
    let new = NewExport {
        owner: UserId(user.id),
        job,
        format,
        weights,
    };
    let row = state
        .database
        .write::<_, DatabaseError, _>(move |c| store::insert(c, new, now()))
        .await?;
    state.actors.exports.start(&state.actors, row.clone());
    Ok(HttpResponse::Accepted()
        .insert_header(("Location", format!("/api/jobs/{job}/exports/{}", row.id)))
        .json(ExportView::of(row, None)?))
}

impl ExportRequest {
    fn read(&self) -> Result<(ExportFormat, Option<WeightType>), ApiError> {
        let format = ExportFormat::from_word(&self.format).ok_or_else(|| {
            let words = ExportFormat::ALL.iter().map(|format| format.as_str());
            none_of("format", &self.format, words)
        })?;
        let weights = self.weights.as_ref().map(|word| {
            let allowed = WeightType::ALL.iter().copied();
            let mut allowed = allowed.filter(|weights| format.takes(*weights));
            allowed
                .clone()
                .find(|weights| weights.as_str() == word)
                .ok_or_else(|| none_of("type", word, allowed.by_ref().map(WeightType::as_str)))
        });
        Ok((format, weights.transpose()?))
    }
}

fn none_of<'a>(field: &str, word: &str, known: impl Iterator<Item = &'a str>) -> ApiError {
    let shown: String = word.chars().take(100).collect();
    let known = known.collect::<Vec<_>>().join(", ");
    ApiError::invalid_field(field, format!("{shown:?} is none of {known}"))
}

/// The exports of a job, newest first.
#[utoipa::path(get, path = "/api/jobs/{id}/exports", tag = "exports", params(("id" = i64, Path), PageQuery), responses(
    (status = 200, body = Page<ExportView>, description = "the exports"),
    (status = 404, description = "no such job"),
))]
pub async fn list(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(job): PathId<JobId>,
    StrictQuery(page): StrictQuery<PageQuery>,
) -> Result<web::Json<Page<ExportView>>, ApiError> {
    let (limit, before) = (page.limit()?, page.before()?);
    target::require_sight(&state, &user, job).await?;
    let rows = state
        .database
        .read::<_, DatabaseError, _>(move |c| store::list(c, job, before, limit + 1))
        .await?;
    let Page { items, next_cursor } = Page::of(rows, limit, |row| row.id, |row| view(&state, row));
    Ok(web::Json(Page {
        items: items.into_iter().collect::<Result<_, _>>()?,
        next_cursor,
    }))
}

/// One export.
#[utoipa::path(get, path = "/api/jobs/{id}/exports/{export}", tag = "exports",
    params(("id" = i64, Path), ("export" = i64, Path)), responses(
    (status = 200, body = ExportView, description = "the export"),
    (status = 404, description = "no such export"),
))]
pub async fn get(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(job): PathId<JobId>,
    request: HttpRequest,
) -> Result<web::Json<ExportView>, ApiError> {
    let row = visible(&state, &user, job, &request).await?;
    Ok(web::Json(view(&state, row)?))
}

/// Cancels an export that is under way; removes the files and the record of one that has ended.
#[utoipa::path(delete, path = "/api/jobs/{id}/exports/{export}", tag = "exports",
    params(("id" = i64, Path), ("export" = i64, Path)), responses(
    (status = 204, description = "cancelled, or removed"),
    (status = 404, description = "no such export"),
    (status = 409, description = "it ended at that moment; a second try removes it"),
))]
pub async fn delete(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(job): PathId<JobId>,
    request: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    let row = visible(&state, &user, job, &request).await?;
    user.require_change(row.owner_id, "export")?;
    if row.ended_at.is_none() {
        tasks::cancel::<Exports>(&state.actors, row.id()).await?;
    } else {
        remove(&state, row).await?;
    }
    Ok(HttpResponse::NoContent().finish())
}

/// The list of files goes first: what is listed is always there.
async fn remove(state: &AppState, row: ExportRow) -> Result<(), ApiError> {
    let gone = row.clone();
    state
        .database
        .write::<_, DatabaseError, _>(move |c| store::delete(c, &gone))
        .await?;
    artifacts::delete_of_export(state.storage.as_ref(), row.job(), row.id()).await?;
    Ok(())
}

/// An export of that job, for one who may see it.
async fn visible(
    state: &AppState,
    user: &CurrentUser,
    job: JobId,
    request: &HttpRequest,
) -> Result<ExportRow, ApiError> {
    target::require_sight(state, user, job).await?;
    let text = request.match_info().get("export").unwrap_or_default();
    let id = ExportId::from_str(text)
        .map_err(|error| ApiError::invalid_field("export", error.to_string()))?;
    let found = state.database.read(move |c| store::row(c, id)).await;
    match found {
        Ok(row) if row.job() == job => Ok(row),
        Ok(_) | Err(DatabaseError::NotFound) => Err(ApiError::not_found("export of this job")),
        Err(error) => Err(error.into()),
    }
}

fn view(state: &AppState, row: ExportRow) -> Result<ExportView, ApiError> {
    let progress = Exports::directory(&state.actors).progress(row.id());
    Ok(ExportView::of(row, progress)?)
}
