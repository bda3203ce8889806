//! The files of jobs: which keys are a job's own, whether what a worker claims is really stored, and how files
//! are handed out. Whether a user may see a job is decided where jobs are.

pub mod routes;
pub use routes::refuse_of_what_is_gone;
#[cfg(test)]
mod tests;

use actix_web::HttpResponse;
use actix_web::http::header;
use std::collections::BTreeSet;
use std::time::Duration;
use trainyard_shared::ids::{ExportId, JobId};
use trainyard_shared::message::ArtifactFile;

use crate::storage::{ObjectStore, StorageError, StorageKey};

/// How long the URL of a download or an upload is valid. A worker asks for a new one when it has expired.
pub const URL_LIFETIME: Duration = Duration::from_secs(3600);

/// Why a file is not taken as one of a job.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// The key is no key, or not one of this job.
    #[error("{key:?} is not a file of job {job}: {reason}")]
    ForeignKey {
        /// The key as it came.
        key: String,
        /// The job.
        job: JobId,
        /// What is wrong with it.
        reason: String,
    },
    /// The file is not stored, or not as it was said to be.
    #[error("{key} is not stored as announced: {reason}")]
    NotStored {
        /// The key.
        key: StorageKey,
        /// What is wrong.
        reason: String,
    },
    /// The store could not be asked; to be tried again.
    #[error(transparent)]
    Storage(StorageError),
}

/// The folder of a job's checkpoints, and that of its results.
pub fn job_folders(job: JobId) -> [String; 2] {
    [
        format!("checkpoints/job-{job}"),
        format!("models/job-{job}"),
    ]
}

/// The folder of an export's files, with a slash at its end.
pub fn export_folder(job: JobId, export: ExportId) -> String {
    format!("{}/exports/{export}/", job_folders(job)[1])
}

/// The export in whose folder a key lies.
pub fn export_of_key(key: &StorageKey) -> Option<(JobId, ExportId)> {
    let job = job_of_key(key)?;
    let exports = format!("{}/exports/", job_folders(job)[1]);
    let (number, _) = key.as_str().strip_prefix(&exports)?.split_once('/')?;
    number.parse().ok().map(|export| (job, export))
}

/// How a file of a job is named to people: below the result's folder, or from `exports/` on.
pub fn shown_path(job: JobId, key: &str) -> &str {
    let below = |folder: &str| {
        let rest = key.strip_prefix(&job_folders(job)[1])?;
        rest.strip_prefix(folder)
    };
    below("/final/").or(below("/")).unwrap_or(key)
}

/// The job in one of whose folders a key lies.
pub fn job_of_key(key: &StorageKey) -> Option<JobId> {
    let mut parts = key.as_str().split('/');
    let is_folder = matches!(parts.next(), Some("checkpoints" | "models"));
    let number = parts.next()?.strip_prefix("job-")?.parse::<i64>().ok()?;
    JobId::try_from(number).ok().filter(|_| is_folder)
}

/// A storage key that a worker has named, or the folder of several (a slash at its end is put up with), after
/// making sure that it lies within one of the job's folders.
///
/// # Errors
/// [`ArtifactError::ForeignKey`].
pub fn key_of_job(job: JobId, key: &str) -> Result<StorageKey, ArtifactError> {
    let foreign = |reason: String| ArtifactError::ForeignKey {
        key: key.to_owned(),
        job,
        reason,
    };
    let parsed = StorageKey::parse(key.strip_suffix('/').unwrap_or(key))
        .map_err(|error| foreign(error.to_string()))?;
    let folders = job_folders(job);
    let is_within = folders.iter().any(|folder| {
        parsed
            .as_str()
            .strip_prefix(folder.as_str())
            .is_some_and(|rest| rest.starts_with('/'))
    });
    if is_within {
        Ok(parsed)
    } else {
        Err(foreign(format!(
            "it lies in neither {}/ nor {}/",
            folders[0], folders[1]
        )))
    }
}

/// Makes sure that each file that a worker names is the job's own, stored, and what the worker says it is. The
/// bytes are read and digested.
///
/// # Errors
/// The first file that is not.
pub async fn check_stored(
    storage: &dyn ObjectStore,
    job: JobId,
    files: &[ArtifactFile],
) -> Result<(), ArtifactError> {
    for file in files {
        let key = key_of_job(job, &file.key)?;
        let not_stored = |key, reason| Err(ArtifactError::NotStored { key, reason });
        let size_bytes = match storage.info(&key).await {
            Err(StorageError::NotFound) => {
                return not_stored(key, "there is no such file".to_owned());
            }
            found => found.map_err(ArtifactError::Storage)?.size_bytes,
        };
        if size_bytes != file.size_bytes {
            return not_stored(
                key,
                format!("it has {size_bytes} bytes, not {}", file.size_bytes),
            );
        }
        let sha256 = storage.sha256(&key).await.map_err(ArtifactError::Storage)?;
        if sha256 != file.sha256 {
            return not_stored(key, format!("its SHA-256 is {sha256}, not {}", file.sha256));
        }
    }
    Ok(())
}

/// The answer that sends a client to the signed URL of a file.
///
/// # Errors
/// 404 when there is no such file.
pub async fn redirect_to(
    storage: &dyn ObjectStore,
    key: &StorageKey,
) -> Result<HttpResponse, StorageError> {
    storage.info(key).await?;
    let url = storage.download_url(key, URL_LIFETIME);
    Ok(HttpResponse::Found()
        .insert_header((header::LOCATION, url.expose()))
        .finish())
}

/// Removes the files of a job's checkpoints before the newest of the `kept` steps that are not of one of those.
/// What lies beyond it is of one that is just being stored.
///
/// # Errors
/// When the store fails; what is left is removed by the next call.
pub async fn delete_old_checkpoints(
    storage: &dyn ObjectStore,
    job: JobId,
    kept: &BTreeSet<u64>,
) -> Result<(), StorageError> {
    let Some(newest) = kept.last() else {
        return Ok(());
    };
    let folder = &job_folders(job)[0];
    for object in storage.list(&StorageKey::parse(folder)?).await? {
        let within = object.key.as_str().strip_prefix(folder.as_str());
        let step = within
            .and_then(|rest| rest.strip_prefix("/step-")?.split('/').next()?.parse().ok())
            .filter(|step: &u64| step < newest && !kept.contains(step));
        if step.is_some() {
            storage.delete(&object.key).await?;
        }
    }
    Ok(())
}

/// Removes all files of an export.
///
/// # Errors
/// When the store fails; what is left goes with the job.
pub async fn delete_of_export(
    storage: &dyn ObjectStore,
    job: JobId,
    export: ExportId,
) -> Result<(), StorageError> {
    let folder = export_folder(job, export);
    delete_folder(storage, folder.trim_end_matches('/')).await
}

async fn delete_folder(storage: &dyn ObjectStore, folder: &str) -> Result<(), StorageError> {
    for object in storage.list(&StorageKey::parse(folder)?).await? {
        storage.delete(&object.key).await?;
    }
    Ok(())
}

/// Removes all files of a job.
///
/// # Errors
/// When the store fails; what is left is removed by the next try.
pub async fn delete_of_job(storage: &dyn ObjectStore, job: JobId) -> Result<(), StorageError> {
    for folder in job_folders(job) {
        delete_folder(storage, &folder).await?;
    }
    Ok(())
}
