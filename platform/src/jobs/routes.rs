//! REST routes of jobs: made, listed, shown, stopped, resumed, deleted.

use actix_web::{HttpResponse, web};
use serde::Deserialize;
use serde_json::{Map, Value};
use trainyard_shared::JobStatus;
use trainyard_shared::ids::{DatasetId, JobId, UserId, WorkerId};
use trainyard_shared::training::TrainingConfig;
use utoipa::{IntoParams, ToSchema};

use super::actor::{Delete, GetState};
use super::directory::JobError;
use super::event::{Answer, Event};
use super::state::JobState;
use super::store::{self, JobRow, NewJob};
use super::view::{JobView, artifact_views, checkpoint_views};
use super::{history, waiting};
use crate::auth::{CurrentUser, Role};
use crate::database::{DatabaseError, now};
use crate::error::{ApiError, ErrorCode, FieldProblem};
use crate::http::{Page, PageQuery, PathId, StrictJson, StrictQuery};
use crate::models::is_hub_name;
use crate::server::AppState;
use crate::workers::dispatcher::Poke;
use crate::{datasets, evaluations, exports, workers};

const MAX_NAME_CHARACTERS: usize = 200;
const MAX_RETRIES: u32 = 100;
const PRIORITIES: std::ops::RangeInclusive<i32> = -1000..=1000;

/// A job that is to be made.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// What to call it; `job-` and its number when absent.
    name: Option<String>,
    #[schema(value_type = i64)]
    dataset_id: DatasetId,
    base_model: BaseModelRequest,
    /// What to train with; every field has a default.
    #[serde(default)]
    #[schema(value_type = TrainingConfig)]
    config: Map<String, Value>,
    /// The only worker that may have it; any when absent.
    #[schema(value_type = Option<i64>)]
    worker_id: Option<WorkerId>,
    /// Higher comes first; 0 when absent.
    priority: Option<i32>,
    /// So many attempts may follow a failed one by themselves; none when absent.
    max_retries: Option<u32>,
}

/// The base model of a job.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BaseModelRequest {
    /// Its name at the hub, as `HuggingFaceTB/SmolLM2-135M-Instruct`.
    pub huggingface_id: String,
}

/// Makes a job. It waits until a worker is free.
#[utoipa::path(post, path = "/api/jobs", tag = "jobs", request_body = JobRequest, responses(
    (status = 201, body = JobView, description = "the job"),
    (status = 400, description = "refused; details name the fields"),
    (status = 404, description = "no such data set or worker"),
))]
pub async fn create(
    state: web::Data<AppState>,
    user: CurrentUser,
    StrictJson(request): StrictJson<JobRequest>,
) -> Result<HttpResponse, ApiError> {
    user.require(Role::Member)?;
    let new = checked(request, UserId(user.id))?;
    let row = state
        .database
        .write::<_, ApiError, _>(move |connection| {
            let dataset = found(
                datasets::store::get(connection, new.dataset.get()),
                "data set",
            )?;
            user.require_sight(dataset.owner_id, "data set")?;
            if dataset.row_count == 0 {
                let message = "the data set has no row to train on";
                return Err(ApiError::invalid_field("dataset_id", message));
            }
            if let Some(worker) = new.requested_worker {
                found(workers::store::get(connection, worker), "worker")?;
            }
            Ok(store::insert(connection, &new, now())?)
        })
        .await?;
    // A full mailbox means that the dispatcher is about to look anyway.
    let _ = state.actors.dispatcher.try_send(Poke);
    Ok(HttpResponse::Created().json(JobView::of(row, None, None)?))
}

/// What is wrong with the name of a job or a session, if anything.
pub(crate) fn problem_of_name(name: &str) -> Option<FieldProblem> {
    let fits = (1..=MAX_NAME_CHARACTERS).contains(&name.chars().count())
        && !name.chars().any(char::is_control);
    let message = format!(
        "must have 1 to {MAX_NAME_CHARACTERS} characters, none of them a control character"
    );
    (!fits).then(|| FieldProblem::new("name", message))
}

fn checked(request: JobRequest, owner: UserId) -> Result<NewJob, ApiError> {
    let mut problems = Vec::new();
    let name = request.name.map(|name| name.trim().to_owned());
    problems.extend(name.as_deref().and_then(problem_of_name));
    let base_model = request.base_model.huggingface_id;
    if !is_hub_name(&base_model) {
        let message = "must be a model's name at the hub, as org/name";
        problems.push(FieldProblem::new("base_model.huggingface_id", message));
    }
    let priority = request.priority.unwrap_or(0);
    if !PRIORITIES.contains(&priority) {
        let message = format!(
            "must lie between {} and {}",
            PRIORITIES.start(),
            PRIORITIES.end()
        );
        problems.push(FieldProblem::new("priority", message));
    }
    let max_retries = request.max_retries.unwrap_or(0);
    if max_retries > MAX_RETRIES {
        let message = format!("must not be above {MAX_RETRIES}");
        problems.push(FieldProblem::new("max_retries", message));
    }
    if let Err(found) = TrainingConfig::parse(&Value::Object(request.config.clone())) {
        problems.extend(found.into_iter().map(|problem| FieldProblem {
            field: format!("config.{}", problem.field),
            message: problem.message,
            hint: problem.hint,
        }));
    }
    if request
        .config
        .get("resume_from_checkpoint")
        .is_some_and(|value| !value.is_null())
    {
        problems.push(FieldProblem {
            field: "config.resume_from_checkpoint".to_owned(),
            message: "the platform chooses the checkpoint".to_owned(),
            hint: Some("POST /api/jobs/{id}/resume".to_owned()),
        });
    }
    if !problems.is_empty() {
        return Err(ApiError::invalid(problems));
    }
    Ok(NewJob {
        owner,
        name,
        dataset: request.dataset_id,
        base_model,
        config: request.config,
        priority,
        max_retries,
        requested_worker: request.worker_id,
    })
}

/// Which jobs to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct JobsQuery {
    /// Only jobs in this status.
    status: Option<JobStatus>,
    /// Items wanted, 1 to 200; 50 when absent.
    limit: Option<i64>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// The jobs that one may see, newest first.
#[utoipa::path(get, path = "/api/jobs", tag = "jobs", params(JobsQuery),
    responses((status = 200, body = Page<JobView>, description = "the jobs")))]
pub async fn list(
    state: web::Data<AppState>,
    user: CurrentUser,
    StrictQuery(query): StrictQuery<JobsQuery>,
) -> Result<web::Json<Page<JobView>>, ApiError> {
    let page = PageQuery {
        limit: query.limit,
        cursor: query.cursor,
    };
    let (limit, before) = (page.limit()?, page.before()?);
    let (owner, status) = (user.listed_owner(), query.status);
    let rows = state
        .database
        .read::<_, DatabaseError, _>(move |c| store::list(c, owner, status, before, limit + 1))
        .await?;
    let Page { items, next_cursor } = Page::of(rows, limit, |row| row.id, |row| row);
    let mut shown = Vec::with_capacity(items.len());
    let mut reasons = waiting::Reasons::default();
    for row in items {
        shown.push(view(&state, row, &mut reasons).await?);
    }
    Ok(web::Json(Page {
        items: shown,
        next_cursor,
    }))
}

/// One job, with its checkpoints and the files of its result.
#[utoipa::path(get, path = "/api/jobs/{id}", tag = "jobs", params(("id" = i64, Path)), responses(
    (status = 200, body = JobView, description = "the job"),
    (status = 404, description = "no such job"),
))]
pub async fn get(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<JobId>,
) -> Result<web::Json<JobView>, ApiError> {
    visible(&state, &user, id).await?;
    Ok(web::Json(shown(&state, id).await?))
}

/// Ends a job early. A queued one ends at once; a running one saves a checkpoint first.
#[utoipa::path(post, path = "/api/jobs/{id}/stop", tag = "jobs", params(("id" = i64, Path)), responses(
    (status = 200, body = JobView, description = "the job; it stops, or has stopped"),
    (status = 404, description = "no such job"),
    (status = 409, description = "the job has ended"),
))]
pub async fn stop(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<JobId>,
) -> Result<web::Json<JobView>, ApiError> {
    changeable(&state, &user, id).await?;
    match apply(&state, id, Event::StopAsked).await? {
        Answer::Refused => Err(ApiError::new(ErrorCode::JobEnded, "the job has ended")),
        _ => Ok(web::Json(shown(&state, id).await?)),
    }
}

/// Goes on with a failed or stopped job from its newest checkpoint, as a new attempt.
#[utoipa::path(post, path = "/api/jobs/{id}/resume", tag = "jobs", params(("id" = i64, Path)), responses(
    (status = 200, body = JobView, description = "the job, queued"),
    (status = 404, description = "no such job"),
    (status = 409, description = "the job has not ended, or has completed, or its data set is deleted"),
))]
pub async fn resume(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<JobId>,
) -> Result<web::Json<JobView>, ApiError> {
    let dataset = changeable(&state, &user, id).await?.dataset_id;
    let read = move |c: &mut _| datasets::store::get(c, dataset);
    match state.database.read(read).await {
        Ok(_) => {}
        Err(DatabaseError::NotFound) => {
            let message = "the job's data set has been deleted";
            return Err(ApiError::new(ErrorCode::Conflict, message));
        }
        Err(error) => return Err(error.into()),
    }
    if apply(&state, id, Event::ResumeAsked).await? == Answer::Refused {
        let row = visible(&state, &user, id).await?;
        return Err(match row.job_status()? {
            JobStatus::Completed => ApiError::new(
                ErrorCode::JobEnded,
                "the job has completed; there is nothing left to do",
            ),
            status => ApiError::new(ErrorCode::JobRunning, format!("the job is {status}")),
        });
    }
    Ok(web::Json(shown(&state, id).await?))
}

/// Deletes a job with its history and files.
#[utoipa::path(delete, path = "/api/jobs/{id}", tag = "jobs", params(("id" = i64, Path)), responses(
    (status = 204, description = "deleted"),
    (status = 404, description = "no such job"),
    (status = 409, description = "the job is with a worker; stop it first"),
))]
pub async fn delete(
    state: web::Data<AppState>,
    user: CurrentUser,
    PathId(id): PathId<JobId>,
) -> Result<HttpResponse, ApiError> {
    changeable(&state, &user, id).await?;
    let used = move |c: &mut _| {
        Ok::<_, DatabaseError>(
            evaluations::store::uses_job(c, id)? || exports::store::uses_job(c, id)?,
        )
    };
    if state.database.read(used).await? {
        let message = "an evaluation or an export that has not ended uses this job's result";
        return Err(ApiError::new(ErrorCode::InUse, message));
    }
    match state
        .actors
        .jobs
        .ask(&state.actors, id, || Delete)
        .await??
    {
        Answer::Refused => Err(ApiError::new(
            ErrorCode::JobRunning,
            "the job is with a worker; stop it first",
        )),
        _ => Ok(HttpResponse::NoContent().finish()),
    }
}

/// A job's row, for one who may see it.
///
/// # Errors
/// 404.
pub(super) async fn visible(
    state: &AppState,
    user: &CurrentUser,
    id: JobId,
) -> Result<JobRow, ApiError> {
    let row = found(state.database.read(move |c| store::row(c, id)).await, "job")?;
    user.require_sight(row.owner_id, "job")?;
    Ok(row)
}

async fn changeable(state: &AppState, user: &CurrentUser, id: JobId) -> Result<JobRow, ApiError> {
    let row = visible(state, user, id).await?;
    user.require_change(row.owner_id, "job")?;
    Ok(row)
}

async fn apply(state: &AppState, id: JobId, event: Event) -> Result<Answer, ApiError> {
    Ok(state.actors.jobs.apply(&state.actors, id, event).await?)
}

async fn shown(state: &AppState, id: JobId) -> Result<JobView, ApiError> {
    let read = move |c: &mut _| {
        Ok((
            store::row(c, id)?,
            history::checkpoints(c, id)?,
            history::checkpoint_files(c, id)?,
            history::result_files(c, id)?,
        ))
    };
    let (row, checkpoints, files, results) = found(state.database.read(read).await, "job")?;
    let artifacts = artifact_views(&row, results)?;
    let checkpoints = checkpoint_views(checkpoints, &files)?;
    let view = view(state, row, &mut waiting::Reasons::default()).await?;
    Ok(view.with_files(checkpoints, artifacts))
}

async fn view(
    state: &AppState,
    row: JobRow,
    reasons: &mut waiting::Reasons,
) -> Result<JobView, ApiError> {
    let id = JobId(row.id);
    let status = row.job_status()?;
    let live: Option<JobState> = if status == JobStatus::Queued || status.is_ended() {
        None
    } else {
        let asked = state.actors.jobs.ask(&state.actors, id, || GetState).await;
        match asked {
            Ok(live) => Some(live),
            // Deleted just now; the row is what there was.
            Err(JobError::NotFound) => None,
            Err(error) => return Err(error.into()),
        }
    };
    let waits = match status {
        JobStatus::Queued => {
            let requested = row.requested_worker_id.map(WorkerId);
            let owner = UserId(row.owner_id);
            Some(reasons.of(&state.actors, owner, requested).await?)
        }
        _ => None,
    };
    Ok(JobView::of(row, live.as_ref(), waits)?)
}

fn found<T>(found: Result<T, DatabaseError>, what: &str) -> Result<T, ApiError> {
    found.map_err(|error| match error {
        DatabaseError::NotFound => ApiError::not_found(what),
        other => other.into(),
    })
}

impl From<JobError> for ApiError {
    fn from(error: JobError) -> Self {
        match error {
            JobError::NotFound => Self::not_found("job"),
            JobError::Artifact(error) => error.into(),
            JobError::Database(error) => error.into(),
            JobError::Superseded => Self::internal(error),
        }
    }
}
