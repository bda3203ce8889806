//! REST routes of evaluations: made, listed, shown, cancelled.

use actix_web::{HttpResponse, web};
use serde::Deserialize;
use trainyard_shared::ids::{DatasetId, EvaluationId, JobId, UserId};
use utoipa::ToSchema;

use super::kind::Evaluations;
use super::store::{self, EvaluationRow, NewEvaluation};
use super::view::EvaluationView;
use crate::auth::{CurrentUser, Role};
use crate::database::{DatabaseError, now};
use crate::datasets;
use crate::error::{ApiError, FieldProblem};
use crate::http::{Page, PageQuery, PathId, StrictJson, StrictQuery};
use crate::models::target;
use crate::server::AppState;
use crate::tasks;

/// What can be measured.
const METRICS: [&str; 3] = ["perplexity", "loss", "token_accuracy"];
const MAX_BATCH_SIZE: u32 = 4_096;
const MAX_LENGTH: u32 = 1 << 20;

/// An evaluation that is to be made.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EvaluationRequest {
    /// The job whose adapter is measured; this or `model`.
    #[schema(value_type = Option<i64>)]
    job_id: Option<JobId>,
    /// `job-123`, or a base model's name at the hub.
    model: Option<String>,
    #[schema(value_type = i64)]
    dataset_id: DatasetId,
    /// `perplexity`, `loss`, `token_accuracy`; all when absent.
    metrics: Option<Vec<String>>,
    /// Sequences at a time: changes the speed, not the figures.
    batch_size: Option<u32>,
    /// Longest sequence, in tokens.
    max_length: Option<u32>,
}

/// Has a model measured. It waits until a worker is free.
#[utoipa::path(post, path = "/api/evaluations", tag = "evaluations", request_body = EvaluationRequest, responses(
    (status = 201, body = EvaluationView, description = "the evaluation"),
    (status = 400, description = "refused; details name the fields"),
    (status = 404, description = "no such job or data set"),
    (status = 409, description = "the job has no verified adapter"),
))]
pub async fn create(
    state: web::Data<AppState>,
    user: CurrentUser,
    StrictJson(body): StrictJson<EvaluationRequest>,
) -> Result<HttpResponse, ApiError> {
    user.require(Role::Member)?;
    let metrics = match body.metrics {
        Some(metrics) => metrics,
        None => METRICS.map(str::to_owned).to_vec(),
    };
    let mut problems = problems_of_metrics(&metrics);
    let mut check = |field: &str, value: Option<u32>, most: u32| {
        if value.is_some_and(|value| !(1..=most).contains(&value)) {
            let message = format!("must lie between 1 and {most}");
            problems.push(FieldProblem::new(field, message));
        }
    };
    check("batch_size", body.batch_size, MAX_BATCH_SIZE);
    check("max_length", body.max_length, MAX_LENGTH);
    if !problems.is_empty() {
        return Err(ApiError::invalid(problems));
    }
    let target = target::asked_for(&state, &user, body.job_id, body.model.as_deref()).await?;
    let new = NewEvaluation {
        owner: UserId(user.id),
        job: target.job(),
        model: target.name(),
        base_model: target.base_model,
        dataset: body.dataset_id,
        metrics,
        batch_size: body.batch_size,
        max_length: body.max_length,
    };
    let row = state
        .database
        .write::<_, ApiError, _>(move |connection| {
            let dataset = found(
                datasets::store::get(connection, new.dataset.get()),
                "data set",
            )?;
            user.require_sight(dataset.owner_id, "data set")?;
            if dataset.row_count == 0 {
                let message = "the data set has no row to measure on";
                return Err(ApiError::invalid_field("dataset_id", message));
            }
            Ok(store::insert(connection, &new, now())?)
        })
        .await?;
    state.actors.evaluations.start(&state.actors, row.clone());
    Ok(HttpResponse::Created().json(EvaluationView::of(row, None)?))
}

fn problems_of_metrics(metrics: &[String]) -> Vec<FieldProblem> {
    if metrics.is_empty() || metrics.len() > METRICS.len() {
        let message = format!("name one or more of {}, each once", METRICS.join(", "));
        return vec![FieldProblem::new("metrics", message)];
    }
    let mut problems = Vec::new();
    for (index, name) in metrics.iter().enumerate() {
        let field = || format!("metrics[{index}]");
        if !METRICS.contains(&name.as_str()) {
            let shown: String = name.chars().take(100).collect();
            let message = format!("{shown:?} is none of {}", METRICS.join(", "));
            problems.push(FieldProblem::new(field(), message));
        } else if metrics[..index].contains(name) {
            problems.push(FieldProblem::new(field(), format!("{name:?} stands twice")));
        }
    }
    problems
}

/// The evaluations that one may see, newest first.
#[utoipa::path(get, path = "/api/evaluations", tag = "evaluations", params(PageQuery),
    responses((status = 200, body = Page<EvaluationView>, description = "the evaluations")))]
pub async fn list(
    state: web::Data<AppState>,
    user: CurrentUser,
    StrictQuery(page): StrictQuery<PageQuery>,
) -> Result<web::Json<Page<EvaluationView>>, ApiError> {
    let (limit, before) = (page.limit()?, page.before()?);
    let owner = user.listed_owner();
    let rows = state
        .database
        .read::<_, DatabaseError, _>(move |c| store::list(c, owner, before, limit + 1))
        .await?;
    let Page { items, next_cursor } = Page::of(rows, limit, |row| row.id, |row| view(&state, row));
    Ok(web::Json(Page {
        items: items.into_iter().collect::<Result<_, _>>()?,
        next_cursor,
    }))
}

/// One evaluation.
#[utoipa::path(get, path = "/api/evaluations/{id}", tag = "evaluations", params(("id" = i64, Path)), responses(
    (status = 200, body = EvaluationView, description = "the evaluation"),
    (status = 404, description = "no such evaluation"),
))]
pub async fn get(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<EvaluationId>,
) -> Result<web::Json<EvaluationView>, ApiError> {
    let row = visible(&state, &user, id).await?;
    Ok(web::Json(view(&state, row)?))
}

/// Cancels an evaluation.
#[utoipa::path(delete, path = "/api/evaluations/{id}", tag = "evaluations", params(("id" = i64, Path)), responses(
    (status = 204, description = "cancelled, or cancelled before"),
    (status = 404, description = "no such evaluation"),
    (status = 409, description = "it has ended"),
))]
pub async fn cancel(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<EvaluationId>,
) -> Result<HttpResponse, ApiError> {
    let row = visible(&state, &user, id).await?;
    user.require_change(row.owner_id, "evaluation")?;
    tasks::cancel::<Evaluations>(&state.actors, id).await?;
    Ok(HttpResponse::NoContent().finish())
}

async fn visible(
    state: &AppState,
    user: &CurrentUser,
    id: EvaluationId,
) -> Result<EvaluationRow, ApiError> {
    let read = move |c: &mut _| store::row(c, id);
    let row = found(state.database.read(read).await, "evaluation")?;
    user.require_sight(row.owner_id, "evaluation")?;
    Ok(row)
}

fn view(state: &AppState, row: EvaluationRow) -> Result<EvaluationView, ApiError> {
    let progress = state.actors.evaluations.progress(row.id());
    Ok(EvaluationView::of(row, progress)?)
}

fn found<T>(found: Result<T, DatabaseError>, what: &str) -> Result<T, ApiError> {
    found.map_err(|error| match error {
        DatabaseError::NotFound => ApiError::not_found(what),
        other => other.into(),
    })
}
