//! REST routes of data sets.

use actix_web::http::header;
use actix_web::{HttpRequest, HttpResponse, web};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use trainyard_shared::dataset::DatasetFormat;
use trainyard_shared::ids::DatasetId;
use utoipa::{IntoParams, ToSchema};

use super::intake::{self, Upload};
use super::preview::{self, PreviewedLine};
use super::store::{self, Dataset};
use crate::auth::{CurrentUser, Role};
use crate::database::{DatabaseError, shown_time};
use crate::error::{ApiError, ErrorCode, FieldProblem};
use crate::http::{Page, PageQuery, PathId, StrictQuery, UploadBody};
use crate::server::AppState;
use crate::storage::StorageKey;
use crate::{evaluations, federated, jobs, rounds};

/// Longest name of a data set, in characters.
const MAX_NAME_CHARACTERS: usize = 200;
/// Lines of a preview where no limit is given, and the most that can be asked for.
const DEFAULT_PREVIEW: usize = 10;
const MAX_PREVIEW: usize = 100;

/// A data set.
#[derive(Serialize, ToSchema)]
pub struct DatasetView {
    id: i64,
    name: String,
    format: String,
    owner_id: i64,
    /// Good rows.
    rows: i64,
    /// Good rows with nothing to train on.
    untrainable_rows: i64,
    /// Rows that are skipped in training.
    bad_rows: i64,
    bytes: i64,
    sha256: String,
    /// Good rows by shape.
    #[schema(value_type = std::collections::BTreeMap<String, u64>)]
    row_shapes: Value,
    /// The first bad rows.
    #[schema(value_type = Vec<trainyard_datasets::LineProblem>)]
    problems: Value,
    /// Always true: what is not accepted is not kept.
    accepted: bool,
    created_at: DateTime<Utc>,
}

impl TryFrom<Dataset> for DatasetView {
    type Error = ApiError;

    fn try_from(dataset: Dataset) -> Result<Self, ApiError> {
        let stored_json = |text: String| serde_json::from_str(&text).map_err(ApiError::internal);
        Ok(Self {
            id: dataset.id,
            name: dataset.name,
            format: dataset.format,
            owner_id: dataset.owner_id,
            rows: dataset.row_count,
            untrainable_rows: dataset.untrainable_rows,
            bad_rows: dataset.bad_rows,
            bytes: dataset.bytes,
            sha256: dataset.sha256,
            row_shapes: stored_json(dataset.row_shapes)?,
            problems: stored_json(dataset.problems)?,
            accepted: true,
            created_at: shown_time(dataset.created_at),
        })
    }
}

/// The data sets that one may see, newest first.
#[utoipa::path(get, path = "/api/datasets", tag = "data sets", params(PageQuery),
    responses((status = 200, body = Page<DatasetView>, description = "the data sets")))]
pub async fn list(
    state: web::Data<AppState>,
    user: CurrentUser,
    StrictQuery(page): StrictQuery<PageQuery>,
) -> Result<web::Json<Page<DatasetView>>, ApiError> {
    let (limit, before) = (page.limit()?, page.before()?);
    let owner = user.listed_owner();
    let rows = state
        .database
        .read::<_, DatabaseError, _>(move |c| store::list(c, owner, before, limit + 1))
        .await?;
    let Page { items, next_cursor } =
        Page::of(rows, limit, |dataset| dataset.id, DatasetView::try_from);
    Ok(web::Json(Page {
        items: items.into_iter().collect::<Result<_, _>>()?,
        next_cursor,
    }))
}

/// What accompanies an uploaded file.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct UploadQuery {
    /// What to call the data set.
    name: String,
    /// `jsonl`, `json`, `csv`, `tsv`, `parquet` or `text`; all but Parquet may be packed with gzip or zstd. When absent,
    /// the end of `name` tells it (`chats.csv`), and else it is `jsonl`.
    format: Option<String>,
    /// Bad rows that are put up with (and skipped in training); none when absent.
    max_bad_rows: Option<u64>,
}

/// Uploads a data set: the body is the file. Its rows are checked on the way.
#[utoipa::path(post, path = "/api/datasets", tag = "data sets", params(UploadQuery),
    request_body(content_type = "application/octet-stream", description = "the file"),
    responses(
        (status = 201, body = DatasetView, description = "kept"),
        (status = 413, description = "larger than MAX_UPLOAD_BYTES"),
        (status = 422, description = "more bad rows than allowed, no rows, or a file that is not of its format or damaged; the report is in `details`"),
        (status = 507, description = "the disk is full"),
    ))]
pub async fn upload(
    state: web::Data<AppState>,
    user: CurrentUser,
    request: HttpRequest,
    StrictQuery(query): StrictQuery<UploadQuery>,
    body: UploadBody,
) -> Result<HttpResponse, ApiError> {
    let upload = match check(&user, &request, query) {
        Ok(upload) => upload,
        Err(error) => {
            body.drain().await;
            return Err(error);
        }
    };
    let (dataset, _) = intake::take_in(&state, upload, body).await?;
    tracing::info!(
        dataset.id = dataset.id,
        user.id = user.id,
        rows = dataset.row_count,
        "data set uploaded"
    );
    Ok(HttpResponse::Created().json(DatasetView::try_from(dataset)?))
}

fn check(
    user: &CurrentUser,
    request: &HttpRequest,
    query: UploadQuery,
) -> Result<Upload, ApiError> {
    user.require(Role::Member)?;
    let content_type = request
        .headers()
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    if content_type.is_some_and(|text| text.trim_start().starts_with("multipart/")) {
        let message =
            "the body must be the file itself, not a form (with curl: --data-binary @FILE)";
        return Err(ApiError::new(ErrorCode::UnsupportedMediaType, message));
    }
    let mut problems = Vec::new();
    let name = query.name.trim().to_owned();
    if name.is_empty()
        || name.chars().count() > MAX_NAME_CHARACTERS
        || name.chars().any(char::is_control)
    {
        let message = format!(
            "must have 1 to {MAX_NAME_CHARACTERS} characters, none of them a control character"
        );
        problems.push(FieldProblem::new("name", message));
    }
    let format = match &query.format {
        None => Ok(DatasetFormat::of_file_name(&name).unwrap_or_default()),
        Some(word) => word.parse::<DatasetFormat>(),
    };
    let format = format.unwrap_or_else(|error| {
        problems.push(FieldProblem {
            hint: Some(DatasetFormat::names()),
            ..FieldProblem::new("format", error.to_string())
        });
        DatasetFormat::default()
    });
    if !problems.is_empty() {
        return Err(ApiError::invalid(problems));
    }
    Ok(Upload {
        owner_id: user.id,
        name,
        format,
        max_bad_rows: query.max_bad_rows.unwrap_or(0),
    })
}

/// One data set.
#[utoipa::path(get, path = "/api/datasets/{id}", tag = "data sets", params(("id" = i64, Path)), responses(
    (status = 200, body = DatasetView, description = "the data set"),
    (status = 404, description = "no such data set"),
))]
pub async fn get(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<DatasetId>,
) -> Result<web::Json<DatasetView>, ApiError> {
    Ok(web::Json(visible(&state, &user, id).await?.try_into()?))
}

/// How much of a data set to show.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PreviewQuery {
    /// Rows, 1 to 100; 10 when absent.
    limit: Option<usize>,
}

/// The first rows of a data set.
#[derive(Serialize, ToSchema)]
pub struct Preview {
    items: Vec<PreviewedLine>,
}

/// Shows the first rows of a data set.
#[utoipa::path(get, path = "/api/datasets/{id}/preview", tag = "data sets", params(("id" = i64, Path), PreviewQuery),
    responses(
        (status = 200, body = Preview, description = "the first rows"),
        (status = 404, description = "no such data set"),
    ))]
pub async fn preview(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<DatasetId>,
    StrictQuery(query): StrictQuery<PreviewQuery>,
) -> Result<web::Json<Preview>, ApiError> {
    let limit = query.limit.unwrap_or(DEFAULT_PREVIEW);
    if !(1..=MAX_PREVIEW).contains(&limit) {
        return Err(ApiError::invalid_field(
            "limit",
            format!("must lie between 1 and {MAX_PREVIEW}"),
        ));
    }
    let dataset = visible(&state, &user, id).await?;
    let key = StorageKey::parse(&dataset.storage_key)?;
    let format = dataset
        .format
        .parse::<DatasetFormat>()
        .map_err(ApiError::internal)?;
    let items = preview::first_lines(state.storage.clone(), key, format, limit).await?;
    Ok(web::Json(Preview { items }))
}

/// How a data set is to be deleted.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DeleteQuery {
    /// Also where stopped or failed jobs could not be resumed without it.
    #[serde(default)]
    force: bool,
}

/// Deletes a data set and its file.
#[utoipa::path(delete, path = "/api/datasets/{id}", tag = "data sets", params(("id" = i64, Path), DeleteQuery), responses(
    (status = 204, description = "deleted"),
    (status = 404, description = "no such data set"),
    (status = 409, description = "a job that has not ended uses it, or one that could be resumed (then `force` deletes it all the same)"),
))]
pub async fn delete(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<DatasetId>,
    StrictQuery(query): StrictQuery<DeleteQuery>,
) -> Result<HttpResponse, ApiError> {
    let dataset = visible(&state, &user, id).await?;
    user.require_change(dataset.owner_id, "data set")?;
    state
        .database
        .write::<_, ApiError, _>(move |connection| {
            if jobs::store::uses_dataset(connection, id)?
                || evaluations::store::uses_dataset(connection, id)?
                || rounds::store::uses_dataset(connection, id)?
                || federated::store::uses_dataset(connection, id)?
            {
                let message =
                    "a job, an evaluation or a federated session that has not ended uses this data set";
                return Err(ApiError::new(ErrorCode::InUse, message));
            }
            let resumable = jobs::store::resumable_on(connection, id)?;
            if !query.force && !resumable.is_empty() {
                return Err(ApiError::new(ErrorCode::InUse, needed_by(&resumable)));
            }
            Ok(store::mark_deleting(connection, id.get())?)
        })
        .await?;
    state
        .storage
        .delete(&StorageKey::parse(&dataset.storage_key)?)
        .await?;
    state
        .database
        .write::<_, DatabaseError, _>(move |c| store::mark_deleted(c, id.get()))
        .await?;
    Ok(HttpResponse::NoContent().finish())
}

/// What is said of a data set that jobs need which could go on.
fn needed_by(jobs: &[i64]) -> String {
    const NAMED: usize = 5;
    let mut names: Vec<_> = jobs.iter().take(NAMED).map(i64::to_string).collect();
    if jobs.len() > NAMED {
        names.push(format!("{} more", jobs.len() - NAMED));
    }
    format!(
        "stopped or failed jobs could not go on from their checkpoints without this data set: {}; delete the jobs \
         first, or delete the data set by force",
        names.join(", ")
    )
}

async fn visible(state: &AppState, user: &CurrentUser, id: DatasetId) -> Result<Dataset, ApiError> {
    let found = state
        .database
        .read::<_, DatabaseError, _>(move |c| store::get(c, id.get()))
        .await;
    let dataset = found.map_err(|error| match error {
        DatabaseError::NotFound => ApiError::not_found("data set"),
        other => other.into(),
    })?;
    user.require_sight(dataset.owner_id, "data set")?;
    Ok(dataset)
}
