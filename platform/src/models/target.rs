//! What a model's name or a job's number stands for: a base model, alone or with the verified adapter of a
//! completed job.

use std::time::Duration;

use trainyard_shared::JobStatus;
use trainyard_shared::ids::JobId;
use trainyard_shared::message::DownloadUrl;

use super::is_hub_name;
use crate::auth::CurrentUser;
use crate::database::{Database, DatabaseError};
use crate::error::{ApiError, ErrorCode};
use crate::jobs;
use crate::jobs::history::{self, ArtifactRow};
use crate::server::AppState;
use crate::storage::{ObjectStore, StorageError, StorageKey};

/// A worker may begin its downloads so long after it was told to.
const DOWNLOAD_VALIDITY: Duration = Duration::from_secs(24 * 60 * 60);
/// What the name of a job's model begins with.
const JOB_PREFIX: &str = "job-";

/// A model that a worker can be asked to load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The base model's name at the hub.
    pub base_model: String,
    /// What goes on top of it.
    pub adapter: Option<Adapter>,
}

/// The adapter that a job has made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adapter {
    /// The job.
    pub job: JobId,
    /// Its folder in the store, with a slash at its end.
    pub folder: String,
    /// Its files, which were checked when the job completed.
    pub files: Vec<AdapterFile>,
}

/// One file of an adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterFile {
    /// Its name within the folder.
    pub name: String,
    /// Where it lies.
    pub key: StorageKey,
    /// SHA-256, 64 lower-case hex digits.
    pub sha256: String,
    /// Length in bytes.
    pub size_bytes: u64,
}

impl Target {
    /// The name by which people know it: `job-123`, or the base model's.
    pub fn name(&self) -> String {
        match &self.adapter {
            Some(adapter) => format!("{JOB_PREFIX}{}", adapter.job),
            None => self.base_model.clone(),
        }
    }

    /// The job whose adapter it has.
    pub fn job(&self) -> Option<JobId> {
        self.adapter.as_ref().map(|adapter| adapter.job)
    }

    /// The adapter's folder; none for a base model alone.
    pub fn folder(&self) -> Option<String> {
        self.adapter.as_ref().map(|adapter| adapter.folder.clone())
    }

    /// Where a worker fetches the adapter's files.
    pub fn download_urls(&self, storage: &dyn ObjectStore) -> Vec<DownloadUrl> {
        let files = self.adapter.iter().flat_map(|adapter| &adapter.files);
        files
            .map(|file| DownloadUrl {
                key: file.name.clone(),
                url: storage.download_url(&file.key, DOWNLOAD_VALIDITY),
                sha256: Some(file.sha256.clone()),
                size_bytes: Some(file.size_bytes),
            })
            .collect()
    }
}

/// What a request asks for that names a job or a model, one of the two.
///
/// # Errors
/// 400 for both or neither, or a name that is none; else as [`of_job`].
pub async fn asked_for(
    state: &AppState,
    user: &CurrentUser,
    job: Option<JobId>,
    model: Option<&str>,
) -> Result<Target, ApiError> {
    match (job, model) {
        (Some(job), None) => of_job(state, user, job).await,
        (None, Some(model)) => named(state, user, model).await,
        (Some(_), Some(_)) => {
            let message = "name a job or a model, not both";
            Err(ApiError::invalid_field("model", message))
        }
        (None, None) => {
            let message = "name a model, or the job_id of one that was trained here";
            Err(ApiError::invalid_field("model", message))
        }
    }
}

/// The model of that name: `job-123`, or a base model.
///
/// # Errors
/// 400 for what is no name; else as [`of_job`].
pub async fn named(state: &AppState, user: &CurrentUser, name: &str) -> Result<Target, ApiError> {
    if let Some(job) = job_of(name) {
        return of_job(state, user, job).await;
    }
    if names_a_job(name) {
        return Err(ApiError::not_found("job"));
    }
    if is_hub_name(name) {
        Ok(Target {
            base_model: name.to_owned(),
            adapter: None,
        })
    } else {
        let message = "must be job- and a job's number, or a model's name at the hub, as org/name";
        Err(ApiError::invalid_field("model", message))
    }
}

/// The job that a model's name means.
pub fn job_of(name: &str) -> Option<JobId> {
    name.strip_prefix(JOB_PREFIX)?.parse().ok()
}

/// Whether the name is that of a job's model, be it with a number that no job can have.
fn names_a_job(name: &str) -> bool {
    name.strip_prefix(JOB_PREFIX)
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

/// The adapter of a job, on its base model.
///
/// # Errors
/// 404 for a job that may not be seen, 409 for one without a verified adapter.
pub async fn of_job(state: &AppState, user: &CurrentUser, job: JobId) -> Result<Target, ApiError> {
    let read = move |c: &mut _| jobs::store::row(c, job);
    let row = state.database.read(read).await.map_err(no_such_job)?;
    user.require_sight(row.owner_id, "job")?;
    load(&state.database, job).await
}

/// The same for one whose rights were looked at before.
///
/// # Errors
/// 404 for a job that there is not, 409 for one without a verified adapter.
pub async fn load(database: &Database, job: JobId) -> Result<Target, ApiError> {
    let read = move |c: &mut _| Ok((jobs::store::row(c, job)?, history::result_files(c, job)?));
    let (row, files) = database.read(read).await.map_err(no_such_job)?;
    if row.job_status()? != JobStatus::Completed {
        let message = format!("job {job} has not completed: it is {}", row.status);
        return Err(ApiError::new(ErrorCode::Conflict, message));
    }
    let folder = jobs::result_folder(job);
    let files = files
        .into_iter()
        .filter_map(|file| adapter_file(&folder, file).transpose())
        .collect::<Result<Vec<_>, _>>()?;
    if files.is_empty() {
        let message =
            format!("job {job} has no verified adapter: its worker stored no files with it");
        return Err(ApiError::new(ErrorCode::Conflict, message));
    }
    Ok(Target {
        base_model: row.base_model,
        adapter: Some(Adapter { job, folder, files }),
    })
}

fn no_such_job(error: DatabaseError) -> ApiError {
    match error {
        DatabaseError::NotFound => ApiError::not_found("job"),
        other => other.into(),
    }
}

fn adapter_file(folder: &str, file: ArtifactRow) -> Result<Option<AdapterFile>, StorageError> {
    let Some(name) = file.storage_key.strip_prefix(folder) else {
        return Ok(None);
    };
    Ok(Some(AdapterFile {
        name: name.to_owned(),
        key: StorageKey::parse(&file.storage_key)?,
        sha256: file.sha256,
        size_bytes: u64::try_from(file.size_bytes).unwrap_or(0),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_s_model_has_its_number_in_its_name() {
        assert_eq!(job_of("job-123"), Some(JobId(123)));
        for name in ["job-", "job-0", "job-x", "job-1/2", "jobs-1", "org/job-1"] {
            assert_eq!(job_of(name), None, "{name}");
        }
    }
}
