//! REST routes by which workers move files: they hold no credential of the storage, only signed URLs, each for
//! one file.

use actix_web::web;
use serde::{Deserialize, Serialize};
use trainyard_shared::Secret;
use trainyard_shared::ids::{ExportId, FederatedSessionId, JobId, WorkerId};
use utoipa::{IntoParams, ToSchema};

use super::{ArtifactError, URL_LIFETIME, export_of_key, job_folders, job_of_key, key_of_job};
use crate::auth::CurrentWorker;
use crate::database::DatabaseError;
use crate::error::{ApiError, FieldProblem};
use crate::exports::store::ExportRow;
use crate::http::{StrictJson, StrictQuery};
use crate::server::AppState;
use crate::storage::{StorageError, StorageKey, UploadTarget, UploadTerms};
use crate::{datasets, evaluations, exports, federated, jobs};

/// A file that a worker wants to store.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UploadRequest {
    /// The job that the file belongs to; this or `session_id`.
    #[schema(value_type = Option<i64>)]
    job_id: Option<JobId>,
    /// The federated session that it belongs to.
    #[schema(value_type = Option<i64>)]
    session_id: Option<FederatedSessionId>,
    /// Storage key within one of the job's folders, or the one that the round's order names.
    key: String,
    /// Size in bytes.
    size: u64,
    /// Digest as 64 lower-case hex digits.
    sha256: String,
}

/// Gives leave to store one file of a job that the worker has, or had when it ended, of an export that it has, or its
/// result for the open round of a federated session.
#[utoipa::path(post, path = "/api/worker/uploads", tag = "for workers", request_body = UploadRequest, responses(
    (status = 200, body = UploadTarget, description = "where to PUT the file"),
    (status = 400, description = "not a key of this job or session"),
    (status = 404, description = "the worker has no such job, or takes no part in the session"),
    (status = 409, description = "the round takes no result of this worker (any more)"),
    (status = 413, description = "larger than MAX_UPLOAD_BYTES"),
))]
pub async fn grant_upload(
    state: web::Data<AppState>,
    worker: CurrentWorker,
    StrictJson(body): StrictJson<UploadRequest>,
) -> Result<web::Json<UploadTarget>, ApiError> {
    if body.sha256.len() != 64
        || !body
            .sha256
            .bytes()
            .all(|byte| b"0123456789abcdef".contains(&byte))
    {
        return Err(ApiError::invalid_field(
            "sha256",
            "must be 64 lower-case hex digits",
        ));
    }
    let limit_bytes = state.config.max_upload_bytes;
    if body.size > limit_bytes {
        return Err(StorageError::TooLarge { limit_bytes }.into());
    }
    let key = match (body.job_id, body.session_id) {
        (Some(job), None) => {
            let key = key_of_job(job, &body.key)?;
            match export_of_key(&key) {
                Some((_, export)) => export_of_worker(&state, export, worker.id).await?,
                None => job_of_worker(&state, job, worker.id).await.map(|_| ())?,
            }
            key
        }
        (None, Some(session)) => {
            let (key, limit_bytes) = federated::result_key(&state, session, worker.id, &body.key)?;
            if body.size > limit_bytes {
                return Err(StorageError::TooLarge { limit_bytes }.into());
            }
            key
        }
        _ => {
            let message = "name a job or a federated session, one of the two";
            return Err(ApiError::invalid_field("job_id", message));
        }
    };
    let terms = UploadTerms {
        size_bytes: body.size,
        sha256: body.sha256,
    };
    Ok(web::Json(state.storage.upload_target(
        &key,
        &terms,
        URL_LIFETIME,
    )))
}

/// The file that a worker wants to read.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DownloadQuery {
    /// The job that the file is needed for, or whose result an inference, evaluation or export of the worker's needs.
    #[param(value_type = i64)]
    job_id: i64,
    /// Storage key of the job's data set or of one of its own files.
    key: String,
}

/// Where a file can be read.
#[derive(Serialize, ToSchema)]
pub struct DownloadGrant {
    #[schema(value_type = String)]
    url: Secret,
    size_bytes: u64,
    /// Seconds.
    expires_in: u64,
}

/// A new URL for a file that the worker needs for its job: those in messages expire.
#[utoipa::path(get, path = "/api/worker/downloads", tag = "for workers", params(DownloadQuery), responses(
    (status = 200, body = DownloadGrant, description = "where to GET the file"),
    (status = 404, description = "the worker has no such job, or the job no such file"),
))]
pub async fn grant_download(
    state: web::Data<AppState>,
    worker: CurrentWorker,
    StrictQuery(query): StrictQuery<DownloadQuery>,
) -> Result<web::Json<DownloadGrant>, ApiError> {
    let job = JobId::try_from(query.job_id)
        .map_err(|error| ApiError::invalid_field("job_id", error.to_string()))?;
    let key = StorageKey::parse(&query.key)?;
    let is_own_file = key_of_job(job, &query.key).is_ok();
    if !(is_own_file && is_result(job, &key) && needs_result(&state, job, worker.id).await?) {
        let dataset_id = job_of_worker(&state, job, worker.id).await?;
        if !is_own_file {
            refuse_foreign(&state, dataset_id, &key).await?;
        }
    }
    let size_bytes = state.storage.info(&key).await?.size_bytes;
    let url = state.storage.download_url(&key, URL_LIFETIME);
    Ok(web::Json(DownloadGrant {
        url,
        size_bytes,
        expires_in: URL_LIFETIME.as_secs(),
    }))
}

/// Besides its own files a job needs its data set only.
async fn refuse_foreign(
    state: &AppState,
    dataset_id: i64,
    key: &StorageKey,
) -> Result<(), ApiError> {
    let dataset = state
        .database
        .read::<_, DatabaseError, _>(move |c| datasets::store::get(c, dataset_id))
        .await?;
    if dataset.storage_key == key.as_str() {
        Ok(())
    } else {
        Err(ApiError::not_found("file of this job"))
    }
}

fn is_result(job: JobId, key: &StorageKey) -> bool {
    let rest = key.as_str().strip_prefix(job_folders(job)[1].as_str());
    rest.is_some_and(|rest| rest.starts_with('/'))
}

/// Whether the worker answers a request, or has a task, with the result of a job that another may have trained.
async fn needs_result(state: &AppState, job: JobId, worker: WorkerId) -> Result<bool, ApiError> {
    if state.actors.inferences.needs_adapter(worker, job) {
        return Ok(true);
    }
    let needs = move |c: &mut _| {
        Ok::<_, DatabaseError>(
            evaluations::store::needs_result(c, worker, job)?
                || exports::store::needs_result(c, worker, job)?,
        )
    };
    Ok(state.database.read(needs).await?)
}

/// Makes sure that the export is with that worker.
async fn export_of_worker(
    state: &AppState,
    export: ExportId,
    worker: WorkerId,
) -> Result<(), ApiError> {
    let row = export_under_way(state, export).await?;
    match row.filter(|row| row.worker_id == Some(worker.get())) {
        Some(_) => Ok(()),
        None => Err(ApiError::not_found("export of this worker")),
    }
}

async fn export_under_way(
    state: &AppState,
    export: ExportId,
) -> Result<Option<ExportRow>, ApiError> {
    let read = move |c: &mut _| exports::store::row(c, export);
    match state.database.read(read).await {
        Ok(row) => Ok(Some(row).filter(|row| row.ended_at.is_none())),
        Err(DatabaseError::NotFound) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The data set of a job that the worker has, or had when it ended.
async fn job_of_worker(state: &AppState, job: JobId, worker: WorkerId) -> Result<i64, ApiError> {
    let found = state
        .database
        .read::<_, DatabaseError, _>(move |c| jobs::store::row(c, job))
        .await;
    match found {
        Ok(row) if row.worker_id == Some(worker.get()) => Ok(row.dataset_id),
        Ok(_) | Err(DatabaseError::NotFound) => Err(ApiError::not_found("job of this worker")),
        Err(error) => Err(error.into()),
    }
}

/// Leave that was given before a job was deleted, or an export cancelled, must not bring its files back.
///
/// # Errors
/// 404 where the key lies in the folder of a job that there is not, or of an export that is not under way.
pub async fn refuse_of_what_is_gone(state: &AppState, key: &StorageKey) -> Result<(), ApiError> {
    if let Some((_, export)) = export_of_key(key)
        && export_under_way(state, export).await?.is_none()
    {
        return Err(ApiError::not_found("export"));
    }
    let Some(job) = job_of_key(key) else {
        return Ok(());
    };
    let found = state
        .database
        .read::<_, DatabaseError, _>(move |c| jobs::store::row(c, job))
        .await;
    match found {
        Ok(_) => Ok(()),
        Err(DatabaseError::NotFound) => Err(ApiError::not_found("job")),
        Err(error) => Err(error.into()),
    }
}

impl From<ArtifactError> for ApiError {
    fn from(error: ArtifactError) -> Self {
        match error {
            ArtifactError::ForeignKey { reason, .. } => {
                Self::invalid(vec![FieldProblem::new("key", reason)])
            }
            ArtifactError::NotStored { .. } => Self::not_found("file"),
            ArtifactError::Storage(error) => error.into(),
        }
    }
}
